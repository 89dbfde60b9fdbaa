"""The workbench: a copy of the model, what was traced of it, and the tools to change it."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.errors import CalibrationError
from codtdq.operators.conversion import install
from codtdq.operators.quantized import QuantOperator
from codtdq.planning.plan import QuantPlan, Site
from codtdq.planning.planner import make_plan
from codtdq.planning.trace import ModelGraph, trace
from codtdq.schemes.base import InputScheme, WeightScheme

SEQUENTIAL_PIXELS = 128 * 160 * 160  # of the images that may run as one batch


@dataclass
class Workbench:
    """What a method gets: it changes `model` by `install` and by editing norms and weights."""

    model: nn.Module  # a copy in eval mode, gradients off
    config: Any  # of the method's own class of QuantConfig
    calibration: Iterable[Any] | None  # batches of images; iterated as often as needed
    plan: QuantPlan | None = None  # what the config means for this model; made here if missing
    seed: int = 0
    budget: str = "fast"  # of steps, for methods that learn: see codtdq.budgets
    state_dir: Path | None = None  # for resumable state, if the caller wants it
    steps: int = 0  # optimisation steps done, reported with the result
    notes: dict[str, Any] = field(default_factory=dict)  # facts for the record, JSON-ready
    original: nn.Module | None = None  # the caller's model, never to be changed

    def floating(self) -> nn.Module:
        """The model in float as it was given, in eval mode; to be asked for before any change.

        Parameters are those of the caller's model (if it is known), not copies: a large network
        fits once more into memory, or it does not.
        """
        if self.original is None:
            return copy.deepcopy(self.model).eval()
        shared = {id(parameter): parameter for parameter in self.original.parameters()}
        return copy.deepcopy(self.original, shared).eval()

    @cached_property
    def graph(self) -> ModelGraph:
        """Traced on the first calibration image."""
        return trace(self.model, self.first_batch())

    def __post_init__(self) -> None:
        if self.plan is None:
            self.plan = make_plan(self.model, self.config)

    @cached_property
    def sites(self) -> list[Site]:
        """Operators to quantize, in the order in which they run. Unreached ones stay float."""
        assert self.plan is not None
        planned = {site.name: site for site in self.plan.in_scope}
        return [
            dataclasses.replace(
                planned[name], module=self.model.get_submodule(name), source=self.graph.inputs[name]
            )
            for name in self.graph.order
            if name in planned
        ]

    @property
    def quantizes(self) -> bool:
        """Whether anything is to be quantized: by the config's widths, or by an override."""
        return any(site.quantized for site in self.sites)

    @property
    def quantizes_inputs(self) -> bool:
        """Whether the input of any operator is to be quantized."""
        return any(site.activation is not None for site in self.sites)

    def site(self, name: str) -> Site:
        """A site by operator name."""
        return next(site for site in self.sites if site.name == name)

    def install(
        self,
        site: Site,
        *,
        inputs: InputScheme | None = None,
        weight: WeightScheme | None = None,
        blank: bool = False,
    ) -> QuantOperator:
        """Plug a scheme into an operator, or exchange those of one that is installed already.

        None leaves a part as it is (float at first). blank: weights are of no interest.
        """
        return install(self.model, site, self.config, inputs=inputs, weight=weight, blank=blank)

    def batches(self, images: int | None = None) -> Iterator[Any]:
        """Calibration batches, at most `images` of them images."""
        left = images
        for batch in self._calibration():
            if left is not None and left <= 0:
                return
            if left is not None and isinstance(batch, Tensor) and batch.shape[0] > left:
                batch = batch[:left]
            yield batch
            if left is not None:
                left -= batch.shape[0] if isinstance(batch, Tensor) else 1

    def first_batch(self) -> Any:
        """One image (or one batch that is no plain tensor)."""
        batch = next(iter(self._calibration()), None)
        if batch is None:
            raise CalibrationError("calibration got no batches; pass at least one")
        return batch[:1] if isinstance(batch, Tensor) else batch

    def joint_batch(self, images: int | None = None) -> Tensor:
        """Calibration images as one tensor, as many as fit SEQUENTIAL_PIXELS, for methods whose
        quantizers are set on the fly inside one forward pass.
        """
        first = self.first_batch()
        if not isinstance(first, Tensor):
            kind = type(first).__name__
            raise CalibrationError(f"this method joins calibration batches: tensors, not {kind}")
        fits = max(1, SEQUENTIAL_PIXELS // max(first[0, 0].numel(), 1))
        count = min(fits, images) if images is not None else fits
        joined = torch.cat(list(itertools.islice(self.batches(count), count)))[:count]
        self.notes["joint_batch"] = {
            "images_asked": images,
            "images": len(joined),
            "pixels_at_most": SEQUENTIAL_PIXELS,
        }
        return joined

    def generator(self, *key: object) -> torch.Generator:
        """A generator of its own for every purpose, the same in every run with this seed."""
        digest = sum((i + 1) * b for i, b in enumerate(repr((self.seed, *key)).encode()))
        return torch.Generator().manual_seed(self.seed * 1_000_003 + digest)

    def _calibration(self) -> Iterable[Any]:
        if self.calibration is None:
            raise CalibrationError("this method needs calibration data; pass calibration=batches")
        return self.calibration


def count_images(batches: Iterable[Any] | None) -> int:
    """How many images a calibration set has, where that is known."""
    if batches is None:
        return 0
    images = getattr(batches, "images", None)
    if isinstance(images, int):
        return images
    if isinstance(batches, list | tuple):
        return sum(b.shape[0] if isinstance(b, torch.Tensor) else 1 for b in batches)
    try:
        return len(batches)  # type: ignore[arg-type]
    except TypeError:
        return 0


def count_used(batches: Iterable[Any] | None, images: int | None) -> int | None:
    """How many images a pass over at most `images` of them sees; None where that is not known."""
    found = count_images(batches)
    return (min(found, images) if images else found) if found else images
