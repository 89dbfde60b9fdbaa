"""Calibration statistics of operator inputs, streamed and bounded.

Memory does not grow with the data: per-channel extremes, and at most ROW_VALUES values of sampled
token rows per operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.errors import CalibrationError
from codtdq.methods.workbench import Workbench, count_images, count_used
from codtdq.operators.observing import observing, run_batches, run_model
from codtdq.operators.tokens import input_tokens
from codtdq.planning.plan import Site

ROWS_PER_IMAGE = 64
See = Callable[[Site, Tensor, Tensor], None]  # (site, input, output)
ROW_VALUES = 1 << 20  # sampled values kept per operator: 4 MB


@dataclass
class InputStats:
    """What is kept of one operator's inputs."""

    low: Tensor  # [C] minimum over everything seen
    high: Tensor  # [C] maximum
    image_low: Tensor  # [I, C] minimum of each image (of each call)
    image_high: Tensor  # [I, C]
    rows: Tensor  # [R, C] sampled token rows
    positions: int = 0  # tokens of one image in one call; 1: a pooled vector

    @property
    def absmax(self) -> Tensor:
        """[C] largest magnitude."""
        return torch.maximum(self.low.abs(), self.high.abs())


class _Growing:
    """Rows [R, C] in one tensor that doubles when it is full.

    A list of small tensors, made between the large ones of a running network, would pin the memory
    that those free: gigabytes, over a hundred images.
    """

    def __init__(self, room: int) -> None:
        self._room, self._count = max(room, 1), 0
        self._tensor: Tensor | None = None

    def append(self, rows: Tensor) -> None:
        """Copy rows [n, C] to the end."""
        stop = self._count + len(rows)
        if self._tensor is None or stop > len(self._tensor):
            while stop > self._room:
                self._room *= 2
            grown = rows.new_empty(self._room, rows.shape[1])
            if self._tensor is not None:
                grown[: self._count] = self.rows
            self._tensor = grown
        self._tensor[self._count : stop] = rows
        self._count = stop

    @property
    def rows(self) -> Tensor:
        """All rows so far."""
        assert self._tensor is not None
        return self._tensor[: self._count]


class _Gather:
    def __init__(self, generator: torch.Generator, images: int) -> None:
        self._generator, self._images = generator, max(images, 1)
        self._low, self._high = _Growing(self._images), _Growing(self._images)
        self._rows: _Growing | None = None
        self._positions = 0

    def add(self, tokens: Tensor) -> None:
        """Take in tokens [B, N, C]."""
        if not tokens.numel():
            return
        self._positions = max(self._positions, tokens.shape[1])
        self._low.append(tokens.amin(1))
        self._high.append(tokens.amax(1))
        share = max(1, ROW_VALUES // (tokens.shape[-1] * self._images))
        count = min(ROWS_PER_IMAGE, share, tokens.shape[1])
        if self._rows is None:
            self._rows = _Growing(self._images * count)
        for image in tokens:
            pick = torch.randperm(image.shape[0], generator=self._generator)[:count]
            self._rows.append(image[pick])

    def stats(self, name: str) -> InputStats:
        """All that was gathered."""
        if self._rows is None:
            raise CalibrationError(f"no calibration batch reached {name}")
        low, high = self._low.rows, self._high.rows
        if not bool(low.isfinite().all() and high.isfinite().all()):
            raise CalibrationError(f"{name} got NaN or infinite inputs during calibration")
        rows = self._rows.rows
        return InputStats(low.amin(0), high.amax(0), low, high, rows, self._positions)


def collect_inputs(
    bench: Workbench, sites: Iterable[Site] | None = None, *, images: int | None = None
) -> dict[str, InputStats]:
    """One pass over the calibration images with hooks on all sites (or some).

    The model runs as it is at that moment: float, or quantized as far as it has been installed.
    """
    chosen = list(bench.sites if sites is None else sites)
    count = images or count_images(bench.calibration)
    gathers = {s.name: _Gather(bench.generator("rows", s.name), count) for s in chosen}

    def see(site: Site, x: Tensor, y: Tensor) -> None:
        gathers[site.name].add(input_tokens(site.module, x))

    observe(bench, chosen, see, images=images)
    # extremes see every value; whatever is searched on rows sees these at most
    bench.notes["sampled_rows"] = {"per_image": ROWS_PER_IMAGE, "values_per_operator": ROW_VALUES}
    return {name: gather.stats(name) for name, gather in gathers.items()}


def observe(
    bench: Workbench,
    sites: Iterable[Site],
    see: See,
    *,
    images: int | None = None,
    label: str = "calibrating",
) -> None:
    """Run the calibration images and call `see(site, input, output)` at every site.

    Streaming searches add up the error of each candidate in `see`; nothing is kept.
    """
    chosen = {site.name: site for site in sites}
    total = count_used(bench.calibration, images)
    modules = {name: site.module for name, site in chosen.items()}
    with observing(modules, lambda name, module, x, y: see(chosen[name], x, y)):
        run_batches(bench.model, bench.batches(images), label, total)


def initialise_in_order(
    bench: Workbench, sites: Iterable[Site], start: Callable[[Site, Tensor], None], batch: Tensor
) -> None:
    """One forward pass in which `start(site, input)` sets up each operator just before it first
    runs, so that later operators see what earlier ones, already quantized, give.
    """
    sites = list(sites)
    waiting = {site.name for site in sites}
    for site in sites:
        bench.install(site)  # still float: a class that changes under a running call comes too late

    def hook_for(site: Site) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            if site.name in waiting:
                waiting.discard(site.name)
                start(site, args[0] if args else kwargs["input"])

        return hook

    handles = [
        site.module.register_forward_pre_hook(hook_for(site), with_kwargs=True) for site in sites
    ]
    try:
        with torch.no_grad():
            run_model(bench.model, batch)
    finally:
        for handle in handles:
            handle.remove()
