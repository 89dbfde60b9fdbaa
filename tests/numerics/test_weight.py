import math

import pytest
import torch

from codtdq.errors import ConfigError
from codtdq.numerics import WeightSpec, quantize_weight
from codtdq.numerics.floats import encode_floats

SHAPES = [(10, 7), (4, 1), (6, 40), (8, 33, 3, 3), (8, 1, 3, 3), (8, 1, 1, 21), (6, 5, 3)]


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("group", [None, 4, 32])
def test_weight_error_is_at_most_half_a_step(shape, bits, group):
    w = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    packed = quantize_weight(w, WeightSpec(bits=bits, group_size=group))
    error = (packed.dequantize() - w).abs()
    assert packed.dequantize().shape == w.shape
    assert error.max() <= packed.scale.max() / 2 * (1 + 1e-5)
    rows = error.reshape(shape[0], -1).amax(1)
    assert bool((rows <= packed.scale.amax(1) / 2 * (1 + 1e-5)).all())


def test_a_scale_belongs_to_one_output_channel():
    w = torch.tensor([[7.0, 3.0, -7.0], [0.07, 0.03, -0.07]])
    packed = quantize_weight(w, WeightSpec())
    assert torch.allclose(packed.scale.flatten(), torch.tensor([1.0, 0.01]))
    assert packed.codes().flatten(1).tolist() == [[7, 3, -7], [7, 3, -7]]


def test_groups_follow_the_inputs_of_a_tap():
    """Channels 0..3 and 4..7 of each tap have scales of their own."""
    w = torch.ones(2, 8, 3, 3)
    w[:, 4:] = 100
    w[:, :, 1, 1] *= 0.01
    packed = quantize_weight(w, WeightSpec(group_size=4))
    assert packed.scale.shape == (2, 9 * 2)
    assert torch.allclose(packed.dequantize(), w, rtol=1e-5)


def test_groups_of_a_depthwise_kernel_run_over_its_taps():
    packed = quantize_weight(torch.randn(5, 1, 3, 3), WeightSpec(group_size=4))
    assert packed.scale.shape == (5, 3)


def test_nibbles_waste_at_most_one_code_per_row():
    packed = quantize_weight(torch.randn(6, 7), WeightSpec())
    assert packed.packed.dtype is torch.uint8 and packed.packed.shape == (6, 4)
    assert quantize_weight(torch.randn(6, 7), WeightSpec(bits=3)).packed.shape == (6, 4)
    assert quantize_weight(torch.randn(6, 7), WeightSpec(bits=5)).packed.shape == (6, 7)


def test_percentile_clips_the_tail():
    w = torch.cat([torch.linspace(-1, 1, 99), torch.tensor([50.0])]).reshape(1, 100)
    full = quantize_weight(w, WeightSpec())
    clipped = quantize_weight(w, WeightSpec(percentile=0.98))
    assert full.scale.item() == pytest.approx(50 / 7)
    assert clipped.scale.item() < 0.15
    assert clipped.dequantize().max() <= 1.0


@pytest.mark.parametrize("bits", [1, 9, 4.0, True, "4"])
def test_bits_outside_2_to_8_are_refused(bits):
    with pytest.raises(ConfigError, match="2 to 8"):
        WeightSpec(bits=bits)


@pytest.mark.parametrize("shape", [(1,), (63,), (64,), (65,), (3, 100)])
def test_block_floats_err_by_at_most_a_510th_of_the_span(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3 + 1
    block = encode_floats(x)
    span = x.max() - x.min()
    assert block.decode().shape == x.shape
    assert (block.decode() - x).abs().max() <= span / 510 * (1 + 1e-3)


def test_block_floats_keep_constants_and_refuse_nan():
    assert torch.equal(encode_floats(torch.ones(100)).decode(), torch.ones(100))
    assert encode_floats(torch.tensor([1.0, math.nan])) is None
