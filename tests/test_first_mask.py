"""From a file to a mask in a fresh process: what a program that only predicts does not wait for."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import codtdq
from small_nets import images, small_net

TESTS = str(Path(__file__).parent)
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


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize(
    ("method", "needs"), [("cod-tdq", False), ("cod-tdq-plus", False), ("igq-vit", True)]
)
def test_a_load_imports_only_the_methods_that_it_needs(method, needs, tmp_path):
    """The rivals are there where the header names one, and for who asks, before a user's own."""
    model = codtdq.quantize(small_net(), method, calibration=[images(2)])
    codtdq.save(model, tmp_path / "packed")
    code = (
        "import sys, codtdq\n"
        "from small_nets import small_net\n"
        f"model = codtdq.load({str(tmp_path / 'packed')!r}, model=small_net())\n"
        "print('codtdq.methods.rivals.repq_vit' in sys.modules)\n"
        "fields = dict.fromkeys(('title', 'source', 'evidence', 'ranges', 'granularity'), '-')\n"
        "codtdq.register_method('mine', **fields)(lambda bench: None)\n"
        "print(*codtdq.list_methods())\n"
    )
    rivals, names = run(f"import sys; sys.path.insert(0, {TESTS!r})\n{code}").splitlines()
    assert rivals == str(needs)
    assert names.split()[-1] == "mine" and {method, "repq-vit"} <= set(names.split())


def test_schemes_that_only_operators_name_are_known(tmp_path):
    """An operator that was exchanged by hand holds what the method of the config does not know."""
    model = codtdq.quantize(small_net(), "cod-tdq-plus", calibration=[images(2)])
    other = codtdq.quantize(small_net(), "igq-vit", calibration=[images(2)])
    scheme = other.get_submodule("mlp.fc1").input_scheme
    codtdq.use_backend(model, "reference")
    model.get_submodule("mlp.fc1").exchange(inputs=scheme)
    codtdq.save(model, tmp_path / "packed")
    code = (
        "import codtdq\n"
        "from small_nets import small_net\n"
        f"model = codtdq.load({str(tmp_path / 'packed')!r}, model=small_net())\n"
        "print(model.get_submodule('mlp.fc1').input_scheme.kind)\n"
    )
    assert run(f"import sys; sys.path.insert(0, {TESTS!r})\n{code}").split() == [scheme.kind]


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


def test_threads_that_ask_first_see_all_methods():
    """None of them sees a list that another one is still filling."""
    code = """
from concurrent.futures import ThreadPoolExecutor
from codtdq.methods import list_methods
with ThreadPoolExecutor(8) as threads:
    counts = list(threads.map(lambda _: len(list_methods()), range(8)))
print(len(list_methods()) > 40 and set(counts) == {len(list_methods())}, counts)
"""
    assert run(code).startswith("True"), run(code)
