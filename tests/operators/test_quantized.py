import pytest
import torch
import torch.nn.functional as F
from torch import nn

import codtdq
from codtdq.numerics import quantize
from codtdq.operators import listening
from codtdq.operators.tokens import input_tokens
from small_nets import simulate

CONVS = {
    "plain": lambda: nn.Conv2d(5, 6, 3),
    "strided": lambda: nn.Conv2d(40, 6, 3, stride=2, padding=1),
    "dilated": lambda: nn.Conv2d(5, 6, 3, dilation=2, padding=2),
    "grouped": lambda: nn.Conv2d(8, 6, 3, groups=2),
    "depthwise": lambda: nn.Conv2d(8, 8, (1, 5), groups=8, padding=(0, 2)),
    "reflect": lambda: nn.Conv2d(5, 6, 3, padding=1, padding_mode="reflect"),
    "circular": lambda: nn.Conv2d(5, 6, 3, padding=1, padding_mode="circular"),
    "same": lambda: nn.Conv2d(5, 6, 4, padding="same"),
    "no-bias": lambda: nn.Conv2d(5, 6, 1, bias=False),
}
CONVS_1D = {
    "plain": lambda: nn.Conv1d(5, 6, 3),
    "square": lambda: nn.Conv1d(9, 6, 3, padding=1),  # as many channels as positions
    "replicate": lambda: nn.Conv1d(33, 6, 3, padding=1, padding_mode="replicate"),
    "depthwise": lambda: nn.Conv1d(8, 8, 3, stride=2, groups=8),
}


def close(found, expected):
    """Equal up to the rounding of float sums: the operator's are whole and rounded once."""
    return torch.allclose(found, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))


def simulated(module, quantized, x):
    """The operator on dequantized input and weight, built from the public pieces."""
    x_hat = quantized.input_scheme(input_tokens(module, x))
    if isinstance(module, nn.Linear):
        x_hat = x_hat.reshape(x.shape)
    else:
        x_hat = x_hat.transpose(1, 2).unflatten(2, x.shape[2:])
    twin = type(module).__new__(type(module))
    twin.__dict__.update(module.__dict__)
    twin._parameters = {"weight": nn.Parameter(quantized.weight), "bias": quantized.bias}
    return twin(x_hat)


@pytest.mark.parametrize("mode", ["per_tensor", "per_channel", "per_token_group"])
@pytest.mark.parametrize("make", CONVS.values(), ids=CONVS.keys())
def test_conv2d_computes_on_dequantized_values(make, mode):
    torch.manual_seed(0)
    module = make()
    x = torch.randn(2, module.in_channels, 9, 7)
    modes = dict.fromkeys(("linear", "conv", "depthwise", "first"), mode)
    quantized = simulate(module, codtdq.preset("cod-tdq", act_modes=modes))
    with torch.no_grad():
        assert close(quantized(x), simulated(module, quantized, x))
        assert quantized(x).shape == module(x).shape
        single = simulate(module, codtdq.preset("w8a8"))
        assert torch.allclose(single(x), module(x), atol=0.1)
        assert quantized(x[0]).shape == module(x[0]).shape  # unbatched


@pytest.mark.parametrize("make", CONVS_1D.values(), ids=CONVS_1D.keys())
def test_conv1d_computes_on_dequantized_values(make):
    torch.manual_seed(0)
    module = make()
    x = torch.randn(2, module.in_channels, 9)
    quantized = simulate(module, "cod-tdq")
    with torch.no_grad():
        assert close(quantized(x), simulated(module, quantized, x))
        assert torch.allclose(simulate(module, "w8a8")(x), module(x), atol=0.1)


@pytest.mark.parametrize("channels", [1, 3, 31, 33, 64])
def test_linear_computes_on_dequantized_values(channels):
    torch.manual_seed(0)
    module = nn.Linear(channels, 7)
    x = torch.randn(2, 3, 4, channels)
    quantized = simulate(module, "cod-tdq")
    with torch.no_grad():
        assert close(quantized(x), simulated(module, quantized, x))


def test_float_scales_are_those_of_the_paper():
    """What the numerics give for the same specification, group by group."""
    torch.manual_seed(0)
    module, x = nn.Linear(70, 7), torch.randn(2, 3, 70)
    quantized = simulate(module, codtdq.preset("cod-tdq", scales="float"))
    x_hat = quantize(x, quantized.site.activation).x_hat
    with torch.no_grad():
        expected = nn.functional.linear(x_hat, quantized.weight, quantized.bias)
        assert torch.equal(quantized(x), expected)
        whole = simulate(module, "cod-tdq")(x)
    assert not torch.equal(whole, expected)
    assert float((whole - expected).norm() / expected.norm()) < 0.3


@pytest.mark.parametrize("mode", ["per_token_group", "per_tensor", "per_channel"])
def test_listeners_hear_the_steps_of_whole_multiples(mode):
    """In front of a depthwise convolution each channel has a unit of its own."""
    torch.manual_seed(0)
    module, x, heard = nn.Conv2d(24, 24, 3, padding=1, groups=24), torch.randn(1, 24, 5, 6), []
    modes = dict.fromkeys(("linear", "conv", "depthwise", "first"), mode)
    quantized = simulate(module, codtdq.preset("cod-tdq", act_modes=modes))
    with torch.no_grad(), listening({"layer": quantized}, lambda *facts: heard.append(facts)):
        quantized(x)
    ((_, tokens, x_hat, statistics),) = heard
    assert torch.equal(x_hat, quantized.input_scheme(tokens))
    step = statistics.step.reshape(-1, 1) if mode == "per_token_group" else statistics.step
    codes = x_hat.reshape(-1, 24) / step
    assert torch.allclose(codes, codes.round(), atol=1e-4)


def test_state_is_buffers_and_moves_with_the_module():
    layer = simulate(nn.Linear(33, 5), "cod-tdq")
    assert set(layer.state_dict()) == {"weight_scheme.packed", "weight_scheme.scale", "bias"}
    assert layer.weight_scheme.packed.dtype is torch.uint8
    assert isinstance(layer, nn.Linear) and layer.in_features == 33
    assert all(not p.requires_grad for p in layer.parameters())


def test_an_uncached_weight_gives_the_same_result():
    layer = simulate(nn.Linear(64, 32), "cod-tdq")
    x = torch.randn(4, 64)
    with torch.no_grad():
        before = layer(x)
        layer.refresh(cache=False)
        assert layer._buffers["weight_cache"] is None
        assert torch.equal(layer(x), before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_output_has_the_dtype_of_the_input(dtype):
    layer = simulate(nn.Linear(64, 32), "cod-tdq")
    assert layer(torch.randn(4, 64).to(dtype)).dtype is dtype


def test_fp16_compute_rounds_to_half():
    module = nn.Linear(64, 32)
    x = torch.randn(4, 64)
    half = simulate(module, codtdq.preset("cod-tdq", compute_dtype="fp16"))
    with torch.no_grad():
        expected = F.linear(
            half.input_scheme(x[:, None])[:, 0].half(), half.weight.half(), half.bias.half()
        ).float()
        assert torch.equal(half(x), expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_reaches_the_output(bad):
    layer = simulate(nn.Linear(64, 8), "cod-tdq")
    x = torch.randn(3, 64)
    x[1, 5] = bad
    y = layer(x)
    assert y[1].isnan().all() and y[[0, 2]].isfinite().all()


def test_listener_sees_every_quantization():
    layer = simulate(nn.Linear(64, 8), "cod-tdq")
    seen = []

    def hear(name, x, x_hat, statistics):
        seen.append((name, x.shape, x_hat.shape, statistics.step.shape))

    with listening({"layer": layer}, hear):
        layer(torch.randn(3, 64))
    assert seen == [("layer", (3, 1, 64), (3, 1, 64), (3, 1, 2))]
    layer(torch.randn(3, 64))
    assert len(seen) == 1
