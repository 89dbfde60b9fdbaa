"""The model of a group: opened, stressed, quantized once and kept on disk for all data sets."""

from __future__ import annotations

import json
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from codtdq._version import __version__
from codtdq.api import load, quantize, save
from codtdq.errors import CheckpointError
from codtdq.evaluation import CalibrationImages
from codtdq.evaluation.provenance import model_hash
from codtdq.io import write_json
from codtdq.lab.bench.cache import open_cached
from codtdq.lab.bench.cells import Group
from codtdq.lab.bench.diagnosis import diagnose
from codtdq.lab.bench.settings import RunSettings
from codtdq.lab.bench.usage import Usage
from codtdq.lab.text import plain
from codtdq.operators import record_of
from codtdq.resolve import open_model

FACTS = "facts.json"
MODEL = "model"
STRESS_IMAGES = 8  # on which the channels are measured before outliers are planted
DIAGNOSIS_IMAGES = 4


def prepare_group(group: Group, settings: RunSettings, directory: Path) -> dict[str, Any]:
    """Quantize the model of a group into `directory`, unless that was done before.

    Returns what the rows of the group have in common.
    """
    done = read_facts(directory, settings)
    if done is not None:
        return done
    directory.mkdir(parents=True, exist_ok=True)
    for stale in directory.glob("part*.json"):  # scores of another model than the one to come
        stale.unlink()
    cell = group.first
    model = open_model(
        cell.model, settings.checkpoints.get(cell.model), untrained=settings.untrained
    )
    images = open_cached(
        settings.calibration,
        settings.data_root,
        settings.calibration_images,
        settings.cache_dir,
        masks=False,
    )
    calibration = CalibrationImages(model, images, count=settings.calibration_images)
    torch.manual_seed(cell.seed)
    if cell.stress is not None:
        model = _stressed(model, calibration, cell.seed)
    with Usage() as usage:
        quantized = quantize(
            model,
            cell.method,
            calibration=calibration,
            backend="reference",
            seed=cell.seed,
            budget=cell.budget,
            state_dir=directory / "calibration",
        )
    record = record_of(quantized)
    shutil.rmtree(directory / MODEL, ignore_errors=True)  # of a run that was killed here
    save(quantized, directory / MODEL)
    facts = {
        "bits": record.bits,
        "info": record.info,
        "config": record.config,
        "method_notes": record.notes,  # what the method noted of itself: limits, choices
        "calibration": {
            "images": record.calibration_images,
            "seconds": round(usage.wall, 3),
            "steps": record.steps,
            "cpu_seconds": round(usage.cpu, 3),
            "peak_memory_mb": round(usage.peak_memory_mb, 1),
        },
        "planted": getattr(model, "stress", None),
        "diagnosis": diagnose(quantized, islice(calibration, DIAGNOSIS_IMAGES)),
        "hashes": {"float_model": model_hash(model), "quantized_model": model_hash(quantized)},
    }
    _write_facts(directory, settings, plain(facts, other=str))
    shutil.rmtree(directory / "calibration", ignore_errors=True)
    return plain(facts, other=str)


def load_group(directory: Path) -> nn.Module:
    """Return the quantized model that `prepare_group` left.

    Rows always come from the model as it was written, so a resumed or distributed run cannot
    differ from an uninterrupted one.
    """
    try:
        model = load(directory / MODEL, backend="reference")
        facts = json.loads((directory / FACTS).read_text(encoding="utf-8"))["facts"]
        if model_hash(model) != facts["hashes"]["quantized_model"]:
            raise CheckpointError(
                f"{directory / MODEL} does not hold the model that was calibrated; its method "
                "cannot be saved and loaded without loss"
            )
        return model
    except Exception:
        (directory / FACTS).unlink(missing_ok=True)  # the next attempt calibrates again
        raise


def _stressed(model: nn.Module, calibration: CalibrationImages, seed: int) -> nn.Module:
    from codtdq.lab.stress import plant_outliers

    images = torch.cat(list(islice(calibration, STRESS_IMAGES)))
    return plant_outliers(model, images, seed=seed)


def _key(settings: RunSettings) -> dict[str, Any]:
    return {"codtdq": __version__, **settings.fixed()}


def read_facts(directory: Path, settings: RunSettings) -> dict[str, Any] | None:
    """Return the facts of a finished calibration under the same settings."""
    try:
        data = json.loads((directory / FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    sound = isinstance(data, dict) and isinstance(data.get("facts"), dict)
    return data["facts"] if sound and data.get("key") == _key(settings) else None


def _write_facts(directory: Path, settings: RunSettings, facts: dict[str, Any]) -> None:
    """Write the facts, last and atomically: where they are, the model is complete."""
    write_json(directory / FACTS, {"key": _key(settings), "facts": facts})
