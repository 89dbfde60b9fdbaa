"""From a file to a mask in a fresh process: what a program that only predicts does not wait for."""

import subprocess
import sys

import pytest
import torch

import codtdq

# Each takes from a tenth of a second to seconds, and none is needed to load a model and predict.
HEAVY = ("scipy", "sympy", "matplotlib", "torch._dynamo", "torch._inductor", "torch.onnx")


@pytest.mark.parametrize("name", ["cfrn-small", "escnet-small"])
def test_a_prediction_imports_nothing_heavy(name, tmp_path):
    calibration = [torch.zeros(1, 3, 64, 64)]
    model = codtdq.quantize(codtdq.create_model(name), "cod-tdq", calibration=calibration)
    codtdq.save(model, tmp_path / "packed")
    code = (
        "import sys, torch\n"
        "already = set(sys.modules)\n"
        "import codtdq, numpy\n"
        f"model = codtdq.load({str(tmp_path / 'packed')!r})\n"
        "mask = codtdq.predict(model, numpy.zeros((64, 64, 3), numpy.uint8))\n"
        "assert mask.shape == (64, 64)\n"
        f"print(*(set({HEAVY!r}) & (set(sys.modules) - already)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not done.stdout.split()


def test_a_load_leaves_the_search_for_garbage_as_it_was(tmp_path):
    import gc

    assert gc.isenabled()
    with pytest.raises(codtdq.CodtdqError):
        codtdq.load(tmp_path)
    assert gc.isenabled()
    gc.disable()
    try:
        with pytest.raises(codtdq.CodtdqError):
            codtdq.load(tmp_path)
        assert not gc.isenabled()
    finally:
        gc.enable()
