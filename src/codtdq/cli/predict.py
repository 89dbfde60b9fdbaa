"""`codtdq predict`: masks, overlays and cutouts of images."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from codtdq.cli.common import (
    add_calibration,
    add_config,
    add_model,
    add_postprocess,
    add_size,
    add_threads,
    add_weights,
    describe,
    opened_model,
    print_json,
    use_threads,
)
from codtdq.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import nn

    from codtdq.data import Dataset
    from codtdq.evaluation.masks_to_files import Pictures, Written

PACKED_MODEL, FLOAT_MODEL = "vit-cod-w4a4", "vit-cod"  # of the package: run as it is, quantized
STREAM = "-"  # standard input, or standard output


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    describe(
        parser,
        [
            "photo.jpg --out mask.png",
            "photos --recursive --overlay --threshold 0.5 --out masks",
            "'photos/*.jpg' --preset cod-tdq --cutout --out masks",
            "photos --model my-w4a4 --out masks --resume",
            "- --out - < photo.jpg > mask.png",
        ],
    )
    parser.add_argument(
        "images", nargs="+", metavar="IMAGE", help="image, folder or glob; - is standard input"
    )
    add_model(parser, default=f"{PACKED_MODEL}; {FLOAT_MODEL} if a setting or weights are given")
    parser.set_defaults(model=None)
    add_weights(parser)
    add_size(parser)
    add_config(parser, None)
    add_threads(parser)
    add_calibration(parser)
    parser.add_argument(
        "--out",
        required=True,
        metavar="DIR",
        help="folder for the masks; for one image also a name ending in .png, or - for standard "
        "output",
    )
    parser.add_argument(
        "--overlay", action="store_true", help="also the image with the object tinted and outlined"
    )
    parser.add_argument(
        "--cutout", action="store_true", help="also the object on a transparent ground (RGBA)"
    )
    parser.add_argument(
        "--threshold",
        type=float,
        metavar="T",
        help="write 255 where the mask is T (0 to 1) of its range or more, 0 elsewhere",
    )
    parser.add_argument("--recursive", action="store_true", help="take folders below a folder too")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N images")
    parser.add_argument("--overwrite", action="store_true", help="replace files that are there")
    parser.add_argument(
        "--resume", action="store_true", help="go on: leave images whose files are there"
    )
    add_postprocess(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Predict every image, say what was written and how it was computed; 1 if an image failed."""
    from codtdq.evaluation.masks_to_files import Pictures, check_files, predict_to_files

    if args.overwrite and args.resume:
        raise ConfigError("--overwrite and --resume exclude each other; give one")
    pictures = Pictures(args.threshold, args.overlay, args.cutout, args.postprocess)
    use_threads(args)
    args.model = args.model or _default_model(args)
    sources = _sources(args)
    if args.out == STREAM:
        return _to_stdout(args, sources, pictures)
    again = {"overwrite": args.overwrite, "resume": args.resume}
    check_files(sources, args.out, pictures, **again)  # before minutes of calibration
    model = opened_model(args, size=args.size)
    try:
        written = predict_to_files(model, sources, args.out, pictures, **again)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted; what was written stays in {args.out}, the same command with --resume "
            "goes on"
        ) from None
    _report(args, sources, model, written)
    return 1 if written.failed else 0


def _default_model(args: argparse.Namespace) -> str:
    """The packed model of the package, wherever the user is; the float one where that is needed."""
    from codtdq.models.weights import shipped_weights

    asked = (args.method, args.config, args.set, args.overrides, args.checkpoint)
    return FLOAT_MODEL if any(asked) else str(shipped_weights(PACKED_MODEL))


def _report(
    args: argparse.Namespace, sources: list[Dataset], model: nn.Module, written: Written
) -> None:
    from codtdq.evaluation.provenance import execution_of

    notes = [note for source in sources for note in source.notes]
    if args.json:
        print_json(
            {
                "written": [str(path) for path in written.files],
                "kept": written.kept,
                "failed": written.failed,
                "notes": notes,
                "execution": execution_of(model),
            }
        )
    else:
        kept = f"; {len(written.kept)} images were done before" if written.kept else ""
        print(f"{len(written.files)} files written to {args.out}{kept}")
        print(f"executed: {execution_of(model)}")
        for note in notes:
            print(f"note: {note}")
    if written.failed:
        total = sum(len(source) for source in sources)
        print(f"codtdq predict: {len(written.failed)} of {total} images failed:", file=sys.stderr)
        for name, reason in written.failed.items():
            print(f"  {name}: {reason}", file=sys.stderr)


def _sources(args: argparse.Namespace) -> list[Dataset]:
    """The images of the arguments, at most `--limit`; standard input is one called stdin."""
    from codtdq.data import ImageFolder, ImageList
    from codtdq.data.dataset import check_limit

    check_limit(args.limit)
    if args.images.count(STREAM) > 1:
        raise ConfigError("standard input (-) holds one image; give - once")
    sources: list[Dataset] = []
    left, unused = args.limit, 0
    for source in args.images:
        if left == 0:  # looked at all the same: a wrong name is an error wherever it stands
            unused += 1 if source == STREAM else len(ImageFolder(source, recursive=args.recursive))
            continue
        found: Dataset = (
            ImageList([_from_stdin()], names=["stdin"], limit=left)
            if source == STREAM
            else ImageFolder(source, limit=left, recursive=args.recursive)
        )
        left = None if left is None else left - len(found)
        sources.append(found)
    if unused:
        sources[-1].notes.append(f"{unused} images of later arguments left out (--limit)")
    return sources


def _from_stdin() -> NDArray[np.uint8]:
    from codtdq.imagefile import decode_upright

    return decode_upright(sys.stdin.buffer.read(), "standard input")


def _to_stdout(args: argparse.Namespace, sources: list[Dataset], pictures: Pictures) -> int:
    """Write one picture of one image; all else goes to standard error."""
    from codtdq.evaluation.masks_to_files import encoded
    from codtdq.evaluation.provenance import execution_of

    images = sum(len(source) for source in sources)
    if images != 1 or (args.overlay and args.cutout) or args.json:
        raise ConfigError(
            f"--out - writes one picture: give one image ({images} found), at most one of "
            "--overlay and --cutout, and no --json"
        )
    model = opened_model(args, size=args.size)
    first = next(iter(pictures.drawn(model, sources[0][0].image)))
    sys.stdout.buffer.write(encoded(first[1]))
    sys.stdout.buffer.flush()
    print(f"executed: {execution_of(model)}", file=sys.stderr)
    return 0
