"""`codtdq select`: the (g, tau, zr) that suits a model, chosen without labels."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from codtdq.cli.common import (
    add_calibration,
    add_model,
    add_weights,
    describe,
    print_json,
    refuse_option,
    table,
)
from codtdq.errors import ConfigError
from codtdq.io import write_json
from codtdq.lab.commands.options import numbers_or_none, whole_numbers

if TYPE_CHECKING:
    from codtdq.lab.selection import LayerChoice, Selection, Terms

IMAGES = 16
BASES = {"extended": "cod-tdq-guarded", "paper": "cod-tdq"}  # of each score, unless --base
SHOWN = 10  # rows of the table; --json has all


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    describe(
        parser,
        [
            "",
            "--g 32 --tau 1,none --zero-ratio 0.2,0.4,none --calibration-images 8",
            "--base cod-tdq --per-layer --out selected.json",
            "--score paper --model cfrn --checkpoint cfrn.pth",
        ],
    )
    add_model(parser, packed=False)
    add_weights(parser)
    parser.add_argument(
        "--score",
        choices=list(BASES),
        default="extended",
        help="extended: drift of logits and features first (default); paper: the terms of the "
        "paper alone, feature drift, eta, rho_0 and boundary rho_0, which count alike",
    )
    parser.add_argument(
        "--base",
        metavar="NAME",
        help="variant of the paper's method that the choice goes into (default cod-tdq-guarded, "
        "with --score paper cod-tdq)",
    )
    parser.add_argument(
        "--g",
        type=whole_numbers,
        default=None,
        metavar="N,..",
        help="group sizes (default 16,32,64)",
    )
    parser.add_argument(
        "--tau",
        type=numbers_or_none,
        default=None,
        metavar="X,..",
        help="bounds C1, none: without (default 0.5,1,2,none)",
    )
    parser.add_argument(
        "--zero-ratio",
        type=numbers_or_none,
        default=None,
        metavar="X,..",
        help="bounds C2, none: without (default 0.1,0.2,0.4,none)",
    )
    parser.add_argument(
        "--per-layer", action="store_true", help="choose for each operator on its own"
    )
    add_calibration(parser, images=IMAGES)
    refuse_option(parser, "--dataset", "use --calibration: no label is read here")
    refuse_option(parser, "--limit", "use --calibration-images")
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="write the choice as a config file for `codtdq quantize --config`",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Score the grid, choose, print."""
    from codtdq.data import open_images
    from codtdq.evaluation import CalibrationImages
    from codtdq.lab.selection import Selector, select, select_per_layer
    from codtdq.lab.selection.candidates import (
        GROUPS,
        TAUS,
        ZERO_RATIOS,
        candidate_grid,
        check_base,
    )
    from codtdq.resolve import CALIBRATION_SPLIT, open_config, open_model

    count = IMAGES if args.calibration_images is None else args.calibration_images
    if args.per_layer and args.score == "paper":
        raise ConfigError("--score paper chooses one setting for all; leave --per-layer out")
    args.base = args.base or BASES[args.score]
    model = open_model(args.model, args.checkpoint, untrained=args.untrained)
    named = open_config(model, name=args.base)
    assert named is not None
    base = check_base(named)
    candidates = candidate_grid(args.g or GROUPS, args.tau or TAUS, args.zero_ratio or ZERO_RATIOS)
    for candidate in candidates:
        candidate.config(base)  # a value out of range is an error before anything is computed
    data = open_images(args.calibration or CALIBRATION_SPLIT, args.data_root, limit=count)
    selector = Selector(model, base, CalibrationImages(model, data, count=len(data)))
    selection = select(selector, candidates, score=args.score)
    config, layers, mixed = selection.config, list["LayerChoice"](), None
    if args.per_layer:
        config, layers = select_per_layer(selector, candidates)
        mixed, bits = selector.score(config)
    if args.out:
        write_json(args.out, config.to_dict(), indent=1)
    if args.json:
        found = selection.to_dict() | {"model": args.model, "dataset": data.name}
        if mixed is not None:
            found["per_layer"] = {
                "bits_per_activation": bits,
                **mixed.to_dict(),
                "layers": [layer.to_dict() for layer in layers],
            }
        print_json(found | {"config": config.to_dict()})
        return
    print(f"{args.model}, {args.base}, {selection.images} images of {data.name}, no masks")
    print()
    print(_grid_text(selection))
    if mixed is not None:
        print()
        print(_layers_text(layers, mixed, selection))
    if args.out:
        print(f"config written to {args.out}")


def _grid_text(selection: Selection) -> str:
    from codtdq.lab.selection import SCORES

    terms = list(SCORES[selection.score])
    rows = [
        [
            str(one.candidate),
            f"{one.terms.weighted(selection.score):.4f}",
            *(f"{getattr(one.terms, term):.4f}" for term in terms),
            f"{one.act_bits:.2f}",
        ]
        for one in selection.scored[:SHOWN]
    ]
    text = table(["setting", "score", *terms, "bits"], rows)
    left = len(selection.scored) - len(rows)
    if left:
        text += f"\n... and {left} with a higher score (--json has all)"
    return f"{text}\n\nchosen: {selection.chosen.candidate}\n{_paper_text(selection)}"


def _paper_text(selection: Selection) -> str:
    """Say whether the setting of the paper is the one that was selected."""
    from codtdq.lab.selection import PAPER_SETTING

    name, found = f"the paper's setting ({PAPER_SETTING})", selection.paper_setting
    if found is None:
        return f"{name} is not among the candidates"
    if found.selected:
        return f"{name} is the one selected"
    text = f"{name} is not selected: rank {found.rank} of {found.of}, score {found.score:.4f}"
    if found.better:
        text += f"; {found.better} are as low or lower in every term: no positive weights select it"
    return text


def _layers_text(layers: list[LayerChoice], mixed: Terms, selection: Selection) -> str:
    counts: dict[str, int] = {}
    for layer in layers:
        counts[str(layer.candidate)] = counts.get(str(layer.candidate), 0) + 1
    rows = [[s, str(n)] for s, n in sorted(counts.items(), key=lambda item: -item[1])]
    best = selection.chosen.terms.score
    verdict = "lower than" if mixed.score < best else "not lower than"
    return (
        table(["setting", "operators"], rows)
        + f"\n\nper layer: score {mixed.score:.4f}, {verdict} the one setting's {best:.4f}"
    )
