"""Shared by the tests of the engine: quantized operators, references, every instruction set."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import codtdq
from codtdq.engine import cpu as native
from codtdq.engine import use_backend
from codtdq.engine.cpu import library
from codtdq.numerics.weight import from_rows, row_shape
from codtdq.operators import quant_operators
from codtdq.operators.tokens import input_tokens
from codtdq.planning import Site
from codtdq.planning.roles import kind_of
from small_nets import simulate

# an engine that was built and does not load is a failure, not a reason to skip
needs_engine = pytest.mark.skipif(
    not library.path().is_file(), reason=f"no engine was built: {library.path()}"
)
SETS = library.available_sets() or ["generic"]
MODES = ("per_tensor", "per_channel", "per_token_group")


def quantized(module, mode="per_token_group", preset="cod-tdq", calibration=None, **changes):
    """A module alone, quantized with one activation mode for every kind of operator."""
    modes = dict.fromkeys(("linear", "conv", "depthwise", "first"), mode)
    changes = {"first_layer": "quantize", "float_storage": "fp32", "act_modes": modes} | changes
    return simulate(module.eval(), codtdq.preset(preset, **changes), calibration)


def site_of(module):
    """What a plan would say of a float operator that stands alone."""
    kind = kind_of(module)
    return Site(
        name="",
        type=type(module).__name__,
        kind=kind,
        role=kind,
        shape=tuple(module.weight.shape),
        inputs=getattr(module, "in_features", getattr(module, "in_channels", 0)),
    )


def native_only(model):
    """Put a model on the engine; nothing may fall back."""
    record = use_backend(model, "cpu")
    assert record.native and not record.fallbacks, record
    return model


@contextlib.contextmanager
def instruction_set(name):
    before = native.instruction_set()
    library.select(name)
    try:
        yield
    finally:
        library.select(before)


@contextlib.contextmanager
def torch_threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def reference(operator, x):
    """The operator in float64 from the codes and scales of the plain path."""
    tokens, channels = input_tokens(operator, x.float()), operator.inputs
    with native.disabled():
        result = operator.input_scheme.explain(tokens)
    step, spec = result.step.double(), operator.input_scheme.spec
    if spec.mode == "per_token_group":
        step = step.repeat_interleave(spec.group_size, dim=-1)[..., :channels]  # [B, N, C]
    x_hat = result.q.double() * step
    if isinstance(operator, nn.Linear):
        x_hat = x_hat.reshape(x.shape)
    else:
        x_hat = x_hat.transpose(1, 2).unflatten(2, x.shape[2:])
    packed = operator.weight_scheme.packed_weight()
    _, taps, inputs = row_shape(packed.shape)
    weight = from_rows(
        packed.codes().double() * packed._spread(taps, inputs).double(), packed.shape
    )
    bias = None if operator.bias is None else operator.bias.double()
    if isinstance(operator, nn.Linear):
        return F.linear(x_hat, weight, bias)
    conv = F.conv2d if isinstance(operator, nn.Conv2d) else F.conv1d
    padding = operator.padding
    if operator.padding_mode != "zeros":
        both = [side for side in reversed(padding) for _ in range(2)]
        x_hat, padding = F.pad(x_hat, both, operator.padding_mode), 0
    return conv(x_hat, weight, bias, operator.stride, padding, operator.dilation, operator.groups)


def distance(found, expected):
    """||found - expected|| / ||expected||."""
    norm = expected.double().norm().item()
    return (found.double() - expected.double()).norm().item() / (norm or 1.0)


def same_form(found, expected, x):
    """Equal shape, dtype and, for the two layouts that torch knows, order in memory.

    The stride of an axis of one element says nothing.
    """
    known = x.is_contiguous() or (
        x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)
    )
    strides = zip(found.shape, found.stride(), expected.stride())
    same = not known or all(a == b for size, a, b in strides if size > 1)
    return same and found.shape == expected.shape and found.dtype == expected.dtype


def check(module, x, *, label="", sets=SETS):
    """Compare a quantized operator with float64 and with its simulation, on every set."""
    (operator,) = quant_operators(module).values()
    with torch.no_grad(), native.disabled():
        simulated = module(x)
        exact = reference(operator, x)
    for name in sets:
        with instruction_set(name), torch.no_grad():
            found = native_only(module)(x)
        assert operator.executor is not None  # it did compute this
        where = f"{label} on {name}: {module}"
        assert same_form(found, simulated, x), (where, found.stride(), simulated.stride())
        assert distance(found, exact) <= 1e-6, (where, distance(found, exact))
        assert distance(found, simulated) <= 2e-6, (where, distance(found, simulated))


def group_losses(scheme, x_hat, x):
    """Loss of every value's group, as cod-tdq-plus counts it."""
    loss = (x_hat - x).square() * (1 + scheme.zero_weight * (x_hat == 0))
    lines = loss if not scheme.along_pixels else loss.transpose(1, 2)
    size = min(scheme.group, lines.shape[-1])
    short = -lines.shape[-1] % size
    padded = torch.nn.functional.pad(lines, (0, short), mode="replicate") if short else lines
    sums = (
        padded.unflatten(-1, (-1, size)).sum(-1, keepdim=True).expand(*padded.shape[:-1], -1, size)
    )
    each = sums.flatten(-2)[..., : lines.shape[-1]]
    return each if not scheme.along_pixels else each.transpose(1, 2)
