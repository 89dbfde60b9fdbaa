"""Timer arithmetic, on a clock that the candidates themselves move."""

import gc

import pytest
import torch

from codtdq.errors import ConfigError
from codtdq.lab.bench.speed import timing
from codtdq.lab.bench.speed.timing import Spread, Timing, interleaved


class FakeClock:
    def __init__(self):
        self.now, self.used, self.order = 0.0, 0.0, []

    def wall(self):
        return self.now

    def cpu(self):
        return self.used

    def candidate(self, name, *seconds, threads=1):
        """Takes the given seconds in turn, the last one from then on."""
        left = list(seconds)

        def run():
            spent = left.pop(0) if len(left) > 1 else left[0]
            self.now += spent
            self.used += threads * spent
            self.order.append(name)

        return run


def test_median_and_quartiles_of_known_samples():
    spread = Spread.of([4.0, 1.0, 3.0, 2.0, 5.0])
    assert (spread.q1, spread.median, spread.q3) == (2.0, 3.0, 4.0)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0)
    assert Spread(1, 2, 3).scaled(10) == Spread(10, 20, 30)


def test_warm_up_is_not_counted_and_cpu_time_is_that_of_all_threads():
    clock = FakeClock()
    slow = clock.candidate("slow", 9.0, 9.0, 1.0, 2.0, 6.0, threads=2)
    found = interleaved({"slow": slow}, seconds=0, min_repeats=3, clock=clock)["slow"]
    assert found.walls == (1.0, 2.0, 6.0)
    assert found.wall.median == 2.0 and found.cpu.median == 4.0
    assert found.to_dict()["wall_ms"]["median"] == 2000.0 and found.to_dict()["repeats"] == 3


def test_rounds_alternate_direction_and_first_candidate():
    clock = FakeClock()
    names = ["a", "b", "c"]
    interleaved(
        {name: clock.candidate(name, 1.0) for name in names}, seconds=0, min_repeats=4, clock=clock
    )
    measured = clock.order[timing.WARM_UP * 3 :]
    rounds = ["".join(measured[i : i + 3]) for i in range(0, 12, 3)]
    assert rounds == ["abc", "acb", "cab", "cba"]


def test_the_time_limit_ends_the_rounds():
    clock = FakeClock()
    pair = {"a": clock.candidate("a", 1.0), "b": clock.candidate("b", 3.0)}
    found = interleaved(pair, seconds=10, min_repeats=1, clock=clock)
    assert len(found["a"].walls) == 3  # 4, 8 and 12 seconds
    found = interleaved(pair, seconds=1e9, max_repeats=2, clock=clock)
    assert len(found["b"].walls) == 2


def test_short_candidates_are_called_until_a_sample_is_long_enough():
    clock = FakeClock()
    step = timing.SHORTEST_SAMPLE / 4
    found = interleaved({"a": clock.candidate("a", step)}, seconds=0, min_repeats=2, clock=clock)
    assert len(clock.order) == timing.WARM_UP + 2 * 4
    assert found["a"].wall.median == pytest.approx(step)


def test_speed_up_is_the_ratio_of_medians_with_quartiles_of_the_rounds():
    fp32 = Timing((8.0, 10.0, 12.0), (8.0, 10.0, 12.0))
    int4 = Timing((2.0, 5.0, 6.0), (4.0, 4.0, 4.0))
    ratio = timing.speedup(fp32, int4)
    assert ratio.median == 2.0
    assert (ratio.q1, ratio.q3) == (2.0, 3.0)  # rounds: 4, 2, 2
    assert timing.cpu_speedup(fp32, int4) == 2.5
    assert timing.geometric_mean([4.0, 1.0, 2.0]) == pytest.approx(2.0)


def test_threads_and_collector_are_put_back():
    before = torch.get_num_threads()
    with timing.fixed_threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before

    def fail():
        raise ValueError

    with pytest.raises(ValueError):
        interleaved({"a": fail}, seconds=0)
    assert gc.isenabled()


def test_more_threads_than_cores_are_refused():
    assert timing.check_threads([1, 2, 1], 2) == [1, 2]
    for count in (0, 3):
        with pytest.raises(ConfigError, match="accepted: 1 to 2"):
            timing.check_threads([count], 2)
