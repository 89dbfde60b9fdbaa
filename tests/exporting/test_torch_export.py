"""`torch.export` of a model on the engine: operators by name, the same bits after a file."""

import subprocess
import sys

import pytest
import torch
from engine_cases import needs_engine

import codtdq
from small_nets import images, small_net

pytestmark = needs_engine


def exported(model, x):
    """The exported model, and what the model itself gives, operator by operator."""
    with torch.no_grad():
        made = torch.export.export(model, (x,))
        codtdq.use_backend(model, "cpu", capture=False)
        return made, model(x)


@pytest.mark.parametrize("method", ["cod-tdq", "cod-tdq-guarded", "cod-tdq-plus", "w8a8"])
def test_an_exported_model_round_trips_to_the_bit(method, tmp_path):
    x = images()
    model = codtdq.quantize(small_net(), method, calibration=[images(2, seed=3)], backend="cpu")
    made, wanted = exported(model, x)
    called = {str(node.target) for node in made.graph.nodes if node.op == "call_function"}
    assert "codtdq.carrier_product.default" in called
    assert any(name.startswith("codtdq.carry_") for name in called)
    torch.export.save(made, tmp_path / "net.pt2")
    with torch.no_grad():
        assert torch.equal(torch.export.load(tmp_path / "net.pt2").module()(x), wanted)


LOAD = """
import sys
import torch
if sys.argv[1] == "with":
    import codtdq.engine.cpu.operators
x, wanted = torch.load(sys.argv[3])
try:
    module = torch.export.load(sys.argv[2]).module()
except Exception as error:
    raise SystemExit("not loaded")
with torch.no_grad():
    print(all(map(torch.equal, module(x), wanted)))
    try:
        module(torch.cat([x, x]))
    except Exception as error:
        print("one shape")
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("method", ["cod-tdq", "cod-tdq-plus"])
def test_a_network_round_trips_to_another_process(method, tmp_path):
    """The limits of the page: operators are registered there, and the shape is the exported one."""
    network = codtdq.create_model("cfrn-small")
    batches = [torch.randn(2, 3, 160, 160, generator=torch.Generator().manual_seed(1))]
    model = codtdq.quantize(network, method, calibration=batches, backend="cpu")
    x = torch.randn(1, 3, 160, 160, generator=torch.Generator().manual_seed(0))
    made, wanted = exported(model, x)
    assert len(wanted) == 2  # masks at two sizes
    torch.export.save(made, tmp_path / "net.pt2")
    torch.save((x, wanted), tmp_path / "wanted.pt")
    words = [str(tmp_path / "net.pt2"), str(tmp_path / "wanted.pt")]
    for how, said in (("with", "True\none shape\n"), ("without", "")):
        done = subprocess.run(
            [sys.executable, "-c", LOAD, how, *words], capture_output=True, text=True
        )
        assert done.stdout == said, done.stderr[-2000:]
        assert (done.returncode == 0) == (how == "with")
