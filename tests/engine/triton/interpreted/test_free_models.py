"""Both small models with 4-bit inputs on the kernels, free to drift apart from the simulation.

A code that rounds the other way at a tie moves many behind it: two correct executions differ image
by image, as the simulation differs from itself when its input changes in the last bits.
`benchmarks/triton_metrics.py` compares them on more images.
"""

import gpu_cases
import numpy as np
import pytest
import torch
from quick_interpreter import quick_interpreter
from triton_metrics import NOISY, SIMULATED, TOLERANCE, TRITON, Pair, images

import codtdq
from codtdq.engine import use_backend
from small_nets import simulate

pytestmark = gpu_cases.interpreted

PRESET = "cod-tdq-guarded"
SEEDS = range(1, 9)  # of the noise that tells how chaotic a network is


def test_cfrn_has_the_metrics_of_the_simulation(quick):
    suites = Pair("cfrn-small", PRESET).measure(images(0, 12), 0)  # which refuses fallbacks
    expected, found = suites[SIMULATED].compute(), suites[TRITON].compute()
    noisy = suites[NOISY].compute()
    for metric, value in expected.items():
        own = abs(noisy[metric] - value)
        assert abs(found[metric] - value) <= TOLERANCE + 3 * own, metric


def test_escnet_has_the_metrics_of_the_simulation_within_its_own_noise(quick):
    """Its masks change so much by noise of 1e-6 that 2e-3 would take hundreds of images.

    So few can only show that the kernels add nothing to that noise: three times what the noise
    makes of the same mean is allowed on top.
    """
    samples = images(0, 8)
    pair = Pair("escnet-small", PRESET)
    suites = pair.measure(samples, 0)
    expected, found = suites[SIMULATED].compute(), suites[TRITON].compute()
    noisy = [pair.with_noise(samples, seed).compute() for seed in SEEDS]
    for metric, value in expected.items():
        own = np.sqrt(np.mean([(one[metric] - value) ** 2 for one in noisy]))
        assert abs(found[metric] - value) <= TOLERANCE + 3 * own, metric


@pytest.mark.parametrize("layer", ["linear", "convolution", "depthwise", "shared range"])
def test_the_quick_interpreter_has_the_numbers_of_triton_s_own(layer, shape_sized_blocks):
    net, x = {
        "linear": (torch.nn.Sequential(torch.nn.Linear(70, 24), torch.nn.GELU()), (50, 70)),
        "convolution": (torch.nn.Sequential(torch.nn.Conv2d(40, 24, 3, stride=2)), (2, 40, 9, 7)),
        "depthwise": (torch.nn.Sequential(torch.nn.Conv2d(40, 40, 3, groups=40)), (2, 40, 9, 7)),
        "shared range": (torch.nn.Sequential(torch.nn.Linear(300, 24)), (50, 300)),
    }[layer]
    preset = "w4a4" if layer == "shared range" else PRESET
    config = codtdq.preset(preset, first_layer="quantize")
    quantized = simulate(net.eval(), config)
    x = torch.randn(x, generator=torch.Generator().manual_seed(0))
    assert not use_backend(quantized, "triton", example=x).fallbacks
    with torch.no_grad():
        expected = quantized(x)
        for _ in range(2):
            with quick_interpreter():
                assert torch.equal(quantized(x), expected)
        assert torch.equal(quantized(x), expected)  # and nothing is left behind
