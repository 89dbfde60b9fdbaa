"""Activations of the epilogue against float64, and the setting for the C library's memory."""

import math
import os
import subprocess
import sys

import pytest
import torch
from engine_cases import SETS, instruction_set, needs_engine
from torch import nn

import codtdq
from codtdq import native
from codtdq.engine import use_backend
from small_nets import simulate

pytestmark = needs_engine


def through_engine(x, activation):
    """An operator that passes its single input channel on exactly, then the activation."""
    net = nn.Sequential(nn.Linear(1, 1), activation).eval()
    with torch.no_grad():
        net[0].weight.fill_(1.0), net[0].bias.zero_()
    model = simulate(net, codtdq.preset("dstg-only", float_storage="fp32"))
    record = use_backend(model, "cpu", example=x)
    assert record.fused == 1
    with torch.no_grad():
        use_backend(model, "reference")
        exact = model[0](x)  # what the quantizer leaves of x
        use_backend(model, "cpu", example=x)
        return exact.double(), model(x)


@pytest.mark.parametrize("name", SETS)
def test_gelu_is_next_to_exact(name):
    x = torch.cat([torch.linspace(-12, 12, 4001), torch.logspace(-30, 2, 500)])
    x = torch.cat([x, -x[-500:], torch.zeros(1)]).unsqueeze(1)
    with instruction_set(name):
        exact, found = through_engine(x, nn.GELU())
    expected = exact * 0.5 * (1 + torch.erf(exact / math.sqrt(2)))
    assert ((found - expected).abs() <= 4e-7 * exact.abs() + 1e-37).all()
    positive = exact > 0
    assert ((found - expected).abs()[positive] <= 6e-7 * expected[positive] + 1e-37).all()


@pytest.mark.parametrize("name", SETS)
def test_relu_and_what_is_not_finite(name):
    x = torch.tensor([[-1.0], [0.0], [2.0], [math.nan], [math.inf]])
    with instruction_set(name):
        _, found = through_engine(x, nn.ReLU())
        assert found[:3].flatten().tolist() == pytest.approx([0, 0, 2], rel=1e-6)
        assert found[3:].isnan().all()  # a range that is not finite has no codes
        _, found = through_engine(x, nn.GELU())
        assert found[3:].isnan().all()


@pytest.mark.skipif(native.OTHER_FILE in os.environ, reason="a sanitizer brings its own allocator")
def test_keeping_memory():
    """In a process of its own: the setting stays."""
    code = """
from codtdq.engine import cpu as native
assert native.keep_memory() is True
with native.disabled():
    assert native.keep_memory() is False
"""
    subprocess.run([sys.executable, "-c", code], check=True)
