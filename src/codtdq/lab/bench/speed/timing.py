"""Time several candidates in turns, so that a busy moment of the machine hits all of them alike."""

from __future__ import annotations

import contextlib
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from codtdq.errors import ConfigError

SHORTEST_SAMPLE = 2e-3  # seconds; faster candidates are called several times per sample
WARM_UP = 2


class Clock:
    """Seconds on the wall, and seconds of processor time of all threads of this process."""

    def wall(self) -> float:
        """Return the elapsed time."""
        return time.perf_counter()

    def cpu(self) -> float:
        """Return the processor time."""
        return time.process_time()


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of a sample."""

    median: float
    q1: float
    q3: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the quartiles by linear interpolation; of one value, that value."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, q1, q3)

    def scaled(self, factor: float) -> Spread:
        """In another unit."""
        return Spread(self.median * factor, self.q1 * factor, self.q3 * factor)

    def to_dict(self) -> dict[str, float]:
        """Return the JSON-ready form."""
        return {"median": self.median, "q1": self.q1, "q3": self.q3}


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, sample by sample; sample i of all candidates is from round i."""

    walls: tuple[float, ...]
    cpus: tuple[float, ...]

    @property
    def wall(self) -> Spread:
        """Wall time of one call."""
        return Spread.of(self.walls)

    @property
    def cpu(self) -> Spread:
        """Processor time of one call, all threads together."""
        return Spread.of(self.cpus)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON-ready form, in milliseconds."""
        return {
            "wall_ms": self.wall.scaled(1e3).to_dict(),
            "cpu_ms": self.cpu.scaled(1e3).to_dict(),
            "repeats": len(self.walls),
        }


def speedup(baseline: Timing, other: Timing) -> Spread:
    """How many times faster `other` is: ratio of the medians; quartiles of the rounds' ratios."""
    rounds = Spread.of([b / o for b, o in zip(baseline.walls, other.walls)])
    return Spread(baseline.wall.median / other.wall.median, rounds.q1, rounds.q3)


def cpu_speedup(baseline: Timing, other: Timing) -> float:
    """Return the same in processor time, which a busy machine disturbs less."""
    return baseline.cpu.median / other.cpu.median if other.cpu.median else math.nan


def geometric_mean(values: Sequence[float]) -> float:
    """Of ratios, the mean for which twice as fast and half as fast cancel."""
    return statistics.geometric_mean(values)


def interleaved(
    candidates: Mapping[str, Callable[[], object]],
    *,
    seconds: float,
    min_repeats: int = 5,
    max_repeats: int = 1000,
    clock: Clock | None = None,
) -> dict[str, Timing]:
    """Time candidates in rounds of one sample each, after a warm-up, for about `seconds` in all.

    Rounds go through the candidates forth and back and begin with another one each time: nobody
    always runs in the cache that the same neighbour left behind.
    """
    clock = clock or Clock()
    names = list(candidates)
    walls: dict[str, list[float]] = {name: [] for name in names}
    cpus: dict[str, list[float]] = {name: [] for name in names}
    with _no_collection():
        calls = {name: _warm_up(run, clock) for name, run in candidates.items()}
        start, rounds = clock.wall(), 0
        while rounds < max_repeats and (rounds < min_repeats or clock.wall() - start < seconds):
            turn = rounds % len(names)
            order = names[turn:] + names[:turn]
            for name in order if rounds % 2 == 0 else reversed(order):
                wall, cpu = _sample(candidates[name], calls[name], clock)
                walls[name].append(wall)
                cpus[name].append(cpu)
            rounds += 1
    return {name: Timing(tuple(walls[name]), tuple(cpus[name])) for name in names}


def _warm_up(run: Callable[[], object], clock: Clock) -> int:
    """Fill caches and pools; returns how many calls a sample needs to be long enough."""
    for _ in range(WARM_UP):
        wall, _cpu = _sample(run, 1, clock)
    return max(1, math.ceil(SHORTEST_SAMPLE / max(wall, 1e-9)))


def _sample(run: Callable[[], object], calls: int, clock: Clock) -> tuple[float, float]:
    wall, cpu = clock.wall(), clock.cpu()
    for _ in range(calls):
        run()
    return (clock.wall() - wall) / calls, (clock.cpu() - cpu) / calls


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Python's cycle collector would run in whichever candidate happens to be measured."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def fixed_threads(count: int) -> Iterator[None]:
    """Give torch and the native engine exactly `count` threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check_threads(counts: Sequence[int], cores: int) -> list[int]:
    """Thread counts that can be measured: more threads than cores would only wait."""
    for count in counts:
        if not 1 <= count <= cores:
            raise ConfigError(f"threads is {count}; accepted: 1 to {cores}, the cores at hand")
    return list(dict.fromkeys(counts))
