"""The whole story on what comes with the package: three models, sample pictures and scenes.

Everything printed is measured in this run; nothing is stored beforehand.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from codtdq.api import config, load, quantize
from codtdq.data import open_dataset
from codtdq.data.dataset import Dataset
from codtdq.data.datasets import SAMPLES, sample_pictures
from codtdq.engine import backend_of, use_backend
from codtdq.environment import environment
from codtdq.errors import DataError
from codtdq.evaluation import CalibrationImages, LayerLoss, evaluate, layer_losses, predict
from codtdq.io import atomic_path
from codtdq.lab.bench.speed.timing import interleaved, speedup
from codtdq.lab.mask_grid import MaskRow, mask_grid
from codtdq.models import create_model
from codtdq.resolve import quantize_for

PLUS = "cod-tdq-plus"
SETTINGS = (
    "fp32",
    "w8a8",
    "w4a8",
    "w4a4",
    "dstg-only",
    "cod-tdq",
    "cod-tdq-per-tensor-conv",
    "cod-tdq-literal",
    "cod-tdq-guarded",
    PLUS,
)
FEW_SETTINGS = ("fp32", "w4a4", "cod-tdq", "cod-tdq-guarded", PLUS)  # of a large model
PICTURED = ("fp32", "w4a4", "cod-tdq", PLUS)
DIAGNOSED = "cod-tdq"
TIMED = PLUS
CALIBRATION_IMAGES = 32  # of the method that needs any; by default it takes 128, and longer
TIMED_SECONDS = 2.0  # per model
DEFAULT_IMAGES = 32
SHOWN = 4  # pictures of each model, at most
METRICS = ("S", "wF", "E_mean", "F_max", "MAE")  # the columns of the paper's motivating table


@dataclass(frozen=True)
class Subject:
    """A model, what it is shown, and in which settings."""

    name: str
    data: str = "camosynth"
    settings: tuple[str, ...] = SETTINGS
    packed: str | None = None  # the model of PLUS that comes with the package


SUBJECTS = (
    Subject("vit-cod", SAMPLES, FEW_SETTINGS, "vit-cod-w4a4"),
    Subject("cfrn-small"),
    Subject("escnet-small"),
)


@dataclass
class DemoResult:
    """Scores, worst layers and pictures of one demo run."""

    images: dict[str, int]  # by model
    scores: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    worst: dict[str, list[LayerLoss]] = field(default_factory=dict)
    execution: dict[str, dict[str, str]] = field(default_factory=dict)  # by model and setting
    speed: dict[str, dict[str, float]] = field(default_factory=dict)  # of TIMED against fp32
    seconds: float = 0.0
    picture: Path | None = None
    environment: dict[str, Any] = field(default_factory=environment)


def run_demo(
    *,
    images: int = DEFAULT_IMAGES,
    out: str | Path | None = "demo",
    say: Callable[[str], None] = lambda text: None,
) -> DemoResult:
    """Quantize and score all models; write `demo.png` to `out` unless it is None.

    images: synthetic ones; of the sample pictures there are only a few.
    """
    if out is not None:
        _check_folder(Path(out))  # before minutes of work
    start = time.perf_counter()
    result = DemoResult({})
    rows: list[MaskRow] = []
    for subject in SUBJECTS:
        name = subject.name
        own = subject.data == SAMPLES
        dataset = sample_pictures() if own else open_dataset(subject.data, limit=images)
        result.images[name] = len(dataset)
        float_model = create_model(name)
        masks: dict[str, list[NDArray[np.uint8]]] = {}
        shown = _pictured(dataset)
        for setting in subject.settings:
            model = _quantized(float_model, setting, subject)
            result.execution.setdefault(name, {})[setting] = _execution(model)
            scores = evaluate(model, dataset).metrics
            result.scores.setdefault(name, {})[setting] = {key: scores[key] for key in METRICS}
            say(f"{name} {setting}: S {scores['S']:.4f}")
            if setting in PICTURED:
                masks[setting] = [predict(model, dataset[i].image) for i in shown]
            if setting == TIMED:
                result.speed[name] = _speed(float_model, model)
            if setting == DIAGNOSED:
                inputs = CalibrationImages(model, dataset, count=4)
                result.worst[name] = layer_losses(model, inputs)[:5]
        rows += [
            MaskRow(name, dataset[i].image, _mask(dataset, i), {s: masks[s][k] for s in PICTURED})
            for k, i in enumerate(shown)
        ]
    if out is not None:
        result.picture = Path(out) / "demo.png"
        with atomic_path(result.picture) as temporary:
            mask_grid(rows).save(temporary, format="PNG")
    result.seconds = time.perf_counter() - start
    return result


def _check_folder(out: Path) -> None:
    """Fail as the picture would, now: a file in the place of the folder, or no right to write."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise DataError(f"--out {out} cannot be written ({error.strerror})") from error


def _quantized(model: nn.Module, setting: str, subject: Subject) -> nn.Module:
    """Return the model in a setting, on the native engine where that can run it."""
    if setting == "fp32":
        return model
    if setting == PLUS and subject.packed is not None:
        return load(subject.packed)
    if setting == PLUS:
        quantized = quantize_for(model, config(PLUS, model=model), count=CALIBRATION_IMAGES)
    else:
        quantized = quantize(model, setting, backend="reference")
    use_backend(quantized)
    return quantized


def _execution(model: nn.Module) -> str:
    record = backend_of(model)
    if record is None:
        return "float32"
    others, how = len(record.fallbacks), "simulated"
    if record.execution == how:
        others, how = len(record.native), "native"
    return record.execution + (f", {others} operators {how}" if others else "")


def _speed(float_model: nn.Module, model: nn.Module) -> dict[str, float]:
    """Milliseconds per image, and how many times faster the quantized model is (quartiles)."""
    size: int = float_model.info.input_size  # type: ignore[union-attr, assignment]
    image = torch.randn(1, 3, size, size)
    with torch.inference_mode():
        times = interleaved(
            {"fp32": lambda: float_model(image), "int4": lambda: model(image)},
            seconds=TIMED_SECONDS,
        )
    ratio = speedup(times["fp32"], times["int4"])
    return {
        "fp32_ms": times["fp32"].wall.median * 1e3,
        "int4_ms": times["int4"].wall.median * 1e3,
        "ratio": ratio.median,
        "ratio_q1": ratio.q1,
        "ratio_q3": ratio.q3,
    }


def _pictured(dataset: Dataset) -> list[int]:
    """Return one image of each difficulty: the first of every quarter of the joined splits."""
    quarter = max(1, len(dataset) // SHOWN)
    return [i for i in range(0, len(dataset), quarter)][:SHOWN]


def _mask(dataset: Dataset, index: int) -> NDArray[np.uint8]:
    mask = dataset[index].mask
    assert mask is not None
    return mask


def _verdict(naive: float, method: float) -> str:
    if abs(naive - method) < 0.005:
        return "makes no difference"
    return "helps" if method < naive else "over-clips: it loses more than naive W4A4"


def conclusions(result: DemoResult) -> list[str]:
    """Return what the numbers of this run say, in words that follow from them."""
    lines = []
    packed = {subject.name for subject in SUBJECTS if subject.packed is not None}
    for name, scores in result.scores.items():
        s = {setting: values["S"] for setting, values in scores.items()}
        drop = {setting: s["fp32"] - value for setting, value in s.items()}
        naive, method, guarded = drop["w4a4"], drop["cod-tdq"], drop["cod-tdq-guarded"]
        plus = drop[PLUS]
        verdict = _verdict(naive, method)
        fitted = "as shipped" if name in packed else f"calibrated on {CALIBRATION_IMAGES} images"
        lines.append(
            f"{name}: naive W4A4 loses {naive:.3f} of S, the published setting (cod-tdq) loses "
            f"{method:.3f} and {verdict}; token groups in every layer with clipping weighed "
            f"against rounding (cod-tdq-guarded) lose {max(guarded, 0.0):.3f}; {PLUS}, {fitted}, "
            f"loses {max(plus, 0.0):.3f}."
        )
        clipped = max(result.worst[name], key=lambda loss: loss.clip_rate)
        lines.append(
            f"{name}: under cod-tdq the layer {clipped.name} ({clipped.role}) clips "
            f"{clipped.clip_rate:.0%} of its inputs."
        )
    return lines
