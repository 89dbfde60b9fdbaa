"""The grid of one group of activations: 4-bit codes, an integer zero-point, an 8-bit scale.

x_hat = s (q - z) with q in 0 .. 2^b - 1 and z an integer code, so that a product with signed weight
codes stays exact in integers: sum s_w s (sum q q_w - z sum q_w). What travels with a group is an
E4M3 scale, in multiples of a unit that is known beforehand (or of a float32 that each image
brings), and z in as many bits as a code (8 if it is wide).

The range of a group is chosen by weighing, not by a bound. The candidates are scales that can be
stored: the smallest that clips nothing, and the next smaller ones. The one with the least sum of
squared errors wins, in which values that fall to zero count `1 + zero_weight` times: clipping,
rounding and lost weak evidence are one currency.
"""

from __future__ import annotations

import torch
from torch import Tensor

from codtdq.numerics.affine import code_limits, decode_shifted, encode_shifted, nearest
from codtdq.numerics.nvfp4 import LARGEST_E4M3, to_e4m3

SCALE_BITS = 8  # an E4M3 number per group
IMAGE_BITS = 32  # a float32 per image
ZERO_POINTS = ("none", "inside", "wide")
WIDE_BITS = 8
# q - z stays within int8: -z >= -127 and 15 - z <= 127 at four bits
WIDE_LOWEST, WIDE_HIGHEST = -112, 127
TINY = 1e-30  # of an image's unit: only an image of zeros is below


def quantize_groups(
    groups: Tensor,
    bits: int,
    *,
    trials: int = 1,
    zero_weight: float = 0.0,
    zero_point: str = "inside",
    unit: float = 0.0,
) -> Tensor:
    """x_hat of groups [B, ..., g]; the first dimension holds the images.

    trials: scales that are weighed; 1 takes the one that clips nothing.
    zero_point: "none" (ranges from -max|x| to max|x|), "inside" (minimum to maximum, zero among
        the levels) or "wide" (zero may lie outside: a group that sits on an offset spends no codes
        on the way there; z has 8 bits).
    unit: what scales are multiples of; larger steps than 448 of it are cut to that, and a group
        with a value that is not finite is NaN. 0: each image has its own, and is NaN as a whole.
    """
    levels = code_limits(bits, False)[1]
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    step, lowest, highest = full_step(low, high, levels, zero_point)
    step = step.clamp(max=LARGEST_E4M3 * unit) if unit else step
    low = (step * levels / -2) if zero_point == "none" else low
    units = torch.full_like(step, unit) if unit else _image_unit(step)
    scale = covering_e4m3(step / units)
    zero = nearest(-low / (_value(scale) * units)).clamp_(lowest, highest)
    best = error = None
    for _ in range(trials):
        step = _value(scale) * units
        if zero_point == "wide":  # shrink around the middle of the group, not around zero
            zero = nearest(levels / 2 - (low + high) / (2 * step)).clamp_(lowest, highest)
        values = decode_shifted(encode_shifted(groups, step, zero, 0, levels), step, zero)
        if trials == 1:
            best = values
            break
        total = _loss(values, groups, zero_weight)
        if best is None or error is None:
            best, error = values, total
        else:
            better = total < error
            best, error = torch.where(better, values, best), torch.where(better, total, error)
        scale = (scale - 1).clamp_(min=1)
    assert best is not None
    return best + (groups * 0).sum(-1, keepdim=True) if unit else best


def full_step(low: Tensor, high: Tensor, levels: int, zero_point: str) -> tuple[Tensor, int, int]:
    """The step that covers [low, high], and the least and the largest zero-point."""
    if zero_point == "wide":
        # small enough steps would put the zero-point beyond its bits
        near = torch.maximum(low / -WIDE_LOWEST, low / -WIDE_HIGHEST)
        return torch.maximum((high - low) / levels, near), WIDE_LOWEST, WIDE_HIGHEST
    low, high = low.clamp(max=0.0), high.clamp(min=0.0)
    if zero_point == "none":
        return torch.maximum(-low, high) * 2 / levels, 0, levels
    return (high - low) / levels, 0, levels


def covering_e4m3(scale: Tensor) -> Tensor:
    """Code of the smallest positive E4M3 number that is not below each scale, as int16.

    Codes of positive numbers are in the order of the numbers: code - 1 is the next smaller one.
    """
    codes = to_e4m3(scale).view(torch.uint8).to(torch.int16)
    short = _value(codes.clamp(min=1)) < scale * (1 - 1e-6)
    largest = int(to_e4m3(torch.tensor([LARGEST_E4M3])).view(torch.uint8))
    return (codes + short).clamp_(1, largest)


def travelling_bits(
    bits: int, length: int, lines: int, group: int, zero_point: str, unit: float = 0.0
) -> float:
    """Effective bits of a value: lines of `length` values, each in groups, and one float32 if no
    unit is given.
    """
    groups = -(-length // group)
    side = SCALE_BITS + {"none": 0, "inside": bits, "wide": WIDE_BITS}[zero_point]
    image = 0.0 if unit else IMAGE_BITS / (length * lines)
    return bits + groups * side / length + image


def _value(codes: Tensor) -> Tensor:
    return codes.to(torch.uint8).view(torch.float8_e4m3fn).float()


def _image_unit(step: Tensor) -> Tensor:
    """The float32 of each image that puts its largest step on the largest E4M3 number."""
    largest = step.flatten(1).amax(1) if step.numel() else step.new_zeros(step.shape[0])
    unit = (largest / LARGEST_E4M3).clamp(min=TINY)
    return unit.reshape(-1, *[1] * (step.ndim - 1))


def _loss(values: Tensor, groups: Tensor, zero_weight: float) -> Tensor:
    loss = (values - groups).square_()
    if zero_weight:
        loss = loss.mul_(1.0 + zero_weight * (values == 0))
    return loss.sum(-1, keepdim=True)
