"""`torch.export` of a model on the engine: operators by name, the same bits after a file."""

import io

import torch
from engine_cases import needs_engine

import codtdq
from small_nets import images, small_net

pytestmark = needs_engine


def test_an_exported_model_round_trips_to_the_bit():
    model = codtdq.quantize(small_net(), "cod-tdq", backend="cpu")
    x = images()
    with torch.no_grad():
        exported = torch.export.export(model, (x,))
        codtdq.use_backend(model, "cpu", capture=False)
        wanted = model(x)
    called = {str(node.target) for node in exported.graph.nodes if node.op == "call_function"}
    assert {"codtdq.carry_groups.default", "codtdq.carrier_product.default"} <= called
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    with torch.no_grad():
        assert torch.equal(torch.export.load(file).module()(x), wanted)
