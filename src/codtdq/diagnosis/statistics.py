"""All diagnostics of one operator's input, gathered image by image in bounded memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codtdq.diagnosis.boundary import BOUNDARY, ELSEWHERE
from codtdq.diagnosis.groups import CONSTANT, Floats, Observation, Observer, Tokens, disparity
from codtdq.diagnosis.record import LayerRecord, Region, Summary
from codtdq.diagnosis.streams import Mean, Streams
from codtdq.quantizer.affine import STD_EPS, qmax_of
from codtdq.quantizer.projection import INFEASIBLE_C1, INFEASIBLE_C2, Active

_NAN = math.nan
# the quantizer's groups, then the tokens
_SERIES = "step sigma eta rho0 clip token_eta token_range token_rho0"
_SUMS = "tokens step eta eta_groups rho0 magnitude x live lost signal noise".split()


class LayerStatistics:
    """What one operator's inputs amount to; every attribute has a fixed size."""

    def __init__(self, observer: Observer | None = None) -> None:
        self._observer = observer or Observer()  # one may serve many layers
        self.series = Streams(_SERIES)
        self.c_g, self.disparity = Mean(), Mean()
        # groups by what set the radius (first digit) and which bounds are infeasible
        self.bounds = np.zeros(len(Active) * (1 + INFEASIBLE_C1 + INFEASIBLE_C2), np.int64)
        # sums over all tokens, boundary-heavy ones, non-boundary ones
        self.sums = np.zeros((3, len(_SUMS)))
        self.products = np.zeros(2)  # sums of x_hat^2 and x x_hat
        self.calls = self.channels = self.qmax = 0
        self.grouped = False

    def add(self, seen: Observation) -> None:
        """Take in one input."""
        tokens, result = self._observer.observe(seen), seen.result
        self.calls += 1
        self.channels, self.grouped = tokens.channels, seen.grouped
        columns = _columns(tokens)
        total = columns.sum(1)
        self.sums[0] += total
        if seen.labels is not None:
            labels = seen.labels.numpy()
            marks = np.array([labels == BOUNDARY, labels == ELSEWHERE], np.float64)
            self.sums[1:] += marks @ columns.T
        x, x_hat = seen.x.reshape(-1).numpy(), seen.x_hat.reshape(-1).numpy()
        self.products += float(np.dot(x_hat, x_hat)), float(np.dot(x, x_hat))
        peak, spread = float(tokens.peak.max()), _spread(total, tokens.channels)
        lost, live = (tokens.lost, tokens.live)
        share = tokens.rho0 if live.shape[1] == 1 else lost.sum(1) / np.maximum(live.sum(1), 1)
        own = _own_groups(seen, tokens, spread, peak, self._observer)
        self.series.add([*own, tokens.token_eta(), tokens.peak, share])
        self.disparity.add(disparity(seen.x, peak))
        if result is not None:
            self.c_g.add(float(result.radius.max()) / spread)
            self.qmax = qmax_of(result.spec.bits)
            codes = (result.active + len(Active) * result.infeasible).numpy().reshape(-1)
            self.bounds += np.bincount(codes, minlength=self.bounds.size)

    def state_bytes(self) -> int:
        """Bytes of all arrays held: the same after one input and after a million."""
        parts = [self, self.series]
        arrays = [a for part in parts for a in vars(part).values() if isinstance(a, np.ndarray)]
        return sum(array.nbytes for array in arrays)

    def record(self, **facts: Any) -> LayerRecord:
        """The layer's record. facts: the fields that say which operator this is."""
        total = dict(zip(_SUMS, self.sums[0].tolist()))
        hat, dot = self.products.tolist()
        energy = math.sqrt(total["signal"] * hat)
        bounds = self.bounds.reshape(-1, len(Active))  # [infeasible, active]
        step = self.series.summary("step")
        # the step is the radius over q_max, group by group
        radius = Summary(*(value * self.qmax for value in vars(step).values()))
        prefix = "" if self.grouped else "token_"
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
            boundary=_region(self.sums[1], self.channels),
            elsewhere=_region(self.sums[2], self.channels),
            token_eta=self.series.histogram("token_eta", -6, 6, 4),
            token_rho0=self.series.share_histogram("token_rho0"),
            group_eta=self.series.histogram(prefix + "eta", -6, 6, 4),
            group_rho0=self.series.share_histogram(prefix + "rho0"),
            token_range=self.series.histogram("token_range", -10, 12, 4),
            **facts,
        )


def _own_groups(
    seen: Observation, tokens: Tokens, spread: float, peak: float, observer: Observer
) -> list[Floats]:
    """Step, sigma, eta, rho_0 and clip rate of the quantizer's groups; of tokens if it has none.

    Those of one range for the whole tensor follow from what is known of the tokens; the result's
    properties would go over the tensor again to give the same numbers.
    """
    result = seen.result
    if result is None:
        none = np.full(1, _NAN, np.float32)
        return [none, tokens.sigma, none, tokens.rho0, none]
    if result.spec.mode == "per_token_group":
        clip = observer.clip_rate(seen)
        return [tokens.step, tokens.sigma, tokens.eta, tokens.rho0, clip]
    if result.spec.mode == "per_channel" or result.spec.literal:
        step, sigma, eta = (part.numpy() for part in (result.step, result.sigma, result.eta))
        if result.spec.literal:
            rho0, clip = result.zero_mass.numpy(), result.clip_rate.numpy()
        else:
            rho0, clip = observer.channels(seen)
        return [step, sigma, np.where(sigma < CONSTANT, np.float32(_NAN), eta), rho0, clip]
    live, lost = float(tokens.live.sum()), float(tokens.lost.sum())
    clipped = float(result.clip_rate) if peak > float(result.radius) else 0.0
    one = float(result.step)
    ratio = one / spread if spread > CONSTANT else _NAN
    values = (one, spread, ratio, lost / max(live, 1.0), clipped)
    return [np.array([value], np.float32) for value in values]


def _columns(tokens: Tokens) -> NDArray[np.float64]:
    """What is summed, token by token: [sums, N]."""
    defined = np.isfinite(tokens.eta)
    parts = {
        "tokens": 1.0,
        "step": tokens.mean_step()[:, 0],
        "eta": np.where(defined, tokens.eta, np.float32(0)).sum(1),
        "eta_groups": defined.sum(1),
        "rho0": tokens.rho0.mean(1),
        "magnitude": tokens.magnitude,
        "x": tokens.sum,
        "live": tokens.live.sum(1),
        "lost": tokens.lost.sum(1),
        "signal": tokens.signal,
        "noise": tokens.noise,
    }
    columns = np.empty((len(_SUMS), len(tokens.sum)))
    for row, name in zip(columns, _SUMS):
        row[:] = parts[name]
    return columns


def _spread(sums: NDArray[np.float64], channels: int) -> float:
    """Standard deviation of all elements that were summed, plus 1e-12."""
    found = dict(zip(_SUMS, sums.tolist()))
    elements = found["tokens"] * channels
    variance = found["signal"] / elements - (found["x"] / elements) ** 2
    return math.sqrt(max(variance, 0.0)) + STD_EPS


def _region(sums: NDArray[np.float64], channels: int) -> Region | None:
    """Means over the tokens of one label; None without tokens."""
    found = dict(zip(_SUMS, sums.tolist()))
    tokens = int(found["tokens"])
    if not tokens:
        return None
    step, groups = found["step"] / tokens, found["eta_groups"]
    return Region(
        tokens=tokens,
        eta=found["eta"] / groups if groups else _NAN,
        rho0=found["rho0"] / tokens,
        step=step,
        eta_set=step / _spread(sums, channels),
        magnitude=found["magnitude"] / (tokens * channels),
        zeroed=found["lost"] / found["live"] if found["live"] else 0.0,
        sqnr_db=decibels(found["signal"], found["noise"]),
    )


def decibels(signal: float, noise: float) -> float:
    """10 log10(signal / noise); infinite if nothing is lost."""
    return math.inf if noise == 0 else 10 * math.log10(max(signal, 1e-300) / noise)


def _by_bit(counts: NDArray[np.int64]) -> list[int]:
    """Groups with each infeasible bit, from counts by infeasible code."""
    codes = range(len(counts))
    bits = (INFEASIBLE_C1, INFEASIBLE_C2)
    return [sum(int(counts[code]) for code in codes if code & bit) for bit in bits]


def _shares(names: list[str], counts: Any, bounds: NDArray[np.int64]) -> dict[str, float]:
    total = int(bounds.sum())
    return {n: int(c) / total for n, c in zip(names, counts)} if total else {}
