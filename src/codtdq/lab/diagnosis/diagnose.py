"""Run a model in FP32 and under several methods, and measure where evidence is lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from codtdq.api import quantize
from codtdq.data.dataset import Dataset
from codtdq.data.sample import Sample
from codtdq.data.transforms import to_input
from codtdq.errors import ConfigError, DataError
from codtdq.evaluation.masks import to_mask
from codtdq.evaluation.predict import info_of, mask_logits
from codtdq.evaluation.provenance import provenance
from codtdq.lab.diagnosis.archive import Archive
from codtdq.lab.diagnosis.boundary import BoundaryProtocol, boundary_band
from codtdq.lab.diagnosis.gallery import GallerySample, render
from codtdq.lab.diagnosis.layer_ranking import SAMPLED_LAYERS, bounded_layer, rank_layers
from codtdq.lab.diagnosis.listening import listening
from codtdq.lab.diagnosis.record import (
    Diagnosis,
    ImageRecord,
    LayerSample,
    MethodRecord,
    WeightSample,
)
from codtdq.lab.diagnosis.survey import Labels, Survey
from codtdq.lab.diagnosis.tokens import TokenMaps, token_maps
from codtdq.lab.diagnosis.weights import chosen_weights, weight_records, weight_samples
from codtdq.methods import list_methods, method_info
from codtdq.metrics import MetricSuite
from codtdq.operators.record import effective_bits
from codtdq.progress import Progress

FLOAT = "fp32"


def diagnose(
    model: nn.Module,
    methods: Sequence[str] | Mapping[str, nn.Module],
    dataset: Dataset,
    *,
    calibration: Iterable[Any] | None = None,
    limit: int = 8,
    radii: tuple[float, float] = (3.0, 3.0),
    gamma: tuple[float, float] = (0.1, 0.01),
    seed: int = 0,
    budget: str = "fast",
    archive: str | Path | None = None,
    keep_images: int = 4,
    layers: Sequence[str] = (),
    command: str = "",
) -> Diagnosis:
    """Diagnose a float model under methods of the benchmark, image by image.

    methods: names (presets included), or models that are quantized already, by name. FP32 is
        always the first record.
    calibration: batches for methods that need them; iterated several times, without masks.
    radii: (r_in, r_out) of the boundary band, in pixels of the mask (S4.4).
    gamma: (gamma_bdry, gamma_nonbdry) on the occupancy of a token.
    archive: a directory for X, c, Delta, sigma, X_hat of every input (S4.5).
    keep_images: images of which pictures are kept for `gallery`.
    layers: patterns of operator names whose weights are kept for histograms; by default the
        largest attention and the largest MLP weight.

    Masks label tokens in the statistics and score predictions; no quantizer sees them.
    """
    protocol = BoundaryProtocol(
        r_in=radii[0], r_out=radii[1], gamma_boundary=gamma[0], gamma_nonboundary=gamma[1]
    )
    names = [name for name in methods if name != FLOAT]
    _check(names, methods, limit, dataset)
    limit = min(limit, len(dataset))
    model = model.eval()
    kept_weights = chosen_weights(model, layers)
    maps = token_maps(model, input_of(model, dataset[0]))
    run = _Run(dataset, limit, maps, protocol, keep_images, archive, kept_weights)
    records = [run.method(model, FLOAT, "FP32")]
    for name in names:
        if isinstance(methods, Mapping):
            records.append(run.method(methods[name].eval(), name, name))
        else:
            done = quantize(
                model, name, calibration=calibration, backend="reference", seed=seed, budget=budget
            )
            records.append(run.method(done, name, method_info(name).title))
    shown = rank_layers(records, run.kept_samples, maps)
    sampled = dict.fromkeys([*shown[:SAMPLED_LAYERS], bounded_layer(run.samples)])
    return Diagnosis(
        model=info_of(model, 1).name,
        dataset=dataset.name,
        settings={
            "r_in": protocol.r_in,
            "r_out": protocol.r_out,
            "gamma_boundary": protocol.gamma_boundary,
            "gamma_nonboundary": protocol.gamma_nonboundary,
            "limit": limit,
            "seed": seed,
            "budget": budget,
            "calibration_images": getattr(calibration, "images", None),
        },
        methods=records,
        images=[ImageRecord(name, scores) for name, scores in run.scores.items()],
        provenance=provenance(model),
        command=command,
        unmapped=maps.unmapped,
        gallery=[render(kept, shown, maps) for kept in run.kept_samples[:keep_images]],
        samples=[sample for layer in sampled for sample in run.samples if sample.layer == layer],
        weight_samples=run.weight_samples,
    )


def _check(
    names: list[str], methods: Sequence[str] | Mapping[str, nn.Module], limit: int, data: Dataset
) -> None:
    """Refuse before the first forward pass what would fail after it."""
    if limit < 1:
        raise ConfigError(f"limit is {limit}; accepted: 1 or more images")
    if len(data) == 0:
        raise DataError(f"data set {data.name!r} has no images")
    if len(set(names)) != len(names):
        raise ConfigError(f"methods are {', '.join(names)}; name each of them once")
    if not isinstance(methods, Mapping):
        for name in names:
            if name not in list_methods():
                method_info(name)  # says which names there are


def input_of(model: nn.Module, sample: Sample) -> Tensor:
    """Return one image as the network takes it, [1, 3, size, size]."""
    info = info_of(model)
    return to_input(sample.image, info.input_size, info.mean, info.std).unsqueeze(0)


@dataclass
class _Run:
    """The images of a diagnosis, and what is kept of them over all methods."""

    dataset: Dataset
    limit: int
    maps: TokenMaps
    protocol: BoundaryProtocol
    keep: int
    archive: str | Path | None
    weights: list[str]  # operators whose weights are kept
    scores: dict[str, dict[str, float]] = field(default_factory=dict)  # S by image and method
    kept_samples: list[GallerySample] = field(default_factory=list)
    samples: list[LayerSample] = field(default_factory=list)
    weight_samples: list[WeightSample] = field(default_factory=list)

    def method(self, model: nn.Module, name: str, title: str) -> MethodRecord:
        """Measure one model on all images."""
        archive = None if self.archive is None else Archive(self.archive, name)
        survey = Survey(model, name, self.maps, archive)
        suite = MetricSuite()
        with Progress(f"diagnosing {name}", self.limit) as bar, listening(model, survey.hear):
            for index in range(self.limit):
                self._image(model, survey, suite, index)
                bar.step()
        self.samples += survey.samples
        self.weight_samples += weight_samples(model, name, self.weights)
        metrics = {key: value for key, value in suite.compute().items() if key != "count"}
        return MethodRecord(
            method=name,
            title=title,
            metrics=metrics,
            layers=survey.records(),
            weights=weight_records(model),
            bits=effective_bits(model),
        )

    def _image(self, model: nn.Module, survey: Survey, suite: MetricSuite, index: int) -> None:
        sample, info = self.dataset[index], info_of(model)
        if sample.mask is None:
            raise DataError(f"{sample.name} has no mask; a diagnosis needs ground truth")
        band = boundary_band(sample.mask, self.protocol.r_in, self.protocol.r_out)
        if len(self.kept_samples) == index < max(self.keep, 1):  # one at least, to choose layers by
            self.kept_samples.append(GallerySample(sample, band))
        kept = self.kept_samples[index] if index < len(self.kept_samples) else None
        survey.start(sample.name, Labels(band, self.maps, self.protocol), kept)
        logits = mask_logits(model, info, input_of(model, sample))[0]
        size = (sample.mask.shape[0], sample.mask.shape[1])
        prediction = to_mask(logits, size, info.postprocess)
        score = suite.update(prediction, sample.mask, name=sample.name).s
        self.scores.setdefault(sample.name, {})[survey.method] = score
        if kept is not None:
            kept.predictions[survey.method] = prediction
