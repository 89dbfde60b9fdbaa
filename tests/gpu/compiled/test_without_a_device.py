"""Nothing is touched before it is asked for; a request that cannot be met is one line."""

import subprocess
import sys

import gpu_cases
import pytest
import torch

import codtdq
from codtdq.errors import UnsupportedError

pytestmark = gpu_cases.compiled


def test_import_touches_neither_triton_nor_a_device():
    code = (
        "import sys, torch, codtdq, codtdq.backends, codtdq.backends.triton, codtdq.gpu.device; "
        "assert 'triton' not in sys.modules; assert not torch.cuda.is_initialized()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_a_request_without_a_device_is_one_line(tmp_path):
    model = codtdq.quantize(codtdq.create_model("cfrn-small"), "cod-tdq")
    codtdq.save(model, tmp_path / "q")
    with pytest.raises(UnsupportedError) as caught:
        codtdq.load(tmp_path / "q", backend="triton")
    message = str(caught.value)
    assert message == "backend 'triton' cannot run: torch sees no CUDA device"


def test_without_triton_the_extra_is_named(monkeypatch):
    from codtdq.gpu import device

    monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: None)
    assert device.unavailable_reason() == "Triton is not installed: pip install 'codtdq[gpu]'"


def test_measuring_refuses_the_interpreter(monkeypatch):
    from codtdq.bench.speed.gpu import require_gpu

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(UnsupportedError, match="whose time says nothing"):
        require_gpu()
