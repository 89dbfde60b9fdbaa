"""Running statistics whose size does not depend on how much they have seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from codtdq.lab.diagnosis.record import Histogram, Summary

# The top bits of a float32 number are its octave and the place inside it: shifted to the right,
# they are the index of a bin. 2^5 bins per octave, from 2^-24 to 2^24.
PER_OCTAVE = 32
_SHIFT = 23 - 5
_LOWEST, _HIGHEST = -24, 24
_OFFSET = (127 + _LOWEST) * PER_OCTAVE
BINS = (_HIGHEST - _LOWEST) * PER_OCTAVE
SHARE_BINS = 50
BUFFER = 2**16  # numbers that may wait


class Streams:
    """Mean, extremes and a histogram over octaves of several series of numbers, none negative.

    NaN and infinities are not counted. Quantiles are the middle of their bin, within 1/64 of the
    true value, and exact where all numbers are equal; 0 stands for everything under 2^-24.
    """

    def __init__(self, names: str, shares: str | None = None) -> None:
        """shares: the names that `share_histogram` may be asked for; None stands for all."""
        self.names = names.split()
        rows = len(self.names)
        self._shared = set(self.names if shares is None else shares.split())
        self.count = np.zeros(rows, np.int64)
        self.total = np.zeros(rows)
        self.low, self.high = np.full(rows, np.inf), np.full(rows, -np.inf)
        self.counts = np.zeros((rows, BINS), np.int64)
        self.shares = np.zeros((rows, SHARE_BINS), np.int64)  # of numbers up to 1
        self._waiting: list[Sequence[NDArray[np.floating]]] = []
        self._numbers = 0

    def add(self, series: Sequence[NDArray[np.floating]]) -> None:
        """Take in one float32 array per name; it may be empty.

        They wait until there are `BUFFER` of them: small arrays cost by the call, not by size.
        """
        self._waiting.append(series)
        self._numbers += sum(values.size for values in series)
        if self._numbers > BUFFER:
            self.flush()

    def flush(self) -> None:
        """Count what waits, all series of the same length at once."""
        if not self._waiting:
            return
        rows = [[a.reshape(-1) for a in arrays] for arrays in zip(*self._waiting)]
        self._waiting, self._numbers = [], 0
        first = 0
        for size, same in groupby(sum(a.size for a in arrays) for arrays in rows):
            last = first + len(list(same))
            if size:
                values = np.concatenate([a for arrays in rows[first:last] for a in arrays])
                self._take(first, values.reshape(-1, size))
            first = last

    def _take(self, first: int, values: NDArray[np.float32]) -> None:
        """Count numbers [R, M] of the series from `first` on."""
        total = np.add.reduce(values, axis=1, dtype=np.float64)
        if not np.isfinite(total).all():  # some number is not; float64 holds any sum of float32
            for row, numbers in enumerate(values, first):
                finite = numbers[np.isfinite(numbers)]
                if finite.size:
                    self._take(row, finite[None])
            return
        rows = slice(first, first + len(values))
        self.count[rows] += values.shape[1]
        self.total[rows] += total
        self.low[rows] = np.minimum(self.low[rows], np.minimum.reduce(values, axis=1))
        self.high[rows] = np.maximum(self.high[rows], np.maximum.reduce(values, axis=1))
        bins = values.view(np.int32) >> _SHIFT
        bins -= _OFFSET
        np.minimum(np.maximum(bins, 0, out=bins), BINS - 1, out=bins)
        _count(self.counts[rows], bins)
        for row in [row for row in range(rows.start, rows.stop) if self.names[row] in self._shared]:
            # a share on an edge belongs to the bin above it
            parts = np.minimum(values[row - first] * SHARE_BINS + 1e-5, SHARE_BINS - 1)
            _count(self.shares[row : row + 1], parts.astype(np.int32)[None])

    def mean(self, name: str) -> float:
        """NaN of nothing."""
        self.flush()
        row = self.names.index(name)
        return float(self.total[row] / self.count[row]) if self.count[row] else math.nan

    def quantile(self, name: str, share: float) -> float:
        """Return the number that `share` of all numbers do not exceed."""
        self.flush()
        row = self.names.index(name)
        count = int(self.count[row])
        if not count:
            return math.nan
        rank = max(1, math.ceil(share * count - 1e-9))
        index = int(np.searchsorted(self.counts[row].cumsum(), rank))
        middle = (_edge(index) + _edge(index + 1)) / 2 if index else 0.0
        return min(max(middle, float(self.low[row])), float(self.high[row]))

    def summary(self, name: str) -> Summary:
        """Return the four numbers of a record."""
        self.flush()
        row = self.names.index(name)
        if not self.count[row]:
            return Summary()
        median, p95 = (self.quantile(name, share) for share in (0.5, 0.95))
        return Summary(self.mean(name), median, p95, float(self.high[row]))

    def histogram(self, name: str, low: int, high: int, per_octave: int) -> Histogram:
        """Return the counts from 2^low to 2^high; inside an octave the bins are equally wide."""
        self.flush()
        counts = self.counts[self.names.index(name)]
        step = PER_OCTAVE // per_octave
        first, last = (low - _LOWEST) * PER_OCTAVE, (high - _LOWEST) * PER_OCTAVE
        inner = counts[first:last].reshape(-1, step).sum(1)
        inner[0] += counts[:first].sum()
        inner[-1] += counts[last:].sum()
        edges = [_edge(index) for index in range(first, last + 1, step)]
        return Histogram(edges, [int(count) for count in inner])

    def share_histogram(self, name: str) -> Histogram:
        """Return the counts of a series of shares in equal bins from 0 to 1."""
        self.flush()
        edges = [index / SHARE_BINS for index in range(SHARE_BINS + 1)]
        return Histogram(edges, [int(count) for count in self.shares[self.names.index(name)]])


class Mean:
    """Mean of single numbers, those that do not exist left out."""

    def __init__(self) -> None:
        self.count, self.total = 0, 0.0

    def add(self, value: float) -> None:
        """Take in one number; NaN and infinities are not counted."""
        if math.isfinite(value):
            self.count += 1
            self.total += value

    @property
    def value(self) -> float:
        """NaN of nothing."""
        return self.total / self.count if self.count else math.nan


def _count(counts: NDArray[np.int64], bins: NDArray[np.int32]) -> None:
    """Add 1 to counts[row, bin] for each of the bins [R, M]; overwrites them."""
    bins += np.arange(len(bins), dtype=np.int32)[:, None] * np.int32(counts.shape[1])
    counts += np.bincount(bins.reshape(-1), minlength=counts.size).reshape(counts.shape)


def _edge(index: int) -> float:
    octave, part = divmod(index, PER_OCTAVE)
    return float(2.0 ** (_LOWEST + octave) * (1 + part / PER_OCTAVE))
