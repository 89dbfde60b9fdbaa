"""Builds competitors of one float network at one input shape."""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor, nn

from codtdq.errors import UnsupportedError
from codtdq.lab.bench.speed.competitors.network import LONGEST_NOTE, Calibration, Network
from codtdq.lab.bench.speed.competitors.registry import COMPETITORS
from codtdq.lab.bench.speed.competitors.runtime import Competitor, Runtime
from codtdq.lab.text import one_line


class Bench:
    """Competitors of one float network at one input shape; exported files live in the block."""

    def __init__(
        self, model: nn.Module, images: Tensor, calibration: Calibration | None = None
    ) -> None:
        self._model, self._images, self._calibration = model, images, calibration
        self._network: Network | None = None

    def __enter__(self) -> Bench:
        self._folder = tempfile.TemporaryDirectory(prefix="codtdq-compare-")
        return self

    def __exit__(self, *error: object) -> None:
        self._network = None
        self._folder.cleanup()

    def build(self, name: str, threads: int) -> Competitor:
        """Make a competitor ready to run with so many threads, and run it once."""
        network = self._opened()
        begin = time.perf_counter()
        try:
            with _quiet():
                runtime = COMPETITORS[name].build(network, threads)
                images = runtime.prepare(self._images)
                outputs = runtime.forward(images)
            seconds = time.perf_counter() - begin
            difference = network.difference(outputs)
        except UnsupportedError as error:
            return Competitor(None, reason=str(error))
        # any failure inside someone else's compiler is a fact about it, not about this run
        except Exception as error:
            return Competitor(None, reason=one_line(error, LONGEST_NOTE))
        return Competitor(
            runtime,
            run=lambda: runtime.forward(images),
            logits=lambda others: _logits(network, runtime, others),
            build_seconds=seconds,
            difference=difference,
        )

    def _opened(self) -> Network:
        if self._network is None:
            folder = Path(self._folder.name)
            self._network = Network(self._model, self._images, folder, self._calibration)
        return self._network


def _logits(network: Network, runtime: Runtime, images: Tensor) -> Tensor:
    return network.mask(runtime.forward(runtime.prepare(images)))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Compilers and exporters talk a lot; what matters of it is raised."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    sink = io.StringIO()
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(sink),
            contextlib.redirect_stderr(sink),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
