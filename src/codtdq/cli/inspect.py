"""`codtdq list` and `codtdq plan`: look without changing anything."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import TYPE_CHECKING, Any

from codtdq.cli.common import (
    DEFAULT_METHOD,
    add_config,
    add_model,
    describe,
    opened_config,
    print_json,
    table,
)
from codtdq.columns import terminal_width

if TYPE_CHECKING:
    from codtdq.engine import BackendRecord


DETAILS = ("granularity", "gradients", "made from", "source")  # of methods, for --json


def configure_list(parser: argparse.ArgumentParser) -> None:
    """Add the options of `list`."""
    describe(parser, ["models", "presets --json"])
    parser.add_argument("what", choices=["models", "methods", "presets", "datasets"])
    parser.set_defaults(run=run_list)


def configure_plan(parser: argparse.ArgumentParser) -> None:
    """Add the options of `plan`."""
    describe(
        parser,
        [
            "",
            "--model escnet-small --preset w4a4",
            "--set first_layer=quantize --json",
            "--method cod-tdq-plus",
        ],
    )
    add_model(parser, packed=False)
    add_config(parser, DEFAULT_METHOD, learns=False)
    parser.set_defaults(run=run_plan)


def run_list(args: argparse.Namespace) -> None:
    """Print one of the registries."""
    rows = {"models": _models, "methods": _methods, "presets": _presets, "datasets": _datasets}[
        args.what
    ]()
    if args.json:
        print_json(rows)
    else:
        header = [key for key in rows[0] if key not in DETAILS]
        print(table(header, [[_cell(row[key]) for key in header] for row in rows]))


def run_plan(args: argparse.Namespace) -> None:
    """Print a plan. Weights are not needed, only shapes."""
    from codtdq.api import blank_image
    from codtdq.engine import predict_backend
    from codtdq.methods import outline
    from codtdq.models import build_model
    from codtdq.planning.text import format_plan

    model = build_model(args.model)
    config = opened_config(model, args)
    assert config is not None
    found, sketched = outline(model, config, blank_image(model))
    backend = None if sketched is None else predict_backend(sketched)
    if args.json:
        print_json(
            {
                "model": args.model,
                "config": config.to_dict(),
                **found.to_dict(),
                "backend": None if backend is None else backend.to_dict(),
            }
        )
        return
    print(format_plan(found, terminal_width()))
    if backend is None:
        print("backend       known once the method is calibrated: its formats follow from images")
    else:
        _print_backend(backend)


def _print_backend(backend: BackendRecord) -> None:
    native, simulated = len(backend.native), len(backend.fallbacks)
    print(f"backend       {backend.name}: {backend.reason}; {native} native, {simulated} simulated")
    for reason, count in Counter(backend.fallbacks.values()).items():
        print(f"              {count} simulated: {reason}")


def _models() -> list[dict[str, Any]]:
    from codtdq.models import list_models, model_info
    from codtdq.models.weights import shipped_weights

    rows = []
    for name in list_models():
        info = model_info(name)
        shipped = info.weights is not None and shipped_weights(info.weights).is_file()
        rows.append(
            {
                "name": name,
                "input": info.input_size,
                "postprocess": info.postprocess,
                "weights": "shipped" if shipped else "bring your own",
                "description": info.description,
            }
        )
    return rows


def _presets() -> list[dict[str, Any]]:
    from codtdq.planning.presets import PRESETS, preset

    return [
        {
            "name": name,
            "calibration": "needed" if preset(name).needs_calibration else "none",
            "description": entry.description,
        }
        for name, entry in PRESETS.items()
    ]


def _methods() -> list[dict[str, Any]]:
    from codtdq.methods import list_methods, method_info

    rows = []
    for name in list_methods():
        info = method_info(name)
        rows.append(
            {
                "name": name,
                "title": info.title,
                "ranges": info.ranges,
                "granularity": info.granularity,
                "calibration": info.calibration_images,
                "gradients": "yes" if info.gradients else "no",
                "bits/activation": info.act_bits,
                "bits/weight": info.weight_bits,
                "made from": info.evidence,
                "source": info.source,
            }
        )
    return rows


def _datasets() -> list[dict[str, Any]]:
    from codtdq.data import list_datasets

    return [
        {"name": row.name, "kind": row.kind, "images": row.expected, "description": row.description}
        for row in list_datasets()
    ]


def _cell(value: Any) -> str:
    return "any" if value is None else str(value)
