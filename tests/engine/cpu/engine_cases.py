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
    """The operator in float64, from x_hat and W_hat of the plain path."""
    tokens = input_tokens(operator, x.float())
    with native.disabled():
        x_hat = operator.input_scheme(tokens).double()
    weight = operator.weight_scheme.dequantize().double()
    bias = None if operator.bias is None else operator.bias.double()
    if isinstance(operator, nn.Linear):
        return F.linear(x_hat.reshape(x.shape), weight, bias)
    return operator._conv_forward(x_hat.transpose(1, 2).unflatten(2, x.shape[2:]), weight, bias)


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


def same(a, b):
    """Equal bit by bit, NaN where the other is NaN."""
    return torch.equal(a.nan_to_num(-7.0), b.nan_to_num(-7.0)) and torch.equal(a.isnan(), b.isnan())


def check(module, x, *, label="", sets=SETS, threads=(1,)):
    """Compare a quantized operator with float64, and bit by bit with its simulation, on every set
    and with several numbers of threads.
    """
    (operator,) = quant_operators(module).values()
    with torch.no_grad(), native.disabled():
        simulated = module(x)
        exact = reference(operator, x)
    assert distance(simulated, exact) <= 1e-6, (label, distance(simulated, exact))
    for name in sets:
        for count in threads:
            with instruction_set(name), torch_threads(count), torch.no_grad():
                found = native_only(module)(x)
            assert operator.executor is not None  # it did compute this
            where = f"{label} on {name}, {count} threads: {module}"
            assert same_form(found, simulated, x), (where, found.stride(), simulated.stride())
            assert same(found, simulated), (where, distance(found, simulated))
