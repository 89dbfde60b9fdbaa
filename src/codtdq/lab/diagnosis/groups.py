"""What one input of one operator says about its tokens and groups.

What the quantizer returns is taken from there (`ActivationResult`). Where its ranges are wider
than a token, or where a method returns only x_hat, the token itself is the group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from codtdq.lab.diagnosis.boundary import BOUNDARY, ELSEWHERE
from codtdq.numerics import ActivationResult
from codtdq.numerics.affine import STD_EPS
from codtdq.numerics.grouping import Groups
from codtdq.numerics.projection import group_std

Floats = NDArray[np.floating]

MEDIAN_TOKENS = 64  # D(X) takes its medians over at most so many evenly spaced tokens
CONSTANT = 2 * STD_EPS  # a smaller deviation is that of a constant group, which has no eta
# Variance over power under which sums in float32 lose digits that the deviation needs.
FLAT = 0.1
# What is summed over groups. The first rows are also wanted by token, so they lie together.
SUMS = "step x live lost signal noise magnitude rho0 eta defined groups".split()
_BY_TOKEN = 5
BLOCK = 2048
KEPT_MARKS = 8  # labels of grids that are looked at in turn
_NAN = np.float32(math.nan)


@dataclass(frozen=True)
class Observation:
    """One input of one operator.

    x, x_hat: tokens [N, C] before and after quantization, float32.
    result: what the quantizer returned; None for methods that only give x_hat.
    labels: int8 [N] (see `boundary.label`); None where the tokens' places are not known.
    """

    x: Tensor
    x_hat: Tensor
    result: ActivationResult | None = None
    labels: Tensor | None = None

    @property
    def grouped(self) -> bool:
        """Whether the quantizer's groups are parts of tokens."""
        return self.result is not None and self.result.spec.mode == "per_token_group"


class Measured(NamedTuple):
    """One input in numbers. G = N * K groups: K parts of each token, or the tokens (K = 1)."""

    channels: int
    parts: int  # K
    sums: NDArray[np.float32]  # [SUMS, G]; see `Observer.observe`
    sigma: Floats  # [G]
    eta: Floats  # [G]; NaN for constant groups
    clip: Floats  # [G]; 0 where the groups are not the quantizer's
    peak: Floats  # max |x| of each token, [N]
    of_tokens: tuple[Floats, Floats]  # mean step of each token over its deviation; rho_0: [N]
    products: tuple[float, float]  # sums of x_hat^2 and x x_hat

    def of(self, name: str) -> NDArray[np.float32]:
        """Return one row of the sums: [G]."""
        row: NDArray[np.float32] = self.sums[SUMS.index(name)]
        return row


class Observer:
    """Measures inputs, with one buffer for all: fresh memory would cost more than the sums."""

    def __init__(self) -> None:
        self._buffer: NDArray[np.float32] = np.empty(0, np.float32)
        self._one: NDArray[np.float32] = np.ones(1024, np.float32)
        self._marks: dict[tuple[int, int], tuple[Tensor | None, NDArray[np.float32]]] = {}

    def by_label(self, found: Measured, labels: Tensor | None) -> NDArray[np.float64]:
        """Sums over all groups, those of boundary-heavy tokens, those of non-boundary ones.

        [3, SUMS]; float32 within `BLOCK` groups, where counts of elements are exact, then float64.
        """
        marks = self._of_groups(labels, len(found.peak), found.parts)
        sums = np.zeros((3, len(SUMS)))
        for start in range(0, marks.shape[1], BLOCK):
            block = slice(start, start + BLOCK)
            sums += marks[:, block] @ found.sums[:, block].T
        return sums

    def _of_groups(self, labels: Tensor | None, tokens: int, parts: int) -> NDArray[np.float32]:
        """1 for each group, those of boundary-heavy tokens, those of non-boundary ones: [3, G].

        Operators on the same grid share their labels, so the last ones are kept.
        """
        key = (-tokens if labels is None else id(labels), parts)
        if key not in self._marks:
            if len(self._marks) == KEPT_MARKS:
                self._marks.clear()
            marks = np.zeros((3, tokens * parts), np.float32)
            marks[0] = 1
            if labels is not None:
                of_groups = np.repeat(labels.numpy(), parts)
                np.equal(of_groups, BOUNDARY, out=marks[1])
                np.equal(of_groups, ELSEWHERE, out=marks[2])
            self._marks[key] = labels, marks  # labels that are kept cannot lend others their id
        return self._marks[key][1]

    def observe(self, seen: Observation) -> Measured:
        """Measure one input.

        Rows of the sums, for each group: step (NaN where a scheme has none); sum of x; elements
        that are not zero; those of them that became zero; sums of x^2, (x - x_hat)^2 and |x|;
        rho_0; eta (0 for constant groups, which have none); 1 if there is an eta; 1.
        Sums along groups are products with a vector of ones, several times faster than reductions
        of such short rows.
        """
        result, (tokens, channels) = seen.result, seen.x.shape
        size = min(result.spec.group_size, channels) if seen.grouped and result else channels
        x, x_hat = _rows(seen.x, size), _rows(seen.x_hat, size)
        space, ones = self._space(x.shape), self._ones(size)
        array, work = x.numpy(), space.numpy()
        table = np.empty((len(SUMS), len(x)), np.float32)
        step, total, live, lost, signal, noise, magnitude, rho0, eta, defined, groups = table
        groups.fill(1)
        np.matmul(array, ones, out=total)
        np.einsum("gn,gn->g", array, array, out=signal)
        np.matmul(torch.ne(x, 0, out=space).numpy(), ones, out=live)
        if result is None:  # other schemes may move a zero; the quantizer's grids hold it
            torch.logical_and(x, x_hat, out=space)
        else:
            torch.ne(x_hat, 0, out=space)
        np.matmul(work, ones, out=lost)
        np.subtract(live, lost, out=lost)
        np.divide(lost, np.maximum(live, 1), out=rho0)
        torch.sub(x, x_hat, out=space)
        np.einsum("gn,gn->g", work, work, out=noise)
        torch.abs(x, out=space)
        np.matmul(work, ones, out=magnitude)
        peaks = space.amax(1)
        counts = _counts(tokens, channels, size)
        if seen.grouped and result is not None:
            step[:] = result.step.numpy().reshape(-1)
            if result.spec.literal:  # counts padding and zeros as well
                sigma, clip = result.sigma.numpy().reshape(-1), result.clip_rate.numpy()
                rho0[:] = result.zero_mass.numpy().reshape(-1)
            else:
                sigma = _deviation(x, total, signal, counts)
                torch.gt(space, result.radius.reshape(-1, 1), out=space)
                clip = np.matmul(work, ones)
                clip /= counts
        else:
            step.fill(math.nan if result is None else float(result.step.mean()))
            sigma, clip = _deviation(x, total, signal, counts), np.zeros(1, np.float32)
        found = np.divide(step, sigma, out=eta)
        defined.fill(1)
        if result is None or not np.minimum.reduce(sigma) >= CONSTANT:
            np.greater_equal(sigma, CONSTANT if result is not None else math.inf, out=defined)
            found = np.where(defined, eta, _NAN)
            eta[defined == 0] = 0
        of_tokens: tuple[Floats, Floats] = found, rho0
        parts = len(x) // tokens
        if parts > 1:
            peaks = peaks.view(tokens, parts).amax(1)
            by_token = np.matmul(table[:_BY_TOKEN].reshape(-1, parts), self._ones(parts))
            of_tokens = _of_tokens(by_token.reshape(_BY_TOKEN, -1), channels, parts)
        return Measured(
            channels=channels,
            parts=parts,
            sums=table,
            sigma=sigma,
            eta=found,
            clip=clip.reshape(-1),
            peak=peaks.numpy(),
            of_tokens=of_tokens,
            products=_products(array, x_hat.numpy()),
        )

    def channels(self, seen: Observation) -> tuple[Floats, Floats]:
        """Return the zero-bin mass and clip rate of ranges per channel: float32 [C].

        The numbers are the result's own, whose properties walk the channels against the memory's
        order.
        """
        result, space = seen.result, self._space(seen.x.shape)
        assert result is not None
        ones = self._ones(len(space))
        live = np.matmul(ones, torch.ne(seen.x, 0, out=space).numpy())
        kept = np.matmul(ones, torch.ne(seen.x_hat, 0, out=space).numpy())
        torch.abs(seen.x, out=space)
        over = np.zeros_like(live)
        if bool((space.amax(0) > result.radius).any()):
            over = np.matmul(ones, torch.gt(space, result.radius, out=space).numpy())
        return (live - kept) / np.maximum(live, 1), over / np.float32(len(space))

    def share_beyond(self, seen: Observation, radius: float) -> float:
        """Return the share of all elements outside one radius."""
        magnitude = torch.abs(seen.x, out=self._space(seen.x.shape))
        return np.count_nonzero(magnitude.numpy() > radius) / magnitude.numel()

    def _space(self, shape: torch.Size) -> Tensor:
        count = shape.numel()
        if self._buffer.size < count:
            self._buffer = np.empty(count, np.float32)
        return torch.from_numpy(self._buffer[:count].reshape(shape))

    def _ones(self, count: int) -> NDArray[np.float32]:
        if len(self._one) < count:
            self._one = np.ones(count, np.float32)
        return self._one[:count]


def _rows(x: Tensor, size: int) -> Tensor:
    """Return the tokens [N, C] as groups [N * K, size]; zeros fill the last group of each token."""
    if x.shape[1] == size:
        return x
    short = -x.shape[1] % size
    return (F.pad(x, (0, short)) if short else x).reshape(-1, size)


def _counts(tokens: int, channels: int, size: int) -> Floats | float:
    """Return the elements of each group without padding: one number if all have as many, or [G]."""
    if channels % size == 0:
        return float(size)
    counts = np.full((tokens, -(-channels // size)), size, np.float32)
    counts[:, -1] = channels % size
    return counts.reshape(-1)


def _products(x: Floats, x_hat: Floats) -> tuple[float, float]:
    flat, flat_hat = x.reshape(-1), x_hat.reshape(-1)
    return float(np.dot(flat_hat, flat_hat)), float(np.dot(flat, flat_hat))


def _deviation(
    x: Tensor, total: Floats, signal: Floats, counts: Floats | float
) -> NDArray[np.float32]:
    """Standard deviation of each group [G], plus 1e-12: that of the quantizer, from its sums.

    Where the mean outweighs it so much that the sums are not precise enough, the quantizer's own
    function looks at the elements again.
    """
    squares = np.square(total)
    squares /= counts
    np.subtract(signal, squares, out=squares)  # about the mean
    flat = np.flatnonzero(squares <= np.float32(FLAT) * signal)
    np.maximum(squares, 0, out=squares)
    squares /= counts
    sigma: NDArray[np.float32] = np.sqrt(squares, out=squares)
    sigma += np.float32(STD_EPS)
    if flat.size:
        flat = flat[signal[flat] > 0]  # groups of zeros are done
        valid = None
        if isinstance(counts, np.ndarray):
            valid = torch.arange(x.shape[1]) < torch.from_numpy(counts[flat])[:, None]
        sigma[flat] = group_std(Groups(x[torch.from_numpy(flat)], valid)).numpy()
    return sigma


def _of_tokens(sums: Floats, channels: int, parts: int) -> tuple[Floats, Floats]:
    """Eta and rho_0 [N] of tokens of several groups from the first rows of the sums [5, N]."""
    step, total, live, lost, signal = sums
    squares = signal - np.square(total) / channels  # about the mean
    squares[squares <= 1e-6 * signal] = math.nan  # float32 cannot tell it from a constant
    return step / (parts * np.sqrt(squares / channels)), lost / np.maximum(live, 1)


def zeroed_share(seen: Observation) -> Tensor:
    """The share of each token's non-zero channels that became zero: float [N]."""
    live = seen.x != 0
    return (live & (seen.x_hat == 0)).sum(1) / live.sum(1).clamp(min=1)


def disparity(x: Tensor, peak: float) -> float:
    """D(X) = max |x| / median_t median_c |x| (Eq. range_disparity); NaN if the median is 0.

    x: tokens [N, C], peak: max |x|. The medians run over at most `MEDIAN_TOKENS` evenly spaced
    tokens, the maximum over all.
    """
    spacing = -(-len(x) // MEDIAN_TOKENS)
    ordered = np.sort(np.abs(x.numpy()[::spacing]), axis=1)
    channels = ordered.shape[1]
    medians = np.sort(ordered[:, (channels - 1) // 2] + ordered[:, channels // 2])
    median = float(medians[(len(medians) - 1) // 2] + medians[len(medians) // 2]) / 4
    return peak / median if median > 0 else math.nan
