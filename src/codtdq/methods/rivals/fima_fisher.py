"""The block loss of FIMA-Q: a diagonal plus low-rank estimate of the Fisher information.

With L = KL(p_FP || p_Q), the gradient at a perturbed block output is g = dL/dz_hat ~ F delta,
delta = z_hat - z: Fisher information enters linearly in the KL gradient. Rows of |g| and |delta|,
each a mean over the calibration images, are stacked to G and D [k, N]:

    diagonal   L_d = mean_i delta_i^2 gbar_i,  gbar = mean of the rows of G
    low rank   L_r = a (D D^T)^-1 a^T,         a = |delta| G^T  [1, k]
    DPLR       L   = L_r / L_r0 + L_d / L_d0

L0 is the value on the first mini-batch after a refresh, so L starts at exactly 2.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from codtdq.errors import UnsupportedError

TEMPERATURE = 20.0  # logits are divided by it before the distribution is formed
DAMPING = 1e-6  # of D D^T, whose rows may be nearly equal, relative to its mean diagonal
TINY = 1e-30  # floor of a normaliser: a block without error has nothing to learn


class RowMeans:
    """Means of |g| and |delta| over images (axis 0 of what is added), as rows [N].

    N is every value of an output while that is at most `values` and all outputs have one shape;
    otherwise the channels, each a mean over its positions.
    """

    def __init__(self, values: int) -> None:
        self._limit = values
        self._sums: dict[tuple[int, ...], tuple[Tensor, int]] = {}  # [2, ...] and images, by shape

    def add(self, gradient: Tensor, delta: Tensor) -> None:
        """Take in a batch of outputs [B, ...]."""
        key = tuple(gradient.shape[1:])
        pair = torch.stack([gradient.abs().sum(0), delta.abs().sum(0)])
        if math.prod(key) > self._limit:
            pair = by_channel(pair)
        known, count = self._sums.get(key, (torch.zeros_like(pair), 0))
        self._sums[key] = known + pair, count + len(gradient)

    @property
    def pooled(self) -> bool:
        """Whether the rows are per channel."""
        return len(self._sums) != 1 or any(math.prod(key) > self._limit for key in self._sums)

    def rows(self) -> tuple[Tensor, Tensor]:
        """(|g|, |delta|), each [N]."""
        total = sum(count for _, count in self._sums.values())
        parts = [s.flatten(1) if not self.pooled else by_channel(s) for s, _ in self._sums.values()]
        mean = torch.stack(parts).sum(0) / max(total, 1)
        return mean[0], mean[1]


def by_channel(x: Tensor) -> Tensor:
    """[B, ...] -> [B, C]: axis 1 of maps [B, C, H, W] is the channels, the last one of tokens."""
    if x.ndim <= 2:
        return x
    return x.mean((2, 3)) if x.ndim == 4 else x.flatten(1, -2).mean(1)


class FisherLoss:
    """DPLR loss of one block. Rows come by `refresh`, before the first call at the latest."""

    def __init__(self, *, pooled: bool = False) -> None:
        """pooled: whether rows are per channel; an output is then pooled to its channels too."""
        self.pooled = pooled
        self._gradients: list[Tensor] = []  # rows [N]
        self._deltas: list[Tensor] = []
        self._inverse = torch.zeros(0)  # of D D^T, [k, k]
        self._start: tuple[Tensor, Tensor] | None = None  # (L_r0, L_d0)

    @property
    def rank(self) -> int:
        """k, the rows so far."""
        return len(self._gradients)

    def refresh(self, gradient: Tensor, delta: Tensor) -> None:
        """Add a pair of rows [N] (means of |g| and |delta|) and start the normalisation anew.

        An output that the mask does not depend on has no gradient: all its values count alike.
        """
        unused = not bool(gradient.abs().amax() > 0)
        self._gradients.append(torch.ones_like(gradient) if unused else gradient.abs())
        self._deltas.append(delta.abs())
        self._start = None
        rows = torch.stack(self._deltas).double()
        gram = rows @ rows.T
        if self.rank == 1:  # a quotient, no inversion
            self._inverse = gram.clamp(min=TINY).reciprocal().float()
            return
        damping = (DAMPING * gram.trace() / self.rank).clamp(min=TINY)
        gram = gram + damping * torch.eye(self.rank, dtype=gram.dtype)
        self._inverse = torch.linalg.inv(gram).float()

    def parts(self, z_hat: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """(L_r, L_d) of outputs [B, ...], means over the batch."""
        delta = z_hat - z
        gradients = torch.stack(self._gradients)
        a = self._as_rows(delta.abs()) @ gradients.T  # [B, k]
        low_rank = ((a @ self._inverse) * a).sum(1).mean()
        diagonal = (self._as_rows(delta.square()) * gradients.mean(0)).mean()
        return low_rank, diagonal

    def __call__(self, z_hat: Tensor, z: Tensor) -> Tensor:
        """DPLR loss of a mini-batch."""
        low_rank, diagonal = self.parts(z_hat, z)
        if self._start is None:
            self._start = (low_rank.detach().clamp(min=TINY), diagonal.detach().clamp(min=TINY))
        return low_rank / self._start[0] + diagonal / self._start[1]

    def _as_rows(self, x: Tensor) -> Tensor:
        return by_channel(x) if self.pooled else x.reshape(len(x), -1)


class DivergenceLoss:
    """For a block that gives the logits themselves: their KL divergence, which starts at 2 too."""

    def __init__(self) -> None:
        self._start: Tensor | None = None

    def __call__(self, z_hat: Tensor, z: Tensor) -> Tensor:
        """Loss of a mini-batch."""
        value = divergence(z_hat, z)
        if self._start is None:
            self._start = value.detach().clamp(min=TINY)
        return 2 * value / self._start


def output_logits(model: nn.Module, outputs: Any) -> Tensor:
    """The logits that define the distribution: the declared mask, or the first tensor."""
    declared = getattr(getattr(model, "info", None), "mask_logits", None)
    if callable(declared):
        logits: Tensor = declared(outputs)
        return logits
    found = next((t for t in tree_leaves(outputs) if isinstance(t, Tensor)), None)
    if found is None:
        raise UnsupportedError(f"{type(model).__name__} returned no tensor; FIMA-Q needs logits")
    return found


def divergence(logits: Tensor, target: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """KL(p_FP || p_Q), mean over images and positions, of logits [B, C, ...] and float targets.

    One channel: each position is a Bernoulli(sigmoid(logit)). More: a softmax over the channels.
    """
    # near each other the two cross entropies cancel: float32 would leave only noise
    logits, target = logits.double() / temperature, target.detach().double() / temperature
    if logits.ndim < 2 or logits.shape[1] == 1:
        p = target.sigmoid()
        entropy = F.binary_cross_entropy_with_logits(target, p)
        return (F.binary_cross_entropy_with_logits(logits, p) - entropy).float()
    kl = F.kl_div(logits.log_softmax(1), target.log_softmax(1), reduction="none", log_target=True)
    return kl.sum(1).mean().float()
