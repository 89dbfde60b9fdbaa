"""Quantized models as folders that can be pushed to a hub as they are, and loaded from there.

A folder holds the two files of a checkpoint (safetensors and JSON, nothing that runs code) and a
model card, README.md, that says what was quantized how, on which images, and what it scores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from codtdq.api import load, save
from codtdq.checkpoint import read_header
from codtdq.checkpoint.files import META, WEIGHTS
from codtdq.environment import install_hint
from codtdq.errors import CheckpointError, ConfigError, UnsupportedError
from codtdq.io import write_text
from codtdq.models import list_models, model_info
from codtdq.operators.record import QuantRecord, record_of

CARD = "README.md"
UNKNOWN_LICENCE = "unknown"  # the word that hubs have for it
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_WORD = re.compile(r"[\w.+-]+")


def save_pretrained(
    model: nn.Module,
    directory: str | Path,
    *,
    metrics: Mapping[str, Mapping[str, float]] | None = None,
    calibration: str = "",
    licence: str = UNKNOWN_LICENCE,
    weights_from: str = "",
) -> Path:
    """Write a quantized model with a model card; returns the directory.

    metrics: by data set, e.g. {"CAMO": result.metrics} of `codtdq.evaluate`.
    calibration: the images that were used, in words. licence: of the weights, as hubs spell it.
    weights_from: where the float weights come from.
    """
    if not _WORD.fullmatch(licence):
        raise ConfigError(f"licence is {licence!r}; accepted: one word as hubs spell it, e.g. mit")
    record = record_of(model)
    folder = save(model, directory)
    size = sum((folder / name).stat().st_size for name in (read_header(folder)["weights"], META))
    text = model_card(record, size, metrics or {}, calibration, licence, weights_from)
    write_text(folder / CARD, text)
    return folder


def from_pretrained(
    name: str | Path,
    *,
    model: nn.Module | None = None,
    backend: str = "auto",
    revision: str | None = None,
) -> nn.Module:
    """Load a folder, or `owner/name` of a hub if there is no such folder.

    model, backend: as of `codtdq.load`. revision: of the hub's repository. A name is looked up on a
    hub only where huggingface_hub is installed; of a repository no file is fetched but safetensors,
    JSON and the card.
    """
    folder = Path(name)
    if not folder.is_dir():
        folder = _fetched(str(name), revision)
    return load(folder, model=model, backend=backend)


def _fetched(name: str, revision: str | None) -> Path:
    if not _HUB_NAME.fullmatch(name):
        raise CheckpointError(f"{name}: no such folder; accepted: a folder, or owner/name of a hub")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise UnsupportedError(
            f"{name}: no such folder; to look for it on a hub, run {install_hint('hub')}"
        ) from error
    try:
        found = snapshot_download(name, revision=revision, allow_patterns=[WEIGHTS, META, CARD])
    except Exception as error:  # the hub's client fails in many ways, from time-outs to no access
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{name}: cannot be fetched from the hub ({reason})") from error
    folder = Path(found)
    missing = [file for file in (WEIGHTS, META) if not any(folder.glob(file))]
    if missing:
        raise CheckpointError(
            f"{name}: the repository has no {' and no '.join(missing)}; accepted: what "
            "codtdq.save_pretrained writes"
        )
    return folder


def model_card(
    record: QuantRecord,
    size: int,
    metrics: Mapping[str, Mapping[str, float]],
    calibration: str,
    licence: str,
    weights_from: str,
) -> str:
    """The text of a card; size: bytes of the checkpoint."""
    totals, bits = record.plan.totals(), record.bits
    images = record.calibration_images
    used = f"{images} images" + (f": {calibration}" if calibration else "") if images else "none"
    facts = [
        ("network", _network(record)),
        ("float weights from", weights_from or "not stated"),
        ("method", f"{record.info.get('title', record.name)} (`{record.name}`)"),
        ("bits per weight, scales included", f"{bits['weight']:.2f}"),
        ("bits per activation, scales included", f"{bits['activation']:.2f}"),
        ("operators in low bits", f"{len(record.plan.quantized)} of {len(record.plan.sites)}"),
        ("parameters", f"{totals['parameters']:,}"),
        ("size", f"{size / 2**20:.2f} MiB"),
        ("calibration", used),
        ("licence of the weights", licence if licence != UNKNOWN_LICENCE else "not stated"),
    ]
    lines = [
        "---",
        f"license: {licence}",
        "library_name: codtdq",
        "pipeline_tag: image-segmentation",
        "tags: [camouflaged-object-detection, quantization, w4a4]",
        "---",
        "",
        f"# {record.architecture}, {record.name}",
        "",
        "| | |",
        "|---|---|",
        *(f"| {_cell(name)} | {_cell(text)} |" for name, text in facts),
        "",
        *_scores(metrics),
        "## Use",
        "",
        "```python",
        "import codtdq",
        "",
        _use(record),
        'mask = codtdq.predict(model, "photo.jpg")',
        "```",
        "",
    ]
    return "\n".join(lines)


def _network(record: QuantRecord) -> str:
    known = record.architecture in list_models()
    about = f": {model_info(record.architecture).description}" if known else ""
    return f"`{record.architecture}`{about}"


def _use(record: QuantRecord) -> str:
    skeleton = "" if record.architecture in list_models() else ", model=float_model"
    return f'model = codtdq.from_pretrained("DIRECTORY or owner/name"{skeleton})'


def _scores(metrics: Mapping[str, Mapping[str, float]]) -> list[str]:
    if not metrics:
        return ["No scores were given when this card was written.", ""]
    names = list(dict.fromkeys(key for scores in metrics.values() for key in scores))
    lines = [
        "## Scores",
        "",
        f"| data set | {' | '.join(names)} |",
        "|---" * (1 + len(names)) + "|",
    ]
    for dataset, scores in metrics.items():
        cells = [_number(scores[key]) if key in scores else "" for key in names]
        lines.append(f"| {_cell(dataset)} | {' | '.join(cells)} |")
    return [*lines, ""]


def _number(value: Any) -> str:
    return str(value) if isinstance(value, int) else f"{float(value):.4f}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
