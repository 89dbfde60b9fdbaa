"""Two networks that run side by side and stop together before every operator.

Calibration images go through the float network and through the one that is being quantized, a few
images per stream. A stream is a thread that sleeps at an operator with nothing but its living
tensors in memory; only one stream runs at a time. When all streams wait at the same operator, its
inputs in the quantized network and its outputs in the float network can be read as often as
needed, and the streams go on once it is fitted. So an image runs once through each network,
however many operators there are, as long as its stream is kept.

Lanes may be fewer than the batches (`run`): where tensors are large some are ended, and where
more are wanted new ones run through what is fitted to where the others are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.errors import CalibrationError
from codtdq.operators.observing import run_model


class _Stopped(BaseException):
    """Ends a stream from outside; not an Exception, so that no model swallows it."""


class Stream:
    """One batch on its way through one model."""

    def __init__(self, model: nn.Module, batch: Any) -> None:
        self.at: str | None = None  # operator where it waits
        self.tensor: Tensor | None = None  # what it shows there
        self.done = False
        self._error: BaseException | None = None
        self._go, self._halted = threading.Semaphore(0), threading.Semaphore(0)
        self._end = False
        self._thread = threading.Thread(target=self._run, args=(model, batch), daemon=True)
        self._thread.start()

    def advance(self) -> None:
        """Run to the next stop, or to the end."""
        if self.done:
            return
        self.at = self.tensor = None
        self._go.release()
        self._halted.acquire()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End the stream wherever it is."""
        self._end = True
        self._go.release()
        self._thread.join()

    def pause(self, name: str, tensor: Tensor) -> None:
        """Called inside the stream's own thread, by a hook: wait at an operator."""
        self.at, self.tensor = name, tensor
        self._halted.release()
        self._go.acquire()
        if self._end:
            raise _Stopped

    def _run(self, model: nn.Module, batch: Any) -> None:
        self._go.acquire()
        _current.stream = self
        try:
            if not self._end:
                with torch.no_grad():
                    run_model(model, batch)
        except _Stopped:
            pass
        except BaseException as error:  # handed to whoever advances the stream
            self._error = error
        self.done = True
        self._halted.release()


_current = threading.local()


class PairedRun:
    """All streams of both models. Use as a context manager: it ends the streams."""

    def __init__(
        self,
        floating: nn.Module,
        quantized: nn.Module,
        names: Sequence[str],
        batches: list[Any],
        count: int | None = None,
    ) -> None:
        self._pending = set(names)
        self._order = {name: i for i, name in enumerate(names)}
        self._handles = []
        for name in names:
            module = floating.get_submodule(name)
            self._handles.append(module.register_forward_hook(self._after(name)))
            module = quantized.get_submodule(name)
            self._handles.append(
                module.register_forward_pre_hook(self._before(name), with_kwargs=True)
            )
        self._models, self._batches = (floating, quantized), batches
        self.streams: list[tuple[Stream, Stream]] = []
        self.run(len(batches) if count is None else count)

    def __enter__(self) -> PairedRun:
        return self

    def __exit__(self, *exc: object) -> None:
        self.run(0)
        for handle in self._handles:
            handle.remove()

    def run(self, count: int) -> None:
        """Have the first `count` streams, at most one per batch: end others, or start new ones."""
        while len(self.streams) > count:
            for stream in self.streams.pop():
                stream.stop()
        for batch in self._batches[len(self.streams) : count]:
            floating, quantized = self._models
            self.streams.append((Stream(floating, batch), Stream(quantized, batch)))

    def advance(self) -> None:
        """Bring all streams to an operator that is not settled, or to their end."""
        for pair in self.streams:
            for stream in pair:
                while not stream.done and (stream.at is None or stream.at not in self._pending):
                    stream.advance()

    def stops(self) -> Iterator[str]:
        """Names of operators, each when all streams that reach it next wait there."""
        while True:
            self.advance()
            waiting = {
                stream.at for pair in self.streams for stream in pair if stream.at is not None
            }
            if not waiting:
                return
            name = min(waiting, key=lambda n: self._order[n])
            yield name
            self._pending.discard(name)

    def pairs(self, name: str) -> list[tuple[Tensor, Tensor]]:
        """(input in the quantized network, output in the float one) of each stream at a stop."""
        found = [
            (second.tensor, first.tensor)
            for first, second in self.streams
            if first.at == name and second.at == name
        ]
        if not found:
            raise CalibrationError(f"the two networks never reach {name} with the same images")
        return [(x, y) for x, y in found if x is not None and y is not None]

    def _before(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            stream = getattr(_current, "stream", None)
            if stream is not None and name in self._pending:
                stream.pause(name, (args[0] if args else kwargs["input"]).detach())

        return hook

    def _after(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Tensor) -> None:
            stream = getattr(_current, "stream", None)
            if stream is not None and name in self._pending:
                stream.pause(name, output.detach())

        return hook
