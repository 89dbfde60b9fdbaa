"""`codtdq list` and `codtdq plan`: look without changing anything."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from codtdq.cli.common import add_config, add_model, print_json, table, verb


def register(verbs: Any) -> None:
    """Add both verbs."""
    parser = verb(verbs, "list", "list what the package knows", ["models", "presets --json"])
    parser.add_argument("what", choices=["models", "methods", "presets", "datasets"])
    parser.set_defaults(run=run_list)
    parser = verb(
        verbs, "plan", "show what would be quantized, operator by operator",
        ["", "--model escnet-small --preset w4a4", "--set first_layer=quantize --json"],
    )  # fmt: skip
    add_model(parser, packed=False)
    add_config(parser, "cod-tdq", methods=False)
    parser.set_defaults(run=run_plan)


def run_list(args: argparse.Namespace) -> None:
    """Print one of the registries."""
    rows = {"models": _models, "methods": _methods, "presets": _presets, "datasets": _datasets}[
        args.what
    ]()
    if args.json:
        print_json(rows)
    else:
        header = list(rows[0])
        print(table(header, [[_cell(row[key]) for key in header] for row in rows]))


def run_plan(args: argparse.Namespace) -> None:
    """Print a plan. Weights are not needed, only shapes."""
    from codtdq.api import plan
    from codtdq.backends import foresee
    from codtdq.models import build_model
    from codtdq.opening import open_config

    model = build_model(args.model)
    config = open_config(model, name=args.preset, file=args.config, changes=args.set,
                         overrides=args.overrides, default=args.default_preset)  # fmt: skip
    assert config is not None
    found = plan(model, config)
    backend = foresee(model, found)
    if args.json:
        print_json({"model": args.model, "config": config.to_dict(), **found.to_dict(),
                    "backend": backend.to_dict()})  # fmt: skip
        return
    print(found)
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
        rows.append({"name": name, "input": info.input_size, "postprocess": info.postprocess,
                     "weights": "shipped" if shipped else "bring your own",
                     "description": info.description})  # fmt: skip
    return rows


def _presets() -> list[dict[str, Any]]:
    from codtdq.planning.presets import PRESETS, preset

    return [
        {"name": name, "calibration": "needed" if preset(name).needs_calibration else "none",
         "description": entry.description}
        for name, entry in PRESETS.items()
    ]  # fmt: skip


def _methods() -> list[dict[str, Any]]:
    from codtdq.methods import list_methods, method_info

    rows = []
    for name in list_methods():
        info = method_info(name)
        rows.append({
            "name": name, "title": info.title, "ranges": info.ranges,
            "granularity": info.granularity, "calibration": info.calibration_images,
            "gradients": "yes" if info.gradients else "no",
            "bits/activation": info.act_bits, "bits/weight": info.weight_bits,
            "made from": info.evidence, "source": info.source,
        })  # fmt: skip
    return rows


def _datasets() -> list[dict[str, Any]]:
    from codtdq.data import list_datasets

    return [
        {"name": row.name, "kind": row.kind, "images": row.expected, "description": row.description}
        for row in list_datasets()
    ]


def _cell(value: Any) -> str:
    return "any" if value is None else str(value)
