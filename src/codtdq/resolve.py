"""From words to objects: a model by name or directory, a config by preset, file and changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from codtdq.api import DEFAULT, config, load, quantize
from codtdq.data import open_images
from codtdq.data.dataset import Dataset
from codtdq.errors import ConfigError
from codtdq.evaluation.calibration import CALIBRATION_IMAGES, CalibrationImages
from codtdq.models import create_model, list_models, model_info
from codtdq.models.weights import PACKED, packed_checkpoint, shipped_weights
from codtdq.planning import QuantConfig
from codtdq.planning.config import read_json

CALIBRATION_SPLIT = "camosynth/calib"


def open_model(
    spec: str,
    checkpoint: str | Path | None = None,
    *,
    untrained: bool = False,
    backend: str = "auto",
) -> nn.Module:
    """A model by registered name (with its shipped or given weights), or a quantized one.

    spec: of a quantized model its directory, or the name of one that comes with the package.
    untrained: accept fresh weights where none are shipped or given.
    backend: who executes a quantized model.
    """
    path = packed_checkpoint(spec)
    if spec not in list_models() and (path.exists() or "/" in spec):
        if not path.exists():
            raise ConfigError(
                f"{spec} does not exist; --model takes a registered name "
                f"({', '.join([*list_models(), *PACKED])}) or the directory of a quantized model"
            )
        if checkpoint is not None:
            raise ConfigError(f"--checkpoint goes with a registered model, not with {spec}")
        return load(path, backend=backend)
    if checkpoint is None and model_info(spec).weights is None and not untrained:
        raise ConfigError(
            f"no weights of {spec} come with the package; pass --checkpoint FILE, or --untrained "
            "to try it with random ones"
        )
    weights = model_info(spec).weights
    shipped = weights is not None and shipped_weights(weights).is_file()
    return create_model(spec, checkpoint=checkpoint, pretrained=shipped or not untrained)


def open_config(
    model: str | nn.Module,
    *,
    name: str | None = None,
    file: str | Path | None = None,
    changes: Sequence[str] = (),
    overrides: str | Path | None = None,
    default: str | None = DEFAULT,
) -> QuantConfig | None:
    """A config by name or from a file, with `FIELD=JSON` changes and per-layer overrides.

    Returns None where nothing was asked for and there is no default.
    """
    if name is not None and file is not None:
        raise ConfigError("--method and --config exclude each other; put the fields in one file")
    if file is not None:
        found = config(Path(file))
    elif name is not None or default is not None:
        found = config(name or str(default), model=model)
    elif changes or overrides:
        raise ConfigError("--set and --overrides change a setting; give --method or --config too")
    else:
        return None
    found = found.replace(**_changes(changes))
    return found if overrides is None else found.with_overrides(read_json(overrides))


def calibration_for(
    model: nn.Module, config: QuantConfig, dataset: str | None, root: str | None, count: int | None
) -> CalibrationImages | None:
    """Calibration batches if the config needs any: by default the synthetic calibration split."""
    if not config.needs_calibration:
        return None
    count = CALIBRATION_IMAGES if count is None else count
    images: Dataset = open_images(dataset or CALIBRATION_SPLIT, root, limit=count)
    return CalibrationImages(model, images, count=count)


def quantize_for(
    model: nn.Module,
    config: QuantConfig,
    *,
    dataset: str | None = None,
    root: str | None = None,
    count: int | None = None,
    seed: int = 0,
    budget: str = "fast",
    state_dir: str | Path | None = None,
    backend: str = "reference",
) -> nn.Module:
    """Quantize a model with whatever calibration its config needs."""
    images = calibration_for(model, config, dataset, root, count)
    return quantize(
        model,
        config,
        calibration=images,
        backend=backend,
        seed=seed,
        budget=budget,
        state_dir=state_dir,
    )


def _changes(texts: Sequence[str]) -> dict[str, object]:
    """`FIELD=VALUE` texts as fields."""
    found: dict[str, object] = {}
    for change in texts:
        field, separator, text = change.partition("=")
        if not separator:
            raise ConfigError(f"--set {change!r}: expected FIELD=VALUE, e.g. zero_ratio=0.4")
        found[field] = _value(text)
    return found


def _value(text: str) -> object:
    """JSON where it parses, else the bare word: `projection=guarded` needs no quotes."""
    try:
        return json.loads(text)
    except ValueError:
        return text
