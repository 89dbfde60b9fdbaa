"""Nothing is touched before it is asked for; a request that cannot be met is one line."""

import subprocess
import sys

import gpu_cases
import pytest
import torch

import codtdq
from codtdq.cli import main
from codtdq.environment import install_hint
from codtdq.errors import UnsupportedError
from small_nets import simulate

pytestmark = gpu_cases.compiled


def test_import_touches_neither_triton_nor_a_device():
    code = (
        "import sys, torch, codtdq, codtdq.engine; "
        "import codtdq.engine.triton.executors, codtdq.engine.triton.device; "
        "assert 'triton' not in sys.modules; assert not torch.cuda.is_initialized()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_a_request_without_a_device_is_one_line(tmp_path):
    model = simulate(codtdq.create_model("cfrn-small"), "cod-tdq")
    codtdq.save(model, tmp_path / "q")
    with pytest.raises(UnsupportedError) as caught:
        codtdq.load(tmp_path / "q", backend="triton")
    message = str(caught.value)
    assert message == "backend 'triton' cannot run: torch sees no CUDA device"


def test_without_triton_the_extra_is_named(monkeypatch):
    from codtdq.engine.triton import device

    monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: None)
    assert device.unavailable_reason() == f"Triton is not installed: {install_hint('gpu')}"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_measuring_without_a_device_is_one_line(tmp_path, capsys):
    argv = ["bench", "latency", "--backend", "triton", "--out", str(tmp_path / "gpu.json")]
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.splitlines() == [
        "codtdq bench: error: backend 'triton' cannot be measured: torch sees no CUDA device"
    ]
    assert not (tmp_path / "gpu.json").exists()


def test_options_that_would_do_nothing_are_refused(capsys):
    for option in ("--profile", "--memory", "--first-mask"):
        assert main(["bench", "latency", "--backend", "triton", option]) == 2
        assert f"{option} does nothing with --backend triton" in capsys.readouterr().err
    assert main(["bench", "latency", "--repeats", "3"]) == 2
    assert "--repeats does nothing with --backend cpu" in capsys.readouterr().err
    assert main(["bench", "latency", "--backend", "triton", "--repeats", "-1"]) == 2
    assert "--repeats is -1" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_the_doctor_tells_triton_from_a_device(capsys, monkeypatch):
    from codtdq.engine.triton import device

    assert main(["doctor"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert f"triton installed: {gpu_cases.triton.__version__}" in lines
    assert "device none; models run on the CPU, which needs none" in lines
    monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: None)
    assert device.facts()["triton"] == f"not installed: {install_hint('gpu')}"


def test_measuring_refuses_the_interpreter(monkeypatch):
    from codtdq.lab.bench.speed.gpu import require_gpu

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(UnsupportedError, match="whose time says nothing"):
        require_gpu()
