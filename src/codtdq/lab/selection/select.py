"""Compare settings by their label-free score, one calibration pass each; the lowest wins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.errors import CalibrationError, ConfigError
from codtdq.lab.selection.band import PredictedBand
from codtdq.lab.selection.candidates import Candidate, apply_config, candidate_grid, check_base
from codtdq.lab.selection.features import Drift, FloatReference, logits_of, tapped
from codtdq.lab.selection.score import WEIGHTS, Terms, bounded
from codtdq.lab.selection.statistics import InputStatistics
from codtdq.methods import quantize_model
from codtdq.planning import CodTdqConfig
from codtdq.progress import Progress


@dataclass(frozen=True)
class Scored:
    """A setting with its terms."""

    candidate: Candidate
    terms: Terms
    act_bits: float  # effective bits per activation, scales included: what the setting costs

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON-ready form."""
        fields = self.candidate.fields()
        return {**fields, "bits_per_activation": self.act_bits, **self.terms.to_dict()}


@dataclass
class Selection:
    """All settings, the best (lowest score) first."""

    base: CodTdqConfig
    images: int
    scored: list[Scored] = field(default_factory=list)

    @property
    def chosen(self) -> Scored:
        """The winner."""
        return self.scored[0]

    @property
    def config(self) -> CodTdqConfig:
        """What `codtdq quantize` takes."""
        return self.chosen.candidate.config(self.base).replace(name=f"{self.base.name}-selected")

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON-ready form."""
        return {
            "base": self.base.name,
            "images": self.images,
            "weights": dict(WEIGHTS),
            "chosen": self.chosen.to_dict(),
            "candidates": [one.to_dict() for one in self.scored],
            "config": self.config.to_dict(),
        }


class Selector:
    """Scores configs of one model on the same images. No mask is ever read.

    The float model runs once; the weights are quantized once. `statistics_images` bounds the
    images on which eta and rho_0 are gathered (drift uses all), because statistics of every group
    cost more than the forward pass.
    """

    def __init__(
        self,
        model: nn.Module,
        base: CodTdqConfig,
        batches: Iterable[Tensor],
        *,
        statistics_images: int = 4,
    ) -> None:
        check_base(base)
        images = [image.unsqueeze(0) for batch in batches for image in _tensor(batch)]
        self.base, self.original = base, model.eval()
        self.reference = FloatReference(model, images)
        self.band = PredictedBand(model, self.reference)
        self.quantized = quantize_model(model, base, images)
        self._statistics_images = statistics_images

    def score(self, config: CodTdqConfig) -> tuple[Terms, float]:
        """Terms of a config that differs from the base in activation settings only, and its
        effective bits per activation.
        """
        plan = apply_config(self.quantized, self.original, config)
        model, drift = self.quantized, Drift(self.reference)
        statistics = InputStatistics(model, self.band)
        with torch.inference_mode(), tapped(model, self.reference.points) as seen:
            for index, batch in enumerate(self.reference.batches):
                if index < self._statistics_images:
                    with statistics.listening(index):
                        logits = logits_of(model, batch)
                else:
                    logits = logits_of(model, batch)
                drift.add(index, seen, logits)
        features = [bounded(error) for error in drift.features().values()]
        terms = Terms(
            logits=bounded(drift.logits()),
            features=sum(features) / max(len(features), 1),
            eta=statistics.eta(),
            rho0=statistics.rho0(),
            boundary=statistics.boundary_rho0(),
        )
        return terms, float(plan.totals()["bits_per_activation"])


def select(
    selector: Selector,
    candidates: Sequence[Candidate] | None = None,
    *,
    on_scored: Callable[[Scored], None] | None = None,
) -> Selection:
    """Score every candidate (default: `candidate_grid()`) and sort them.

    A tie goes to the one that costs fewer bits, then to the first.
    """
    candidates = candidate_grid() if candidates is None else candidates
    if not candidates:
        raise ConfigError("selection got no candidates; give at least one (g, tau, zr)")
    selection = Selection(selector.base, len(selector.reference))
    with Progress("selecting", len(candidates)) as bar:
        for candidate in candidates:
            terms, bits = selector.score(candidate.config(selector.base))
            selection.scored.append(Scored(candidate, terms, bits))
            if on_scored is not None:
                on_scored(selection.scored[-1])
            bar.step(note=str(candidate))
    selection.scored.sort(key=lambda one: (one.terms.score, one.act_bits))
    return selection


def _tensor(batch: Any) -> Tensor:
    if not isinstance(batch, Tensor):
        raise CalibrationError(f"selection takes image tensors; found {type(batch).__name__}")
    return batch
