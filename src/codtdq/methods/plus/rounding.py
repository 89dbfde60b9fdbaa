"""Rounding that compensates its own errors, for a quadratic output error.

Given targets W* [G, O, K] and H [G, K, K] (one per group of a convolution), find codes and group
scales with a small sum of (W_hat - W*) H (W_hat - W*)^T over the rows:

1. `search_scales`: of many scales per group the one with the least error under the diagonal of H.
2. `compensated_codes`: round column after column, largest H_kk first, each error moved onto the
   columns that follow (GPTQ: Frantar et al., ICLR 2023; the scales are fixed before).
3. `refine`: exact coordinate descent over all codes, then over all scales, a few times. A move is
   made only if it lowers the error, so that the result is never worse than step 2.

Columns are taken in blocks: corrections outside a block wait for one matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from codtdq.methods.plus.moments import cholesky
from codtdq.numerics.affine import EPS, encode_shifted
from codtdq.numerics.carrier import weight_limits
from codtdq.schemes.multiplied import MultiplierFormat
from codtdq.schemes.weight_groups import ScaleFormat

Format = ScaleFormat | MultiplierFormat
BLOCK = 64
FACTORS = tuple(1.15 - 0.05 * i for i in range(14))  # of the scale that just covers a group


@dataclass
class Rounded:
    """codes [G, O, K] as floats, scales [G, O, groups], index [K] of each column's group."""

    codes: Tensor
    scales: Tensor
    index: Tensor

    @property
    def steps(self) -> Tensor:
        """Scale of every column [G, O, K]."""
        return self.scales[..., self.index]

    @property
    def values(self) -> Tensor:
        """W_hat [G, O, K]."""
        return self.codes * self.steps


def search_scales(
    weight: Tensor,
    importance: Tensor,
    index: Tensor,
    bits: int,
    *,
    signed: bool = True,
    factors: tuple[float, ...] = FACTORS,
    whole: bool = True,
) -> tuple[Tensor, Format]:
    """Scales [G, O, groups] and their format; importance: [G, K], the diagonal of H.

    whole: scales are whole multiples of one per output, else E4M3 numbers.
    """
    low, high = weight_limits(bits)
    width = int(torch.bincount(index).max())
    place = _places(index)
    groups = int(index.max()) + 1
    cells = weight.new_zeros(*weight.shape[:2], groups, width)
    cells[:, :, index, place] = weight
    costs = weight.new_zeros(weight.shape[0], 1, groups, width)
    costs[:, 0, index, place] = importance
    top, bottom = cells.amax(-1), cells.amin(-1)
    cover = torch.maximum(top / high, bottom / low)  # the smallest scale that clips nothing
    turned = torch.maximum(-bottom / high, top / -low)  # the same on the grid turned round
    bases = [cover, -turned] if signed else [cover]
    candidates = [base * factor for base in bases for factor in factors]

    def best_of(scales: list[Tensor]) -> Tensor:
        best = error = None
        for tried in scales:
            step = tried.unsqueeze(-1)
            values = encode_shifted(cells, step, torch.zeros_like(step), low, high).mul_(step)
            total = values.sub_(cells).square_().mul_(costs).sum(-1)
            if best is None or error is None:
                best, error = tried, total
            else:
                better = total < error
                best, error = torch.where(better, tried, best), torch.where(better, total, error)
        assert best is not None
        return best

    if not whole:
        stored = ScaleFormat.covering(torch.stack(bases))
        return best_of([stored.round(scales) for scales in candidates]), stored
    free = best_of([_apart(scales) for scales in candidates])
    multiples = MultiplierFormat.covering(free, bits)
    return best_of(multiples.candidates(free)), multiples


def _apart(scales: Tensor) -> Tensor:
    """Scales of either sign, not zero."""
    return scales.abs().clamp(min=EPS).copysign(scales)


def nearest_codes(weight: Tensor, scales: Tensor, index: Tensor, bits: int) -> Rounded:
    """Plain rounding to nearest."""
    step = scales[..., index]
    return Rounded(_encode(weight, step, bits), scales, index)


def compensated_codes(
    weight: Tensor, hessian: Tensor, scales: Tensor, index: Tensor, bits: int
) -> Rounded:
    """Round the columns one by one, each with the errors of those before it moved onto it.

    With H = M M^T, M lower triangular, the error e H e^T of a row is the sum over i of
    M_ii^2 (e_i + sum over j > i of e_j M_ji / M_ii)^2. Taken from the last column to the first,
    every term is made as small as rounding allows. This is GPTQ without the inverse of H: its
    updates are the same numbers (Chee et al., QuIP, NeurIPS 2023).
    """
    columns = weight.shape[2]
    order = hessian.diagonal(dim1=1, dim2=2).mean(0).argsort()  # the largest H_kk comes last
    lower = cholesky(hessian[:, order.unsqueeze(1), order])
    wanted = weight[..., order].mT.contiguous()  # [G, K, O]: a column is a run in memory
    step = scales[..., index[order]].mT.contiguous()
    codes, errors = torch.empty_like(wanted), torch.empty_like(wanted)
    pivots = lower.diagonal(dim1=1, dim2=2).unsqueeze(1)  # [G, 1, K]
    for stop in range(columns, 0, -BLOCK):
        start = max(0, stop - BLOCK)
        share = lower[:, start:, start:stop] / pivots[..., start:stop]
        moved = share[:, stop - start :].mT @ errors[:, stop:]
        for k in range(stop - 1, start - 1, -1):
            at = k - start
            inside = share[:, at + 1 : stop - start, at].unsqueeze(1) @ errors[:, k + 1 : stop]
            column = wanted[:, k] + moved[:, at] + inside[:, 0]
            codes[:, k] = _encode(column, step[:, k], bits)
            errors[:, k] = wanted[:, k] - codes[:, k] * step[:, k]
    return Rounded(codes[:, order.argsort()].mT.contiguous(), scales, index)


def refine(
    rounded: Rounded, weight: Tensor, hessian: Tensor, bits: int, scale_format: Format, sweeps: int
) -> Rounded:
    """Coordinate descent over codes and scales, `sweeps` times."""
    index = rounded.index
    codes, scales = rounded.codes.mT.contiguous(), rounded.scales.mT.contiguous()
    for _ in range(sweeps):
        step = scales[:, index]
        pull = hessian @ (codes * step - weight.mT)  # [G, K, O]: half the gradient of the error
        _descend_codes(codes, step, pull, hessian, bits)
        _descend_scales(codes, scales, pull, hessian, index, scale_format)
    return Rounded(codes.mT.contiguous(), scales.mT.contiguous(), index)


def quadratic_error(values: Tensor, weight: Tensor, hessian: Tensor) -> float:
    """Sum over all rows of (W_hat - W*) H (W_hat - W*)^T."""
    off = values - weight
    return float(((off @ hessian) * off).sum())


def _descend_codes(codes: Tensor, step: Tensor, pull: Tensor, hessian: Tensor, bits: int) -> None:
    """Give every code [G, K, O] its best value in turn; `pull` follows."""
    columns = codes.shape[1]
    diagonal = hessian.diagonal(dim1=1, dim2=2).clamp(min=1e-30)
    for start in range(0, columns, BLOCK):
        stop = min(start + BLOCK, columns)
        moves = torch.empty_like(codes[:, start:stop])
        for k in range(start, stop):
            at = k - start
            inside = hessian[:, k, start:k].unsqueeze(1) @ moves[:, :at]
            size = step[:, k]
            local = pull[:, k] + inside[:, 0]
            new = _encode(codes[:, k] * size - local / diagonal[:, k, None], size, bits)
            moves[:, at] = (new - codes[:, k]) * size
            codes[:, k] = new
        pull += hessian[:, :, start:stop] @ moves


def _descend_scales(
    codes: Tensor,
    scales: Tensor,
    pull: Tensor,
    hessian: Tensor,
    index: Tensor,
    scale_format: Format,
) -> None:
    """Give every scale [G, groups, O] its best value in turn; `pull` follows for later groups."""
    ends = torch.bincount(index).cumsum(0).tolist()  # groups are runs of columns
    for group, (start, stop) in enumerate(zip([0, *ends], ends, strict=False)):
        part = codes[:, start:stop]
        slope = (part * pull[:, start:stop]).sum(1)
        bend = ((hessian[:, start:stop, start:stop] @ part) * part).sum(1)
        wanted = scales[:, group] - slope / bend.clamp(min=1e-30)
        change = scale_format.round(wanted.unsqueeze(-1)).squeeze(-1) - scales[:, group]
        # the scale that can be stored is not the optimum: it must still be an improvement
        gain = 2 * change * slope + change.square() * bend
        change = torch.where((gain < 0) & (bend > 0), change, torch.zeros_like(change))
        scales[:, group] += change
        pull[:, stop:] += hessian[:, stop:, start:stop] @ (change.unsqueeze(1) * part)


def _encode(weight: Tensor, step: Tensor, bits: int) -> Tensor:
    return encode_shifted(weight, step, torch.zeros_like(step), *weight_limits(bits))


def _places(index: Tensor) -> Tensor:
    """Position of each column within its group [K]; groups are runs of columns."""
    first = torch.searchsorted(index, index)
    return torch.arange(len(index)) - first
