from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from codtdq.errors import DataError
from codtdq.lab.training import SourceSpec, TrainConfig
from codtdq.lab.training.stream import BatchMaker, BatchStream


def test_batches_depend_on_the_step_only(config: TrainConfig) -> None:
    straight = BatchMaker(config)
    wanted = [straight.batch(step) for step in range(6)]
    with BatchStream(config, 3, 6) as stream:
        for step in range(3, 6):
            for got, expected in zip(stream.next(), wanted[step]):
                np.testing.assert_array_equal(got, expected)
    assert not np.array_equal(wanted[0][0], wanted[1][0])
    other = BatchMaker(dataclasses.replace(config, seed=1)).batch(0)
    assert not np.array_equal(other[0], wanted[0][0])


def test_workers_keep_the_order(config: TrainConfig) -> None:
    maker = BatchMaker(config)
    with BatchStream(dataclasses.replace(config, workers=2), 3, 8) as stream:
        processes = list(stream._processes)
        for step in range(3, 8):
            for got, expected in zip(stream.next(), maker.batch(step)):
                np.testing.assert_array_equal(got, expected)
    assert not any(process.is_alive() for process in processes)


def test_a_failing_worker_tells_why(config: TrainConfig, tmp_path_factory) -> None:
    folder = tmp_path_factory.mktemp("broken")
    (folder / "photo.jpg").write_bytes(b"nonsense")
    broken = dataclasses.replace(
        config, workers=1, sources=(SourceSpec(kind="compose", path=str(folder)),)
    )
    with BatchStream(broken, 0, 4) as stream, pytest.raises(DataError, match=r"photo\.jpg"):
        stream.next()


def test_shares_follow_the_weights(config: TrainConfig) -> None:
    source = config.sources[0]
    mixed = dataclasses.replace(config, sources=(source, dataclasses.replace(source, weight=3.0)))
    maker = BatchMaker(mixed)
    counts = [0, 0]

    class Counting:
        def __init__(self, which: int) -> None:
            self.which = which

        def draw(self, rng: np.random.Generator, position: float):
            counts[self.which] += 1
            return np.zeros((2, 2, 3), np.uint8), np.zeros((2, 2), np.uint8)

    maker.sources = [Counting(0), Counting(1)]
    for step in range(100):
        maker.batch(step)
    assert sum(counts) == 400
    assert counts[1] / 400 == pytest.approx(0.75, abs=0.07)
