"""Calibration: run a float model over some batches and keep bounded statistics of its operators.

Memory does not grow with the data: per-channel sums, at most 256 input-output rows per Linear,
one radius per static site.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.errors import CalibrationError
from codtdq.numerics import grouping
from codtdq.numerics.projection import project
from codtdq.operators.observing import observing, run_batches
from codtdq.operators.tokens import input_tokens
from codtdq.planning.plan import QuantPlan, Site

MAX_ROWS = 4096  # rows of one input that enter the channel statistics (S4.8)
MAX_PAIRS = 256  # input-output rows kept per Linear (S4.8)
Job = Callable[[nn.Module, Tensor, Tensor], None]  # (module, input, output)


@dataclass
class ChannelStats:
    """Streaming per-channel statistics of an operator's input."""

    absmax: Tensor | None = None  # [C]
    rows: int = 0
    _abs_sum: Tensor | None = None
    _square_sum: Tensor | None = None

    def update(self, rows: Tensor) -> None:
        """Take in rows [N, C]."""
        if not rows.numel():
            return
        magnitude = rows.double().abs()
        if self.absmax is None or self._abs_sum is None or self._square_sum is None:
            self.absmax = rows.new_zeros(rows.shape[1], dtype=torch.float32)
            self._abs_sum = rows.new_zeros(rows.shape[1], dtype=torch.float64)
            self._square_sum = rows.new_zeros(rows.shape[1], dtype=torch.float64)
        self.absmax = torch.maximum(self.absmax, magnitude.amax(0).float())
        self._abs_sum += magnitude.sum(0)
        self._square_sum += magnitude.square().sum(0)
        self.rows += rows.shape[0]

    @property
    def mean_abs(self) -> Tensor:
        """Mean of |x| per channel."""
        if self._abs_sum is None:
            raise CalibrationError("no batch reached this operator: it has no statistics")
        return (self._abs_sum / self.rows).float()

    @property
    def rms(self) -> Tensor:
        """Root mean square per channel."""
        if self._square_sum is None:
            raise CalibrationError("no batch reached this operator: it has no statistics")
        return (self._square_sum / self.rows).sqrt().float()


@dataclass
class RadiusStats:
    """Running maximum and mean of the radii that the quantizer would choose, batch by batch."""

    batches: int = 0
    _maximum: Tensor | None = None
    _total: Tensor | None = None

    def update(self, radius: Tensor) -> None:
        """Take in the radii of one batch, [1] or [C]."""
        if self._maximum is None or self._total is None:
            self._maximum, self._total = radius.clone(), torch.zeros_like(radius).double()
        self._maximum = torch.maximum(self._maximum, radius)
        self._total += radius.double()
        self.batches += 1

    def reduced(self, how: str, name: str) -> Tensor:
        """One fixed radius from those of all batches: "max" or "mean"."""
        assert self._maximum is not None and self._total is not None
        radius = self._maximum if how == "max" else (self._total / self.batches).float()
        if not bool(radius.isfinite().all()):
            raise CalibrationError(f"{name} got NaN or infinite inputs during calibration")
        return radius


@dataclass
class PairReservoir:
    """A uniform sample of at most `capacity` input-output rows of a Linear."""

    capacity: int = MAX_PAIRS
    seen: int = 0
    x: Tensor | None = None  # [n, C]
    y: Tensor | None = None  # [n, O]
    _generator: torch.Generator = field(
        default_factory=lambda: torch.Generator().manual_seed(0), repr=False
    )

    def update(self, x: Tensor, y: Tensor) -> None:
        """Offer rows; reservoir sampling keeps each with the same chance."""
        for start in range(0, x.shape[0], MAX_ROWS):
            self._offer(x[start : start + MAX_ROWS], y[start : start + MAX_ROWS])

    def _offer(self, x: Tensor, y: Tensor) -> None:
        if self.x is None or self.y is None:
            self.x = x.new_zeros((self.capacity, x.shape[1]))
            self.y = y.new_zeros((self.capacity, y.shape[1]))
        order = torch.arange(self.seen, self.seen + x.shape[0])
        draw = torch.rand(x.shape[0], generator=self._generator, dtype=torch.float64)
        slot = torch.where(order < self.capacity, order, (draw * (order + 1)).long())
        for row in torch.nonzero(slot < self.capacity).flatten().tolist():
            self.x[slot[row]], self.y[slot[row]] = x[row], y[row]
        self.seen += x.shape[0]

    def rows(self) -> tuple[Tensor, Tensor]:
        """The sample: x [n, C], y [n, O]."""
        assert self.x is not None and self.y is not None
        count = min(self.seen, self.capacity)
        return self.x[:count], self.y[:count]


class CalibrationContext:
    """Collect statistics while it is open: `with CalibrationContext(model) as stats: model(x)`.

    channels: per-channel absmax, mean_abs and rms of Linear inputs; `conv=True` adds convolutions.
    pairs: input-output rows of every Linear, for `io_correction`.
    radii: for the static sites of a plan, the radius that the quantizer would choose per batch.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        channels: bool = True,
        conv: bool = False,
        pairs: bool = False,
        plan: QuantPlan | None = None,
    ) -> None:
        self.channels: dict[str, ChannelStats] = {}
        self.pairs: dict[str, PairReservoir] = {}
        self.radii: dict[str, RadiusStats] = {}
        self._model = model
        self._want = (channels, conv, pairs)
        self._static = {s.name: s for s in plan or () if s.static}
        self._jobs: dict[str, list[Job]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> CalibrationContext:
        channels, conv, pairs = self._want
        for name, module in self._model.named_modules():
            linear = isinstance(module, nn.Linear)
            counted = linear or (conv and isinstance(module, nn.Conv2d | nn.Conv1d))
            jobs: list[Job] = []
            if channels and counted:
                jobs.append(self._channel_job(name))
            if pairs and linear:
                jobs.append(self._pair_job(name))
            if name in self._static:
                jobs.append(self._radius_job(self._static[name]))
            if jobs:
                self._jobs[name] = jobs
        modules = {name: self._model.get_submodule(name) for name in self._jobs}
        self._stack.enter_context(observing(modules, self._see))
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _see(self, name: str, module: nn.Module, x: Tensor, y: Tensor) -> None:
        for job in self._jobs[name]:
            job(module, x, y)

    def _channel_job(self, name: str) -> Job:
        stats = self.channels.setdefault(name, ChannelStats())

        def job(module: nn.Module, x: Tensor, y: Tensor) -> None:
            stats.update(_subsample(_token_rows(module, x)))

        return job

    def _pair_job(self, name: str) -> Job:
        pairs = self.pairs.setdefault(name, PairReservoir())

        def job(module: nn.Module, x: Tensor, y: Tensor) -> None:
            pairs.update(x.float().reshape(-1, x.shape[-1]), y.float().reshape(-1, y.shape[-1]))

        return job

    def _radius_job(self, site: Site) -> Job:
        radii = self.radii.setdefault(site.name, RadiusStats())
        spec = site.activation
        assert spec is not None

        def job(module: nn.Module, x: Tensor, y: Tensor) -> None:
            if x.numel():
                tokens = _token_rows(module, x)
                radii.update(project(grouping.split(tokens, spec), spec).radius)

        return job


def run_calibration(
    model: nn.Module, batches: Iterable[Any], context: CalibrationContext
) -> CalibrationContext:
    """Run the float model over the batches inside `context`."""
    with context:
        run_batches(model, batches)
    return context


def _token_rows(module: nn.Module, x: Tensor) -> Tensor:
    """Any operator's input as rows [N, C]."""
    return input_tokens(module, x).flatten(0, 1)


def _subsample(rows: Tensor) -> Tensor:
    """At most MAX_ROWS rows, evenly spaced: deterministic and cheap."""
    if rows.shape[0] <= MAX_ROWS:
        return rows
    return rows[torch.linspace(0, rows.shape[0] - 1, MAX_ROWS).long()]
