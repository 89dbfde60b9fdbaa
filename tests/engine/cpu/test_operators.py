"""The engine as torch operators: shapes without values, and models that are compiled whole."""

import pytest
import torch
from engine_cases import needs_engine, quantized
from torch import nn

import codtdq
from codtdq.engine import use_backend
from codtdq.engine.cpu import operators, products
from codtdq.engine.cpu.weights import PackedWeights
from small_nets import simulate

pytestmark = needs_engine
SETTINGS = (4, 32, False, True, None, 1.0, 0.2)


def cases():
    torch.manual_seed(0)
    x = torch.randn(2, 40, 5, 6).contiguous(memory_format=torch.channels_last)
    codes, step, sums = operators.encode_groups(x, 32, *SETTINGS)
    radius = products.largest_magnitude(x)
    one = radius / 7
    weights = PackedWeights.pack(
        torch.randint(-8, 8, (24, 9, 40), dtype=torch.int8), torch.rand(24, 1), 32
    )
    window = ([2, 5, 6], [3, 3], [2, 1], [1, 1], [1, 1])
    taps = torch.randn(9, 40)
    return {
        "encode_groups": (x, 32, *SETTINGS),
        "encode_fixed": (x, 32, 4, radius, one),
        "largest_magnitude": (x, True),
        "product": (
            codes,
            step,
            sums,
            4,
            weights.packed,
            weights.scales,
            [24, 9, 40],
            32,
            0,
            *window,
            torch.randn(24),
            "gelu",
        ),
        "depthwise": (codes, step, sums, 4, 32, taps, *window, None, "relu"),
        "deform_conv": (x, torch.randn(2, 18, 5, 6), torch.randn(360, 7), torch.randn(7)),
        "quantize_groups": (x.permute(0, 2, 3, 1), *SETTINGS),
    }


def test_a_gate_halves_the_channels():
    codes, step, sums, bits, group, taps, *rest = cases()["depthwise"]
    arguments = (codes, step, sums, bits, group, taps, *rest[:-1], "gated_gelu")
    assert torch.ops.codtdq.depthwise(*arguments).shape[1] == 20
    torch.library.opcheck(
        torch.ops.codtdq.depthwise.default, arguments, test_utils=("test_schema", "test_faketensor")
    )


@pytest.mark.parametrize("name", list(cases()))
def test_torch_accepts_the_operator(name):
    """Schema, aliasing and the shapes that the meta implementation promises."""
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(getattr(torch.ops.codtdq, name).default, cases()[name], test_utils=checks)


def test_operators_and_functions_are_the_same():
    arguments = cases()["product"]
    assert torch.equal(torch.ops.codtdq.product(*arguments), operators.product(*arguments))


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
    use_backend(model, "cpu")
    x = torch.randn(1, 3, 64, 64)
    with torch.inference_mode():
        expected = model.info.mask_logits(model(x))
        found = model.info.mask_logits(torch.compile(model, backend="eager")(x))
    assert torch.equal(found, expected)
