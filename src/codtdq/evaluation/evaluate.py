"""Run a model over a data set and score its masks: streaming, overlapped, resumable.

Loading and scoring run in threads beside the forward pass. Scores are added in the order of the
data set, so that a result never depends on timing.
"""

from __future__ import annotations

import html
import json
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from codtdq.data.dataset import Dataset
from codtdq.data.datasets import open_dataset
from codtdq.data.pairs import PairList
from codtdq.data.sample import Sample
from codtdq.data.transforms import to_input
from codtdq.errors import ConfigError, DataError
from codtdq.evaluation.batching import batch_size_for
from codtdq.evaluation.masks import to_mask
from codtdq.evaluation.predict import info_of, mask_logits
from codtdq.evaluation.provenance import provenance
from codtdq.io import write_json
from codtdq.metrics import MetricSuite
from codtdq.models.registry import ModelInfo
from codtdq.pixels import ImageLike
from codtdq.progress import Progress

SHOWN = ("S", "wF", "E_mean", "F_max", "MAE")  # where there is room for a few scores
SAVE_SECONDS = 15.0  # how often a resumable run writes its state


@dataclass(frozen=True, repr=False)
class EvalResult:
    """Scores of a model on a data set, with all that is needed to trust them.

    model_seconds: the part of `seconds` spent inside forward passes.
    resumed: images that an earlier, interrupted run had scored; `seconds` is without them.
    suite: the scores before they were averaged, so that parts of a data set can be merged.
    """

    dataset: str
    metrics: dict[str, float]
    per_image: list[dict[str, Any]]
    seconds: float
    settings: dict[str, Any]
    provenance: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    model_seconds: float = 0.0
    resumed: int = 0
    suite: MetricSuite = field(default_factory=MetricSuite, repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "dataset": self.dataset,
            "count": int(self.metrics["count"]),
            "metrics": {k: v for k, v in self.metrics.items() if k != "count"},
            "seconds": round(self.seconds, 3),
            "settings": self.settings,
            "notes": self.notes,
            "provenance": self.provenance,
            "per_image": self.per_image,
        }

    def __repr__(self) -> str:
        scores = ", ".join(f"{key} {self.metrics[key]:.4f}" for key in SHOWN)
        return f"EvalResult({self.dataset}, {int(self.metrics['count'])} images: {scores})"

    def _repr_html_(self) -> str:
        cells = {"data set": self.dataset, "images": str(int(self.metrics["count"]))}
        cells |= {key: f"{self.metrics[key]:.4f}" for key in SHOWN}
        head = "".join(f"<th>{key}</th>" for key in cells)
        body = "".join(f"<td>{html.escape(value)}</td>" for value in cells.values())
        notes = "".join(f"<p>note: {html.escape(note)}</p>" for note in self.notes)
        return f"<table><tr>{head}</tr><tr>{body}</tr></table>{notes}"


def evaluate(
    model: nn.Module,
    dataset: Dataset | str | Path | Iterable[Sequence[ImageLike]],
    *,
    data_root: str | Path | None = None,
    limit: int | None = None,
    batch_size: int | None = None,
    postprocess: str | None = None,
    input_size: int | None = None,
    state_file: str | Path | None = None,
    resume: bool = False,
) -> EvalResult:
    """Score a model on a data set with masks.

    dataset: a data set; the name of one, or a folder, as `codtdq.data.open_dataset` takes it; or
        pairs (image, mask), each a file, a PIL image, an array or a tensor.
    data_root, limit: for a name: the folder of the benchmarks; use the first so many images.
    batch_size: images per forward pass; by default 1 where operators share a range over the batch,
        else 8. Bit for bit an image's result alone where only the engine computes; between
        operators that torch executes, last digits may differ.
    postprocess: "sigmoid", "sigmoid-minmax" or "binary"; by default the model's own.
    state_file: where an interrupted run keeps its finished images; `resume=True` goes on from it.
    """
    dataset = _opened(dataset, data_root, limit)
    if len(dataset) == 0:
        raise DataError(f"data set {dataset.name!r} has no images")
    info = info_of(model, input_size)
    settings = {
        "input_size": input_size or info.input_size,
        "postprocess": postprocess or info.postprocess,
        "batch_size": batch_size_for(model, batch_size),
        "images": len(dataset),
    }
    origin = provenance(model)
    key = {
        "dataset": dataset.name,
        "model": origin["model_sha256"],
        "config": origin["config"],
        **settings,
    }
    state = _State(Path(state_file) if state_file else None, key)
    suite = state.load() if resume else MetricSuite()
    resumed = len(suite)
    start = time.perf_counter()
    with Progress(f"evaluating {dataset.name}", len(dataset)) as bar:
        bar.step(resumed)
        try:
            model_seconds = _run(model.eval(), info, dataset, settings, suite, state, bar)
        except BaseException:
            state.save(suite)
            raise
    state.discard()
    return EvalResult(
        dataset.name,
        suite.compute(),
        suite.per_image(),
        time.perf_counter() - start,
        settings,
        origin,
        list(dataset.notes),
        model_seconds,
        resumed,
        suite,
    )


def _opened(
    dataset: Dataset | str | Path | Iterable[Sequence[ImageLike]],
    root: str | Path | None,
    limit: int | None,
) -> Dataset:
    if isinstance(dataset, str | Path):
        return open_dataset(str(dataset), root, limit=limit)
    if isinstance(dataset, Dataset):
        if limit is not None:
            raise ConfigError("limit goes with the name of a data set; open yours with a limit")
        return dataset
    if not isinstance(dataset, Iterable):
        raise ConfigError(
            f"dataset is a {type(dataset).__name__}; accepted: a data set, the name of one, a "
            "folder, or pairs (image, mask)"
        )
    return PairList(dataset, limit=limit)


def _run(
    model: nn.Module,
    info: ModelInfo,
    dataset: Dataset,
    settings: dict[str, Any],
    suite: MetricSuite,
    state: _State,
    bar: Progress,
) -> float:
    """Forward passes here, loading and scoring in threads, both at most a few batches ahead.

    Returns the seconds spent in the model.
    """
    batch_size = settings["batch_size"]
    model_seconds = 0.0
    pending: deque[Future[None]] = deque()
    # One scoring thread keeps the order; it runs while the next forward pass does.
    with ThreadPoolExecutor(2) as loaders, ThreadPoolExecutor(1) as scorer:
        try:
            for batch in _batches(dataset, len(suite), batch_size, settings, info, loaders):
                samples, inputs = zip(*batch)
                stacked = torch.stack(inputs)
                before = time.perf_counter()
                logits = mask_logits(model, info, stacked)
                model_seconds += time.perf_counter() - before
                for sample, one in zip(samples, logits):
                    pending.append(
                        scorer.submit(_score, suite, sample, one, settings["postprocess"])
                    )
                while len(pending) > 2 * batch_size or (pending and pending[0].done()):
                    pending.popleft().result()
                    bar.step()
                state.save_sometimes(suite)
            while pending:
                pending.popleft().result()
                bar.step()
        except BaseException:
            for pool in (loaders, scorer):
                pool.shutdown(wait=True, cancel_futures=True)
            raise
    return model_seconds


def _batches(
    dataset: Dataset,
    start: int,
    batch_size: int,
    settings: dict[str, Any],
    info: ModelInfo,
    loaders: ThreadPoolExecutor,
) -> Iterator[list[tuple[Sample, Tensor]]]:
    """Batches in order, loaded two batches ahead: memory does not grow with the data set."""

    def load(index: int) -> tuple[Sample, Tensor]:
        sample = dataset[index]
        if sample.mask is None:
            raise DataError(f"{sample.name} has no mask; evaluation needs ground truth")
        return sample, to_input(sample.image, settings["input_size"], info.mean, info.std)

    ahead: deque[Future[tuple[Sample, Tensor]]] = deque()
    upcoming = iter(range(start, len(dataset)))
    done = False
    while not done or ahead:
        while not done and len(ahead) < 3 * batch_size:
            index = next(upcoming, None)
            done = index is None
            if index is not None:
                ahead.append(loaders.submit(load, index))
        batch = [ahead.popleft().result() for _ in range(min(batch_size, len(ahead)))]
        if batch:
            yield batch


def _score(suite: MetricSuite, sample: Sample, logits: Tensor, postprocess: str) -> None:
    assert sample.mask is not None
    mask: NDArray[np.uint8] = sample.mask
    try:
        prediction = to_mask(logits, (mask.shape[0], mask.shape[1]), postprocess)
    except DataError as error:
        raise DataError(f"{sample.name}: {error}") from error
    suite.update(prediction, mask, name=sample.name)


class _State:
    """The finished images of a run, on disk, tied to exactly this model, data and settings."""

    def __init__(self, path: Path | None, key: dict[str, Any]) -> None:
        self._path, self._key = path, json.loads(json.dumps(key))
        self._saved = time.monotonic()

    def load(self) -> MetricSuite:
        if self._path is None or not self._path.exists():
            return MetricSuite()
        try:
            data = json.loads(self._path.read_text(encoding="utf-8"))
            found, suite = dict(data["key"]), data["suite"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(f"{self._path} cannot be resumed: {error!r}; delete it") from error
        changed = [k for k in self._key if found.get(k) != self._key[k]]
        if changed:
            raise DataError(
                f"{self._path} belongs to another run (different {', '.join(changed)}); "
                "delete it or run without --resume"
            )
        return MetricSuite.from_state(suite)

    def save_sometimes(self, suite: MetricSuite) -> None:
        if time.monotonic() - self._saved > SAVE_SECONDS:
            self.save(suite)

    def save(self, suite: MetricSuite) -> None:
        if self._path is None or len(suite) == 0:
            return
        self._saved = time.monotonic()
        write_json(self._path, {"key": self._key, "suite": suite.state_dict()})

    def discard(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)
