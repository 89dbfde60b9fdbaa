"""What one input of one operator says about its tokens and groups.

What the quantizer returns is taken from there (`ActivationResult`). Where its ranges are wider
than a token, or where a method returns only x_hat, the token itself is the group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from codtdq.quantizer import ActivationResult
from codtdq.quantizer.affine import STD_EPS
from codtdq.quantizer.grouping import Groups
from codtdq.quantizer.projection import group_std

Floats = NDArray[np.floating]

MEDIAN_TOKENS = 64  # D(X) takes its medians over at most so many evenly spaced tokens
CONSTANT = 2 * STD_EPS  # a smaller deviation is that of a constant group, which has no eta
FLAT = 1e-6  # variance over power under which float32 sums cannot tell a token from a constant


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


@dataclass(frozen=True)
class Tokens:
    """Sums over the channels of each token [N], and statistics of the groups in it [N, K]."""

    channels: int
    sum: Floats
    magnitude: Floats  # sum of |x|
    peak: Floats  # max |x|
    signal: Floats  # sum of x^2
    noise: Floats  # sum of (x - x_hat)^2
    live: Floats  # [N, K], elements that are not zero
    lost: Floats  # [N, K], those of them that became zero
    rho0: Floats  # [N, K]
    step: Floats  # [N, K], or a number that all share; NaN where a scheme has no step
    eta: Floats  # [N, K]; NaN for constant groups
    sigma: Floats  # [N, K]

    def mean_step(self) -> Floats:
        """Mean step of each token."""
        return self.step if self.step.shape[1] == 1 else self.step.mean(1, keepdims=True)

    def token_eta(self) -> Floats:
        """Eta of whole tokens: their mean step over their deviation, [N]."""
        if self.eta.shape[1] == 1:
            return self.eta[:, 0]
        sigma = token_sigma(self.sum, self.signal, self.channels)
        return self.mean_step()[:, 0] / sigma


class Observer:
    """Measures inputs, with one buffer for all: fresh memory would cost more than the sums."""

    def __init__(self) -> None:
        self._buffer: NDArray[np.float32] = np.empty(0, np.float32)

    def observe(self, seen: Observation) -> Tokens:
        """Measure one input."""
        x, x_hat, result = seen.x, seen.x_hat, seen.result
        tokens, channels = x.shape
        own = result is not None and result.spec.mode == "per_token_group"
        size = min(result.spec.group_size, channels) if own and result else channels
        live, kept = self._nonzero(x, size), self._nonzero(x_hat, size)
        if result is None:  # other schemes may move a zero; the quantizer's grids hold it
            kept = ((x_hat != 0) & (x != 0)).sum(1, dtype=torch.float32).numpy()[:, None]
        lost = live - kept
        rho0 = lost / np.maximum(live, 1)
        magnitude = torch.abs(x, out=self._space(x.shape))
        magnitudes, peak = magnitude.sum(1).numpy(), magnitude.amax(1).numpy()
        noise = torch.sub(x, x_hat, out=self._space(x.shape)).numpy()
        total, array = x.sum(1).numpy(), x.numpy()
        signal = np.einsum("nc,nc->n", array, array)
        if own and result is not None:
            step = result.step.numpy().reshape(tokens, -1)
            if _short(result, channels):
                sigma = group_std(Groups(x[:, None], None)).numpy()
            else:
                sigma = result.sigma.numpy().reshape(tokens, -1)
            eta = np.where(sigma < CONSTANT, np.float32(math.nan), step / sigma)
            if result.spec.literal:  # counts padding and zeros as well
                rho0 = result.zero_mass.numpy().reshape(tokens, -1)
        else:
            mean = math.nan if result is None else float(result.step.mean())
            step = np.full((1, 1), mean, np.float32)
            sigma = token_sigma(total, signal, channels)[:, None]
            eta = step / sigma
        return Tokens(
            channels=channels,
            sum=total,
            magnitude=magnitudes,
            peak=peak,
            signal=signal,
            noise=np.einsum("nc,nc->n", noise, noise),
            live=live,
            lost=lost,
            rho0=rho0,
            step=step,
            eta=eta,
            sigma=sigma,
        )

    def channels(self, seen: Observation) -> tuple[Floats, Floats]:
        """Zero-bin mass and clip rate of ranges per channel: float32 [C].

        The numbers are the result's own, whose properties walk the channels against the memory's
        order.
        """
        result = seen.result
        assert result is not None
        live = torch.ne(seen.x, 0, out=self._space(seen.x.shape)).sum(0)
        kept = torch.ne(seen.x_hat, 0, out=self._space(seen.x.shape)).sum(0)
        magnitude = torch.abs(seen.x, out=self._space(seen.x.shape))
        clipped = bool((magnitude.amax(0) > result.radius).any())
        clip = result.clip_rate if clipped else torch.zeros_like(live)
        return ((live - kept) / live.clamp(min=1)).numpy(), clip.numpy()

    def clip_rate(self, seen: Observation) -> Floats:
        """Clip rate of token groups, the result's own: float32 [N, K]."""
        result, channels = seen.result, seen.x.shape[1]
        assert result is not None
        if not _short(result, channels):
            return result.clip_rate.numpy()
        space = self._space(seen.x.shape)
        radius = result.radius.reshape(-1, 1)
        over = torch.gt(torch.abs(seen.x, out=space), radius, out=space)
        return (over.sum(1) / channels).numpy()

    def _space(self, shape: torch.Size) -> Tensor:
        count = shape.numel()
        if self._buffer.size < count:
            self._buffer = np.empty(count, np.float32)
        return torch.from_numpy(self._buffer[:count]).view(shape)

    def _nonzero(self, x: Tensor, size: int) -> Floats:
        """Elements of each group that are not zero: float32 [N, K]."""
        short = -x.shape[1] % size
        groups = (F.pad(x, (0, short)) if short else x).reshape(len(x), -1, size)
        # as floats, which add up several times faster than booleans
        return torch.ne(groups, 0, out=self._space(groups.shape)).sum(-1).numpy()


def _short(result: ActivationResult, channels: int) -> bool:
    """Whether a token is one group that the quantizer fills up with padding.

    Padding takes part in no statistic, but the result's properties carry it along: three
    channels in a group of 32 cost ten times what they should.
    """
    return channels < result.spec.group_size and not result.spec.literal


def token_sigma(total: Floats, signal: Floats, channels: int) -> Floats:
    """Standard deviation of each token from its sums [N], float32; NaN for constant tokens."""
    power = signal.astype(np.float64) / channels
    variance = power - np.square(total.astype(np.float64) / channels)
    variance[variance <= FLAT * power] = math.nan
    return np.sqrt(variance).astype(np.float32)


def disparity(x: Tensor, peak: float) -> float:
    """D(X) = max |x| / median_t median_c |x| (Eq. range_disparity); NaN if the median is 0.

    x: tokens [N, C], peak: max |x|. The medians run over at most `MEDIAN_TOKENS` evenly spaced
    tokens, the maximum over all.
    """
    spacing = -(-len(x) // MEDIAN_TOKENS)
    ordered = np.sort(np.abs(x[::spacing].numpy()), axis=1)
    channels = ordered.shape[1]
    medians = np.sort(ordered[:, (channels - 1) // 2] + ordered[:, channels // 2])
    median = float(medians[(len(medians) - 1) // 2] + medians[len(medians) // 2]) / 4
    return peak / median if median > 0 else math.nan
