"""Compare settings by their label-free score, one calibration pass each; the lowest wins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.errors import CalibrationError, ConfigError
from codtdq.lab.selection.band import PredictedBand
from codtdq.lab.selection.candidates import (
    PAPER_SETTING,
    Candidate,
    apply_config,
    candidate_grid,
    check_base,
)
from codtdq.lab.selection.features import Drift, FloatReference, logits_of, tapped
from codtdq.lab.selection.score import EXTENDED, SCORES, Terms, bounded, check_score
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

    def to_dict(self, score: str = EXTENDED) -> dict[str, Any]:
        """Return the JSON-ready form."""
        fields = self.candidate.fields()
        return {**fields, "bits_per_activation": self.act_bits, **self.terms.to_dict(score)}


@dataclass(frozen=True)
class PaperSetting:
    """Where (g, tau, zr) = (32, 1, 0.2), which the paper says is selected, ended up."""

    rank: int  # 1: it is the one that is selected
    of: int
    score: float
    better: int  # settings with no term higher and one lower: any positive weights prefer them

    @property
    def selected(self) -> bool:
        """Whether it has the lowest score."""
        return self.rank == 1

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON-ready form."""
        return {
            **PAPER_SETTING.fields(),
            "selected": self.selected,
            "rank": self.rank,
            "of": self.of,
            "score": self.score,
            "lower_in_every_term": self.better,
        }


@dataclass
class Selection:
    """All settings, the best (lowest score) first."""

    base: CodTdqConfig
    images: int
    scored: list[Scored] = field(default_factory=list)
    score: str = EXTENDED

    @property
    def chosen(self) -> Scored:
        """The winner."""
        return self.scored[0]

    @property
    def config(self) -> CodTdqConfig:
        """What `codtdq quantize` takes."""
        return self.chosen.candidate.config(self.base).replace(name=f"{self.base.name}-selected")

    @property
    def paper_setting(self) -> PaperSetting | None:
        """What became of the paper's setting; None if it was no candidate."""
        places = [i for i, one in enumerate(self.scored) if one.candidate == PAPER_SETTING]
        if not places:
            return None
        terms = self.scored[places[0]].terms
        better = sum(one.terms.below(terms, self.score) for one in self.scored)
        score = terms.weighted(self.score)
        return PaperSetting(places[0] + 1, len(self.scored), score, better)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON-ready form."""
        paper = self.paper_setting
        return {
            "base": self.base.name,
            "images": self.images,
            "score": self.score,
            "weights": dict(SCORES[self.score]),
            "chosen": self.chosen.to_dict(self.score),
            "paper_setting": None if paper is None else paper.to_dict(),
            "candidates": [one.to_dict(self.score) for one in self.scored],
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
    score: str = EXTENDED,
    on_scored: Callable[[Scored], None] | None = None,
) -> Selection:
    """Score every candidate (default: `candidate_grid()`) and sort them.

    score: "extended", or "paper" for the terms of S3.1 alone.

    A tie goes to the one that costs fewer bits, then to the first.
    """
    check_score(score)
    candidates = candidate_grid() if candidates is None else candidates
    if not candidates:
        raise ConfigError("selection got no candidates; give at least one (g, tau, zr)")
    selection = Selection(selector.base, len(selector.reference), score=score)
    with Progress("selecting", len(candidates)) as bar:
        for candidate in candidates:
            terms, bits = selector.score(candidate.config(selector.base))
            selection.scored.append(Scored(candidate, terms, bits))
            if on_scored is not None:
                on_scored(selection.scored[-1])
            bar.step(note=str(candidate))
    selection.scored.sort(key=lambda one: (one.terms.weighted(score), one.act_bits))
    return selection


def _tensor(batch: Any) -> Tensor:
    if not isinstance(batch, Tensor):
        raise CalibrationError(f"selection takes image tensors; found {type(batch).__name__}")
    return batch
