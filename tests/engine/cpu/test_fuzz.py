"""Random shapes, layouts, dtypes and values: no crash, NaN stays NaN, agreement otherwise."""

import math

import torch
from engine_cases import (
    SETS,
    distance,
    instruction_set,
    native_only,
    needs_engine,
    quantized,
    same_form,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from codtdq.engine import cpu as native

pytestmark = needs_engine
bounded = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)

sizes = st.integers(1, 9)
channels = st.integers(1, 140)
seeds = st.integers(0, 2**31)
dtypes = st.sampled_from(
    [torch.float32, torch.float32, torch.float16, torch.bfloat16, torch.float64]
)
modes = st.sampled_from(["per_tensor", "per_token_group"])
settings_of_a_layer = st.fixed_dictionaries(
    {
        "act_bits": st.integers(2, 8),
        "weight_bits": st.integers(2, 4),
        "act_group_size": st.integers(1, 32).map(lambda n: 4 * n),
        "tau": st.sampled_from([None, 0.3, 1.0]),
        "zero_ratio": st.sampled_from([None, 0.2, 0.7]),
        "act_percentile": st.sampled_from([None, 0.9]),
        "projection": st.sampled_from(["min", "guarded"]),
    }
)
literal = st.booleans().map(lambda yes: {"literal": True, "projection": "min"} if yes else {})
SPECIAL = {
    "plain": None,
    "zeros": 0.0,
    "denormal": 1e-40,
    "tiny": 1e-12,
    "large": 1e30,
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
}


def _fitting(mode, changes):
    """A group size is refused where nothing has groups."""
    grouped = mode == "per_token_group"
    return {key: v for key, v in changes.items() if grouped or key != "act_group_size"}


def values(shape, seed, special, share):
    """Normal values of which a share, or all of them, is special."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=g)
    value = SPECIAL[special]
    if value is not None:
        x[torch.rand(shape, generator=g) < share] = value
    return x


def laid_out(x, layout):
    """The same values in other places of memory."""
    if layout == "permuted":
        order = list(reversed(range(x.ndim)))
        return x.permute(order).contiguous().permute(order)
    if layout == "strided":
        return x.repeat_interleave(2, dim=-1)[..., ::2]
    if layout == "offset":
        return torch.cat([x[:1], x])[1:]
    if layout == "channels_last" and x.ndim == 4:
        return x.contiguous(memory_format=torch.channels_last)
    return x


def compare(layer, x, name):
    with torch.no_grad():
        with native.disabled():
            expected = layer(x)
        with instruction_set(name):
            found = native_only(layer)(x)
    assert same_form(found, expected, x), (found.stride(), expected.stride())
    assert torch.equal(found.isnan(), expected.isnan())
    # a sum outside of the dtype's range overflows in both, at an element or its neighbour
    known = expected.isfinite() & found.isfinite()
    assert bool((known | expected.isnan()).all()) or expected[~expected.isnan()].abs().max() > 6e4
    narrow = x.dtype in (torch.float16, torch.bfloat16)
    assert distance(found[known], expected[known]) <= (1e-2 if narrow else 2e-6)


given_values = {
    "seed": seeds,
    "special": st.sampled_from(sorted(SPECIAL)),
    "share": st.sampled_from([0.003, 0.3, 1.0]),
    "layout": st.sampled_from(["plain", "permuted", "strided", "offset", "channels_last"]),
    "dtype": dtypes,
    "name": st.sampled_from(SETS),
    "mode": modes,
    "changes": st.builds(lambda one, other: one | other, settings_of_a_layer, literal),
}


@bounded
@given(
    lead=st.lists(sizes, max_size=3),
    inputs=channels,
    outputs=st.integers(1, 70),
    bias=st.booleans(),
    **given_values,
)
def test_linear(
    lead, inputs, outputs, bias, seed, special, share, layout, dtype, name, mode, changes
):
    torch.manual_seed(seed)
    layer = quantized(nn.Linear(inputs, outputs, bias), mode, **_fitting(mode, changes))
    x = values((*lead, inputs), seed, special, share).to(dtype)
    compare(layer, laid_out(x, layout), name)


@bounded
@given(
    batch=st.integers(1, 3),
    inputs=channels,
    outputs=st.integers(1, 40),
    height=st.integers(1, 12),
    width=st.integers(1, 12),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    depthwise=st.booleans(),
    **given_values,
)
def test_conv(
    batch,
    inputs,
    outputs,
    height,
    width,
    kernel,
    stride,
    padding,
    dilation,
    depthwise,
    seed,
    special,
    share,
    layout,
    dtype,
    name,
    mode,
    changes,
):
    torch.manual_seed(seed)
    # torch wants at least one output
    height = max(height, dilation[0] * (kernel[0] - 1) + 1 - 2 * padding[0])
    width = max(width, dilation[1] * (kernel[1] - 1) + 1 - 2 * padding[1])
    depthwise = depthwise and inputs > 1
    outputs, groups = (inputs, inputs) if depthwise else (outputs, 1)
    if depthwise and seed % 2:
        mode = "per_channel"
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, groups)
    layer = quantized(conv, mode, **_fitting(mode, changes))
    x = values((batch, inputs, height, width), seed, special, share).to(dtype)
    compare(layer, laid_out(x, layout), name)
