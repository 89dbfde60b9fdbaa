"""The stream of training batches: batch `step` depends on the config and `step` only.

So a resumed run sees exactly the batches that the interrupted one would have seen, whatever
the number of background workers.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import traceback
from multiprocessing.context import SpawnProcess
from typing import Any

import numpy as np

from codtdq.errors import DataError
from codtdq.lab.interrupt import interrupts_held
from codtdq.lab.orphans import die_with_parent
from codtdq.lab.training.config import TrainConfig
from codtdq.lab.training.sources import Source, build_source

Batch = tuple[np.ndarray, np.ndarray]  # images uint8 [B, S, S, 3], masks uint8 [B, S, S]

_QUEUED = 6  # batches that each worker prepares ahead
_POLL_SECONDS = 2.0


class BatchMaker:
    """Makes the batch of any step; holds the decoded photos and generated images."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.sources: list[Source] = [
            build_source(spec, config.size, seed=config.seed, reuse=config.synth_reuse)
            for spec in config.sources
        ]
        weights = np.array([spec.weight for spec in config.sources])
        self.shares = weights / weights.sum()

    def batch(self, step: int) -> Batch:
        """Return the images and masks of one step."""
        first = step * self.config.batch_size
        pairs = [self._sample(first + i) for i in range(self.config.batch_size)]
        return np.stack([image for image, _ in pairs]), np.stack([mask for _, mask in pairs])

    def _sample(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng([self.config.seed, index])
        which = int(rng.choice(len(self.sources), p=self.shares))
        return self.sources[which].draw(rng, index * float(self.shares[which]))


class BatchStream:
    """Batches in order from `start` to `stop`, prepared ahead by background processes.

    Worker w of n makes the steps s with s % n == w, and each has a queue of its own, so the
    order never depends on timing.
    """

    def __init__(self, config: TrainConfig, start: int, stop: int) -> None:
        self.step, self.stop = start, stop
        self._maker = BatchMaker(config) if config.workers == 0 else None
        self._queues: list[Any] = []
        self._processes: list[SpawnProcess] = []
        # spawn: a fork of a process that runs torch threads can hang
        context = multiprocessing.get_context("spawn")
        for worker in range(config.workers):
            offset = (worker - start) % config.workers
            steps = range(start + offset, stop, config.workers)
            ready = context.Queue(maxsize=_QUEUED)
            process = context.Process(
                target=_work, args=(config.to_dict(), steps, ready, os.getpid()), daemon=True
            )
            with interrupts_held():  # an interpreter that starts would die of it
                process.start()
            self._queues.append(ready)
            self._processes.append(process)

    def next(self) -> Batch:
        """Return the next batch."""
        assert self.step < self.stop
        step, self.step = self.step, self.step + 1
        if self._maker is not None:
            return self._maker.batch(step)
        worker = step % len(self._queues)
        while True:
            try:
                made, payload = self._queues[worker].get(timeout=_POLL_SECONDS)
            except queue.Empty:
                if not self._processes[worker].is_alive():
                    raise DataError(
                        "a training worker ended without a message (out of memory?); "
                        "resume with fewer workers"
                    ) from None
                continue
            if isinstance(payload, str):
                raise DataError(f"a training worker failed: {payload}")
            assert made == step
            return payload

    def close(self) -> None:
        """End the workers."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()
        self._processes, self._queues = [], []

    def __enter__(self) -> BatchStream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _work(config: dict[str, Any], steps: range, ready: Any, parent: int) -> None:
    die_with_parent(parent)
    # signals to the trainer's process group are for the trainer: it decides when workers end
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    try:
        maker = BatchMaker(TrainConfig.from_dict(config))
        for step in steps:
            ready.put((step, maker.batch(step)))
        ready.put((-1, "no steps left"))
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{error} ({type(error).__name__} in {place.name})"
        ready.put((-1, message))
