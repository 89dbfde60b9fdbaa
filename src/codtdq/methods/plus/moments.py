"""What the layer problem needs of the calibration data: second moments, never the data itself.

For an operator with inputs x_hat (quantized network, quantized) and wanted outputs y (float
network), rows of x_hat are laid out as the weight's rows are (tap by tap, channels innermost):

    H = sum x_hat x_hat^T [G, K, K]   C = sum x_hat y^T [G, K, O]   and the sums of x_hat, y, y^2

With them the squared output error of ANY weight is known, on the images that were added up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DAMPING = 0.01  # of the mean diagonal, where nothing else keeps H invertible


class Moments:
    """Sums over rows, for the G groups of an operator.

    Rows are counted from an origin (any row near their means): the covariances of inputs with a
    large offset would drown in the rounding of float32 sums otherwise.
    """

    def __init__(self, origin_x: Tensor, origin_y: Tensor) -> None:
        """Start at zero rows; origin_x: [G, K], origin_y: [G, O]."""
        (groups, columns), outputs = origin_x.shape, origin_y.shape[1]
        self.origin_x, self.origin_y = origin_x, origin_y
        self.rows = 0
        self.xx = torch.zeros(groups, columns, columns)
        self.xy = torch.zeros(groups, columns, outputs)
        self.x = torch.zeros(groups, columns)
        self.y = torch.zeros(groups, outputs)
        self.yy = torch.zeros(groups, outputs)

    def add(self, x: Tensor, y: Tensor) -> None:
        """Take in rows x [G, R, K] and y [G, R, O]."""
        x, y = x - self.origin_x.unsqueeze(1), y - self.origin_y.unsqueeze(1)
        self.rows += x.shape[1]
        self.xx.baddbmm_(x.mT, x)
        self.xy.baddbmm_(x.mT, y)
        self.x += x.sum(1)
        self.y += y.sum(1)
        self.yy += y.square().sum(1)

    def absorb(self, other: Moments) -> None:
        """Take in the sums of another, which has the same origin."""
        self.rows += other.rows
        for name in ("xx", "xy", "x", "y", "yy"):
            getattr(self, name).add_(getattr(other, name))

    def clear(self) -> None:
        """Let go of the large sums."""
        self.xx = self.xy = torch.zeros(0)

    def problem(self, bias: Tensor | None) -> Problem:
        """The layer problem per row: with a free bias (None), or with a fixed one [G, O]."""
        count = max(self.rows, 1)
        x, y = self.x / count, self.y / count
        # in place: of a wide convolution's [K, K] there is no room for many
        xx = _add_outer(self.xx / count, -x, x)
        xy = _add_outer(self.xy / count, -x, y)
        yy = (self.yy / count - y.square()).clamp(min=0)
        x, y = x + self.origin_x, y + self.origin_y
        if bias is not None:
            xx, xy = _add_outer(xx, x, x), _add_outer(xy, x, y - bias)
            yy = yy + (y - bias).square()
        return Problem(xx, xy, yy, x, y)


def _add_outer(matrix: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The matrix [G, I, J] after a [G, I] b [G, J] was added to it."""
    return matrix.baddbmm_(a.unsqueeze(2), b.unsqueeze(1))


@dataclass(frozen=True)
class Problem:
    """min over W [G, O, K] of the mean of |y - W x|^2 (moments centred where the bias is free)."""

    xx: Tensor
    xy: Tensor
    yy: Tensor
    mean_x: Tensor
    mean_y: Tensor

    def error(self, weight: Tensor) -> float:
        """Mean squared output error of W [G, O, K], summed over outputs."""
        bent = ((weight @ self.xx) * weight).sum(-1)
        return float((bent - 2 * (weight * self.xy.mT).sum(-1) + self.yy).sum())

    def level(self) -> Tensor:
        """Mean diagonal of each H [G, 1, 1]."""
        diagonal = self.xx.diagonal(dim1=1, dim2=2).mean(1)
        floor = (1e-4 * diagonal.mean()).clamp(min=1e-12)  # a dead channel: still invertible
        return diagonal.clamp(min=float(floor)).reshape(-1, 1, 1)

    def damped(self, share: float) -> Tensor:
        """H with `share` of the mean diagonal added to it."""
        found = self.xx.clone()
        found.diagonal(dim1=1, dim2=2).add_(share * self.level().squeeze(2))
        return found

    def ridge(self, weight: Tensor, share: float) -> Tensor:
        """The argmin of error(W') + share * mean diagonal * |W' - W|^2: the shifted target W*."""
        pulled = self.xy + share * self.level() * weight.mT
        return torch.cholesky_solve(pulled, cholesky(self.damped(share))).mT

    def means(self) -> Problem:
        """The same without its matrices: `bias` still works."""
        nothing = torch.zeros(0)
        return Problem(nothing, nothing, nothing, self.mean_x, self.mean_y)

    def bias(self, weight: Tensor) -> Tensor:
        """The bias [G, O] that makes the mean outputs equal."""
        return self.mean_y - (weight @ self.mean_x.unsqueeze(-1)).squeeze(-1)


def cholesky(matrix: Tensor) -> Tensor:
    """The lower factor [G, K, K]; float64 where float32 sums are too rough for float32."""
    lower, failed = torch.linalg.cholesky_ex(matrix)
    # what is not finite reaches the diagonal: its sums go over whole rows
    if bool(failed.any()) or not bool(lower.diagonal(dim1=1, dim2=2).isfinite().all()):
        lower = torch.linalg.cholesky(matrix.double()).to(matrix.dtype)
    return lower


def input_rows(module: nn.Module, tokens: Tensor, shape: torch.Size) -> Tensor:
    """Rows [G, R, K] that the weight rows of an operator multiply.

    tokens: x_hat [B, N, C]; shape: of the input they came from.
    """
    if isinstance(module, nn.Linear):
        return tokens.reshape(1, -1, tokens.shape[-1])
    assert isinstance(module, nn.Conv2d | nn.Conv1d)
    maps = tokens.transpose(1, 2).unflatten(2, shape[2:])
    around = tuple(module._reversed_padding_repeated_twice)
    mode = module.padding_mode
    maps = F.pad(maps, around, mode="constant" if mode == "zeros" else mode)
    kernel, stride, dilation = module.kernel_size, module.stride, module.dilation
    if isinstance(module, nn.Conv1d):
        maps = maps.unsqueeze(2)
        kernel, stride, dilation = (1, *kernel), (1, *stride), (1, *dilation)
    columns = F.unfold(maps, kernel, dilation=dilation, stride=stride)  # [B, C * taps, L]
    taps, groups = math.prod(kernel), module.groups
    cut = columns.unflatten(1, (groups, -1, taps))  # [B, G, C / G, taps, L]
    return cut.permute(1, 0, 4, 3, 2).flatten(3).flatten(1, 2)


def output_rows(module: nn.Module, y: Tensor) -> Tensor:
    """Outputs as rows [G, R, O / G], in the order of `input_rows`."""
    if isinstance(module, nn.Linear):
        return y.reshape(1, -1, y.shape[-1])
    groups = int(getattr(module, "groups", 1))
    return y.flatten(2).unflatten(1, (groups, -1)).permute(1, 0, 3, 2).flatten(1, 2)
