"""`codtdq list` and `codtdq plan`: look without changing anything."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import TYPE_CHECKING, Any

from codtdq.cli.common import add_config, add_model, print_json, table, verb
from codtdq.errors import ConfigError

if TYPE_CHECKING:
    from codtdq.engine.choose import BackendRecord
    from codtdq.methods.outline import Outline


def register(verbs: Any) -> None:
    """Add both verbs."""
    parser = verb(verbs, "list", "list what the package knows", ["models", "presets --json"])
    parser.add_argument("what", choices=["models", "methods", "presets", "datasets"])
    parser.set_defaults(run=run_list)
    parser = verb(
        verbs, "plan", "show what would be quantized, operator by operator",
        ["", "--model escnet-small --preset w4a4", "--set first_layer=quantize --json",
         "--method cod-tdq-plus"],
    )  # fmt: skip
    add_model(parser, packed=False)
    add_config(parser, "cod-tdq", methods=False)
    parser.add_argument(
        "--method", metavar="NAME", help="a method whose formats are known beforehand, instead "
        "of a preset: cod-tdq-plus; --set changes its config",
    )  # fmt: skip
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
    from codtdq.engine import foresee
    from codtdq.models import build_model
    from codtdq.resolve import open_config, outline_for

    model = build_model(args.model)
    if args.method is not None:
        if args.preset or args.config or args.overrides:
            raise ConfigError("--method excludes --preset, --config and --overrides")
        _print_outline(args, outline_for(model, args.method, args.set))
        return
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
    _print_backend(backend)


def _print_outline(args: argparse.Namespace, found: Outline) -> None:
    from codtdq.engine.choose import foresee_operators

    backend = foresee_operators(found.model)
    if args.json:
        print_json({"model": args.model, **found.to_dict(), "backend": backend.to_dict()})
        return
    print(table(
        ["operator", "type", "role", "shape", "weights", "activations"],
        [[row.name, row.type, row.role, "x".join(map(str, row.shape)),
          f"{row.weights} {row.weight_bits:.2f}", f"{row.activations} {row.act_bits:.2f}"]
         for row in found.rows],
    ))  # fmt: skip
    print(f"\nmethod        {found.method}")
    print(f"operators     {len(found.rows)} quantized")
    print(f"size          {found.packed_bytes / 2**20:.2f} MiB of packed weights, "
          f"{found.fp32_bytes / 2**20:.2f} MiB in FP32")  # fmt: skip
    print(f"effective     {found.bits['weight']:.2f} bits per quantized weight, "
          f"{found.bits['activation']:.2f} per quantized activation, scales and zero-points "
          "included")  # fmt: skip
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
