"""Statistics of chosen layers' weights, float and by method (the paper's Tables S3 and S4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from torch import nn

from codtdq.api import config
from codtdq.lab.diagnosis.weights import chosen_weights, weight_records
from codtdq.methods import method_info
from codtdq.progress import Progress
from codtdq.resolve import quantize_for

FLOAT = "fp32"


def run_weights(
    model: nn.Module,
    methods: Sequence[str],
    *,
    layers: Sequence[str] = (),
    calibration: str | None = None,
    data_root: str | None = None,
    calibration_images: int | None = None,
    seed: int = 0,
    budget: str = "fast",
) -> dict[str, Any]:
    """Quantize by every method and take the weights that products use; FP32 is the first.

    layers: patterns of operator names; the largest attention and MLP weight if there are none.
    calibration: images for methods that need them.
    """
    for method in methods:
        method_info(method)  # an unknown name fails before anything is quantized
    names = chosen_weights(model, layers)
    rows = _rows(model, FLOAT, names)
    with Progress("quantizing", len(methods)) as bar:
        for method in dict.fromkeys(methods):
            if method != FLOAT:
                done = quantize_for(
                    model,
                    config(method, model=model),
                    dataset=calibration,
                    root=data_root,
                    count=calibration_images,
                    seed=seed,
                    budget=budget,
                )
                rows += _rows(done, method, names)
            bar.step(note=method)
    rows.sort(key=lambda row: names.index(row["layer"]))  # stable: methods keep their order
    return {"kind": "weights", "layers": names, "seed": seed, "budget": budget, "rows": rows}


def _rows(model: nn.Module, method: str, names: list[str]) -> list[dict[str, Any]]:
    records = [record for record in weight_records(model) if record.name in names]
    rows = []
    for record in records:
        fields = asdict(record)
        rows.append({"layer": fields.pop("name"), "method": method, **fields})
    return rows
