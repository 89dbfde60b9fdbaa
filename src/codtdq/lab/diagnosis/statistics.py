"""All diagnostics of one operator's input, gathered image by image in bounded memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codtdq.lab.diagnosis.groups import (
    CONSTANT,
    SUMS,
    Floats,
    Measured,
    Observation,
    Observer,
    disparity,
)
from codtdq.lab.diagnosis.record import LayerRecord, Region, Summary
from codtdq.lab.diagnosis.streams import Mean, Streams
from codtdq.numerics.affine import STD_EPS, qmax_of
from codtdq.numerics.projection import INFEASIBLE_C1, INFEASIBLE_C2, Active

_NAN = math.nan
# the quantizer's groups, then the tokens
_SERIES = "step sigma eta rho0 clip token_range token_eta token_rho0"
_EMPTY = np.empty(0, np.float32)
_SHARES = "rho0 token_rho0"
_X, _SIGNAL = SUMS.index("x"), SUMS.index("signal")


class LayerStatistics:
    """What one operator's inputs amount to; every attribute has a fixed size."""

    def __init__(self, observer: Observer | None = None) -> None:
        self._observer = observer or Observer()  # one may serve many layers
        self.series = Streams(_SERIES, _SHARES)
        self.c_g, self.disparity = Mean(), Mean()
        # groups by what set the radius (first digit) and which bounds are infeasible
        self.bounds = np.zeros(len(Active) * (1 + INFEASIBLE_C1 + INFEASIBLE_C2), np.int64)
        # sums over all tokens, boundary-heavy ones, non-boundary ones
        self.sums = np.zeros((3, len(SUMS)))
        self.products = np.zeros(2)  # sums of x_hat^2 and x x_hat
        self.calls = self.channels = self.qmax = 0
        self.parts = 1  # groups of a token
        self.grouped = False

    def add(self, seen: Observation) -> None:
        """Take in one input."""
        found, result = self._observer.observe(seen), seen.result
        self.calls += 1
        self.channels, self.parts, self.grouped = found.channels, found.parts, seen.grouped
        sums = self._observer.by_label(found, seen.labels)
        self.sums += sums
        self.products += found.products
        signal, total = float(sums[0, _SIGNAL]), float(sums[0, _X])
        peak, spread = float(found.peak.max()), _spread(signal, total, seen.x.numel())
        own = _own_groups(seen, found, spread, peak, self._observer)
        of_tokens = [_EMPTY, _EMPTY] if self._tokens_are_groups else found.of_tokens
        self.series.add([*own, found.peak, *of_tokens])
        self.disparity.add(disparity(seen.x, peak))
        if result is not None:
            self.c_g.add(float(result.radius.numpy().max()) / spread)
            self.qmax = qmax_of(result.spec.bits)
            codes = result.active.numpy() + len(Active) * result.infeasible.numpy()
            self.bounds += np.bincount(codes.reshape(-1), minlength=self.bounds.size)

    @property
    def _tokens_are_groups(self) -> bool:
        """Whether each token is one group, so that nothing has to be counted twice."""
        return self.grouped and self.parts == 1

    def state_bytes(self) -> int:
        """Return the bytes of all arrays held: the same after one input and after a million."""
        parts = [self, self.series]
        arrays = [a for part in parts for a in vars(part).values() if isinstance(a, np.ndarray)]
        return sum(array.nbytes for array in arrays)

    def record(self, **facts: Any) -> LayerRecord:
        """Return the layer's record. facts: the fields that say which operator this is."""
        total = _named(self.sums[0])
        hat, dot = self.products.tolist()
        energy = math.sqrt(total["signal"] * hat)
        bounds = self.bounds.reshape(-1, len(Active))  # [infeasible, active]
        step = self.series.summary("step")
        # the step is the radius over q_max, group by group
        radius = Summary(*(value * self.qmax for value in vars(step).values()))
        groups = "" if self.grouped else "token_"
        tokens = "" if self._tokens_are_groups else "token_"
        return LayerRecord(
            calls=self.calls,
            radius=radius,
            step=step,
            sigma=self.series.summary("sigma"),
            eta=self.series.summary("eta"),
            rho0=self.series.summary("rho0"),
            clip=self.series.summary("clip"),
            c_g=self.c_g.value,
            disparity=self.disparity.value,
            disparity_defined=self.disparity.count / self.calls if self.calls else _NAN,
            sqnr_db=decibels(total["signal"], total["noise"]),
            cosine=min(dot / energy, 1.0) if energy else _NAN,
            active=_shares([kind.name.lower() for kind in Active], bounds.sum(0), bounds),
            infeasible=_shares(["c1", "c2"], _by_bit(bounds.sum(1)), bounds),
            boundary=self._region(1),
            elsewhere=self._region(2),
            token_eta=self.series.histogram(tokens + "eta", -6, 6, 4),
            token_rho0=self.series.share_histogram(tokens + "rho0"),
            group_eta=self.series.histogram(groups + "eta", -6, 6, 4),
            group_rho0=self.series.share_histogram(groups + "rho0"),
            token_range=self.series.histogram("token_range", -10, 12, 4),
            **facts,
        )

    def _region(self, label: int) -> Region | None:
        """Return the means over the tokens of one label; None without tokens."""
        found = _named(self.sums[label])
        groups = found["groups"]
        if not groups:
            return None
        tokens, step = round(groups) // self.parts, found["step"] / groups
        elements = tokens * self.channels
        return Region(
            tokens=tokens,
            eta=found["eta"] / found["defined"] if found["defined"] else _NAN,
            rho0=found["rho0"] / groups,
            step=step,
            eta_set=step / _spread(found["signal"], found["x"], elements),
            magnitude=found["magnitude"] / elements,
            zeroed=found["lost"] / found["live"] if found["live"] else 0.0,
            sqnr_db=decibels(found["signal"], found["noise"]),
        )


def _own_groups(
    seen: Observation, found: Measured, spread: float, peak: float, observer: Observer
) -> list[Floats]:
    """Step, sigma, eta, rho_0 and clip rate of the quantizer's groups; of tokens if it has none.

    Those of one range for the whole tensor follow from what is known of the tokens; the result's
    properties would go over the tensor again to give the same numbers.
    """
    result = seen.result
    if result is None:
        none = np.full(1, _NAN, np.float32)
        sigma = np.where(found.sigma < CONSTANT, none, found.sigma)
        return [none, sigma, none, found.of("rho0"), none]
    if result.spec.mode == "per_token_group":
        return [found.of("step"), found.sigma, found.eta, found.of("rho0"), found.clip]
    if result.spec.mode == "per_channel" or result.spec.literal:
        step, sigma, eta = (part.numpy() for part in (result.step, result.sigma, result.eta))
        if result.spec.literal:
            rho0, clip = result.zero_mass.numpy(), result.clip_rate.numpy()
        else:
            rho0, clip = observer.channels(seen)
        return [step, sigma, np.where(sigma < CONSTANT, np.float32(_NAN), eta), rho0, clip]
    live, lost = (float(found.of(name).sum(dtype=np.float64)) for name in ("live", "lost"))
    radius, one = float(result.radius), float(result.step)
    clipped = observer.share_beyond(seen, radius) if peak > radius else 0.0
    ratio = one / spread if spread > CONSTANT else _NAN
    values = (one, spread, ratio, lost / max(live, 1.0), clipped)
    return [np.array([value], np.float32) for value in values]


def _named(sums: NDArray[np.float64]) -> dict[str, float]:
    return dict(zip(SUMS, sums.tolist()))


def _spread(signal: float, total: float, elements: int) -> float:
    """Standard deviation, plus 1e-12, of elements whose squares and selves were summed."""
    variance = signal / elements - (total / elements) ** 2
    return math.sqrt(max(variance, 0.0)) + STD_EPS


def decibels(signal: float, noise: float) -> float:
    """10 log10(signal / noise); infinite if nothing is lost."""
    return math.inf if noise == 0 else 10 * math.log10(max(signal, 1e-300) / noise)


def _by_bit(counts: NDArray[np.int64]) -> list[int]:
    """Return the groups with each infeasible bit, from counts by infeasible code."""
    codes = range(len(counts))
    bits = (INFEASIBLE_C1, INFEASIBLE_C2)
    return [sum(int(counts[code]) for code in codes if code & bit) for bit in bits]


def _shares(names: list[str], counts: Any, bounds: NDArray[np.int64]) -> dict[str, float]:
    total = int(bounds.sum())
    return {n: int(c) / total for n, c in zip(names, counts)} if total else {}
