"""The engine as torch operators: shapes without values, and models that are compiled whole."""

import pytest
import torch
from engine_cases import needs_engine, quantized
from torch import nn

import codtdq
from codtdq.engine import use_backend
from codtdq.engine.cpu import operators, products
from codtdq.engine.cpu.carriers import CarrierWeights
from small_nets import simulate

pytestmark = needs_engine
SETTINGS = (4, 32, False, True, None, 1.0, 0.2)


def cases():
    torch.manual_seed(0)
    x = torch.randn(2, 40, 5, 6).contiguous(memory_format=torch.channels_last)
    data, unit = operators.carry_groups(x, *SETTINGS, True)
    step = products.largest_magnitude(x) / 7
    weights = CarrierWeights.pack(
        torch.randint(-8, 8, (24, 9, 40), dtype=torch.int8), torch.rand(24)
    )
    window = ([2, 5, 6], [3, 3], [2, 1], [1, 1], [1, 1])
    taps = torch.randint(-127, 128, (9, 40), dtype=torch.int8)
    order = torch.randperm(40).int()
    return {
        "carry_groups": (x, *SETTINGS, True),
        "carry_tokens": (x, 4, 32, 2, True, 0.0, torch.rand(40), None, order, True, False),
        "carry_pixels": (x, 4, 32, 2, True, 0.5, True),
        "carry_fixed": (x, 8, step, torch.tensor([100.0]), True, False),
        "largest_magnitude": (x, True),
        "carrier_product": (
            data,
            unit,
            30,
            weights.packed,
            weights.multiplier,
            weights.factor,
            [24, 9, 40],
            4,
            0,
            *window,
            torch.randn(24),
            "gelu",
        ),
        "carrier_depthwise": (data, unit, 30, taps, torch.rand(40), *window, None, "relu"),
        "deform_conv": (x, torch.randn(2, 18, 5, 6), torch.randn(360, 7), torch.randn(7)),
        "quantize_groups": (x.permute(0, 2, 3, 1), *SETTINGS),
    }


def test_a_gate_halves_the_channels():
    arguments = (*cases()["carrier_depthwise"][:-1], "gated_gelu")
    operator = torch.ops.codtdq.carrier_depthwise
    assert operator(*arguments).shape[1] == 20
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(operator.default, arguments, test_utils=checks)


@pytest.mark.parametrize("name", list(cases()))
def test_torch_accepts_the_operator(name):
    """Schema, aliasing and the shapes that the meta implementation promises."""
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(getattr(torch.ops.codtdq, name).default, cases()[name], test_utils=checks)


def test_operators_and_functions_are_the_same():
    arguments = cases()["carrier_product"]
    found = torch.ops.codtdq.carrier_product(*arguments)
    assert torch.equal(found, operators.carrier_product(*arguments))


@pytest.mark.parametrize("mode", ["per_token_group", "per_tensor", "per_channel"])
def test_a_compiled_model_runs_on_the_engine(mode):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1, groups=32),
        nn.GELU(),
        nn.Conv2d(32, 8, 1),
    )
    if mode == "per_channel":
        net = net[3:4]
    model = quantized(net, mode, preset="dstg-only" if mode == "per_token_group" else "w4a4")
    x = torch.randn(2, 32 if mode == "per_channel" else 3, 12, 10)
    assert not use_backend(model, "cpu", example=x).fallbacks
    seen = []

    def compiler(graph, inputs):
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    with torch.inference_mode():
        expected = model(x)
        found = torch.compile(model, backend=compiler, fullgraph=True)(x)
    assert torch.equal(found, expected)
    assert any(target.startswith("codtdq.") for target in seen), seen


def test_a_registered_model_compiles_whole():
    model = simulate(codtdq.create_model("escnet-small"), "cod-tdq")
    use_backend(model, "cpu", capture=False)  # what torch compiles are the operators one by one
    x = torch.randn(1, 3, 64, 64)
    with torch.inference_mode():
        expected = model.info.mask_logits(model(x))
        found = model.info.mask_logits(torch.compile(model, backend="eager")(x))
    assert torch.equal(found, expected)
