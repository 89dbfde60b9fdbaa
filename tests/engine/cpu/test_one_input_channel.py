"""A convolution over one channel whose weight has groups: scales over taps, read tap by tap."""

import pytest
import torch
from torch import nn

import codtdq
from codtdq.engine import cpu

needs_engine = pytest.mark.skipif(
    cpu.unavailable_reason() is not None, reason=str(cpu.unavailable_reason())
)


def narrow_net(seed, kernel=3):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(3, 1, 1),
            nn.ReLU(),
            nn.Conv2d(1, 64, kernel, padding=kernel // 2),
            nn.ReLU(),
            nn.Conv2d(64, 2, 1),
        ).eval()


def check_lowered(conv):
    """What is executed holds the weight: codes times factors, tap by tap."""
    lowered = conv.weight_scheme.lower()
    values = lowered.codes.float() * lowered.factor[:, None, None]  # [O, T, 1]
    found = values.transpose(1, 2).reshape(conv.weight.shape)
    # (scale p) r and scale (p r) are rounded in different places
    torch.testing.assert_close(found, conv.weight.detach(), rtol=3e-7, atol=0)


@needs_engine
@pytest.mark.parametrize("kernel", [3, 5, 7])
@pytest.mark.parametrize("group", [4, 8, 32])
def test_the_engine_agrees_with_the_reference(group, kernel):
    model, x = narrow_net(0, kernel), torch.randn(2, 3, 9, 9)
    config = codtdq.preset("w4a4", weight_group_size=group)
    native = codtdq.quantize(model, config, calibration=[x], backend="cpu")
    plain = codtdq.quantize(model, config, calibration=[x], backend="reference")
    with torch.no_grad():
        found, wanted = native(x), plain(x)
    assert torch.isfinite(found).all()
    assert torch.allclose(found, wanted, atol=1e-5, rtol=1e-5)
    check_lowered(plain[2])  # both execute what was lowered: it must be the weight


def test_lowered_codes_hold_the_multipliers_of_groups_over_taps():
    conv = codtdq.quantize(
        nn.Sequential(nn.Conv2d(1, 4, 3)),
        codtdq.preset("w4a4", weight_group_size=4, first_layer="quantize"),
        calibration=[torch.randn(1, 1, 5, 5)],
        backend="reference",
    )[0]
    lowered = conv.weight_scheme.lower()
    assert conv.weight_scheme.multiplier.shape == (4, 2)  # 3 groups of 9 taps, two to a byte
    assert lowered.codes.shape == (4, 9, 1) and lowered.factor.shape == (4,)
    assert lowered.multiplier is None and lowered.bits == 8
    assert int(lowered.codes.abs().max()) > 8  # products of codes and multipliers
    check_lowered(conv)
