"""`codtdq diagnose`: where a quantized model loses evidence, as tables, figures and a page."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from codtdq.budgets import BUDGETS
from codtdq.budgets import HELP as BUDGET_HELP
from codtdq.cli.common import (
    add_calibration,
    add_dataset,
    add_model,
    add_weights,
    command_of,
    describe,
    opened_dataset,
    print_json,
    table,
)
from codtdq.errors import ConfigError
from codtdq.lab.commands.options import words

if TYPE_CHECKING:
    from codtdq.lab.diagnosis import Diagnosis

METHODS = "w4a4,dstg-only,cod-tdq,cod-tdq-guarded"
WORST = 5


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    describe(
        parser,
        [
            "--out runs/why",
            "--model escnet-small --method w4a4,cod-tdq --limit 16 --out runs/why",
            "--model cfrn --checkpoint cfrn.pth --dataset CAMO --data-root ~/cod --out runs/camo",
            "--method w4a4,repq-vit --dataset camosynth/test-spikes --archive raw --out runs/why",
            "--layers '*.attn.qkv,*.mlp.fc1' --out runs/weights",
        ],
    )
    add_model(parser, packed=False)
    add_weights(parser)
    parser.add_argument(
        "--method",
        default=METHODS,
        metavar="A,B",
        help=f"methods, see `codtdq list methods`; FP32 comes by itself (default {METHODS})",
    )
    add_dataset(parser, limit=8)
    parser.add_argument(
        "--images",
        type=int,
        default=4,
        metavar="K",
        help="images to show in the gallery (default 4)",
    )
    add_calibration(parser)
    parser.add_argument("--budget", choices=BUDGETS, default="fast", help=BUDGET_HELP)
    parser.add_argument("--seed", type=int, default=0, help="random seed of the methods")
    band = parser.add_argument_group("boundary-heavy tokens (ground truth; no quantizer sees it)")
    band.add_argument(
        "--r-in",
        type=float,
        default=3.0,
        metavar="PX",
        help="band inside the object, in pixels of the mask (default 3)",
    )
    band.add_argument(
        "--r-out", type=float, default=3.0, metavar="PX", help="band outside it (default 3)"
    )
    band.add_argument(
        "--gamma-boundary",
        type=float,
        default=0.1,
        metavar="G",
        help="least share of a boundary token in the band (default 0.1)",
    )
    band.add_argument(
        "--gamma-nonboundary",
        type=float,
        default=0.01,
        metavar="G",
        help="largest share of a non-boundary token (default 0.01)",
    )
    parser.add_argument(
        "--layers",
        type=words,
        default=[],
        metavar="PATTERN,..",
        help="whose weights the histograms show: names of operators, * and ? allowed (default: the "
        "largest attention and the largest MLP weight)",
    )
    parser.add_argument(
        "--archive", metavar="DIR", help="also keep every input as safetensors (large)"
    )
    parser.add_argument(
        "--no-figures", action="store_true", help="no PNG and SVG figures; needs no matplotlib"
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="a new or empty folder")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace the files of an earlier diagnosis in it"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Check, measure, write, print the worst layers."""
    from codtdq.lab.pages.folder import PAGE, check_folder, write_folder

    check_folder(args.out, overwrite=args.overwrite)
    if args.images < 0:
        raise ConfigError(f"--images is {args.images}; accepted: 0 or more")
    if not args.no_figures:
        from codtdq.lab.figures.style import require_matplotlib

        require_matplotlib()
    diagnosis = _diagnosed(args)
    files = write_folder(diagnosis, args.out, figures=not args.no_figures, overwrite=args.overwrite)
    if args.json:
        print_json(
            {
                "out": args.out,
                "files": [str(f) for f in files],
                "metrics": {m.method: m.metrics for m in diagnosis.methods},
            }
        )
        return
    _print(diagnosis)
    print(f"{len(files)} files written to {args.out}; open {args.out}/{PAGE} in a browser")


def _diagnosed(args: argparse.Namespace) -> Diagnosis:
    from codtdq.data import open_images
    from codtdq.evaluation.calibration import CALIBRATION_IMAGES, CalibrationImages
    from codtdq.lab.diagnosis import diagnose
    from codtdq.methods import method_info
    from codtdq.resolve import CALIBRATION_SPLIT, open_model

    names = [name for name in args.method.replace(",", " ").split() if name != "fp32"]
    if not names:
        raise ConfigError("--method names no quantized method; see `codtdq list methods`")
    needed = any(method_info(name).calibration_images for name in names)
    model = open_model(args.model, args.checkpoint, untrained=args.untrained)
    dataset = opened_dataset(args)
    calibration = None
    if needed:
        count = args.calibration_images or CALIBRATION_IMAGES
        images = open_images(args.calibration or CALIBRATION_SPLIT, args.data_root, limit=count)
        calibration = CalibrationImages(model, images, count=count)
    return diagnose(
        model,
        names,
        dataset,
        calibration=calibration,
        limit=args.limit,
        radii=(args.r_in, args.r_out),
        gamma=(args.gamma_boundary, args.gamma_nonboundary),
        seed=args.seed,
        budget=args.budget,
        archive=args.archive,
        keep_images=args.images,
        layers=args.layers,
        command=command_of(args),
    )


def _print(diagnosis: Diagnosis) -> None:
    """Scores, and the layers whose boundaries lose most under the first method."""
    rows = [
        [m.title, f"{m.metrics['S']:.4f}", f"{m.metrics['MAE']:.4f}"] for m in diagnosis.methods
    ]
    print(table(["method", "S", "MAE"], rows))
    for method in diagnosis.methods[1:]:
        known = [(layer.boundary.rho0, layer) for layer in method.layers if layer.boundary]
        known.sort(key=lambda pair: -pair[0])
        lines = [
            [layer.name, layer.role, f"{rho:.3f}", f"{layer.sqnr_db:.1f}"]
            for rho, layer in known[:WORST]
        ]
        if lines:
            print(f"\nlargest zero-bin mass on boundaries, {method.title}")
            print(table(["layer", "role", "rho0", "SQNR dB"], lines))
    print()
