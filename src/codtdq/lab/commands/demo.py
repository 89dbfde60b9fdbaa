"""`codtdq demo`: the whole story on what comes with the package."""

from __future__ import annotations

import argparse
import dataclasses
import sys

from codtdq.cli.common import describe, positive, print_json, table

_DATA = {
    "samples": "sample pictures (compositions of CC0 images)",
    "camosynth": "synthetic images (camosynth, all four test splits)",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    describe(parser, ["", "--limit 16 --out my-demo"])
    parser.add_argument(
        "--limit",
        type=positive,
        default=None,
        metavar="N",
        help="synthetic test images per setting (default 32)",
    )
    parser.add_argument("--out", default="demo", metavar="DIR", help="folder for the picture")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Run, then print the tables in the form of the paper's motivating one."""
    from codtdq.lab.demo import DEFAULT_IMAGES, METRICS, SUBJECTS, TIMED, conclusions, run_demo

    def say(text: str) -> None:
        if sys.stderr.isatty():
            print(text, file=sys.stderr)

    result = run_demo(images=args.limit or DEFAULT_IMAGES, out=args.out, say=say)
    if args.json:
        print_json(
            {
                "images": result.images,
                "data": {subject.name: subject.data for subject in SUBJECTS},
                "execution": result.execution,
                "scores": result.scores,
                "seconds": round(result.seconds, 1),
                "worst_layers": {
                    model: [dataclasses.asdict(loss) for loss in worst]
                    for model, worst in result.worst.items()
                },
                "speed": result.speed,
                "conclusions": conclusions(result),
                "picture": str(result.picture),
                "environment": result.environment,
            }
        )
        return
    env = result.environment
    print(
        f"COD-TDQ {env['codtdq']} on {env['cpu']}, {env['threads']} threads, torch {env['torch']}"
    )
    print("a column says how each setting was executed\n")
    words = {subject.name: _DATA[subject.data] for subject in SUBJECTS}
    for name, scores in result.scores.items():
        how = result.execution[name]
        print(f"{name} on {result.images[name]} {words[name]}")
        rows = [[s, *[f"{v[key]:.4f}" for key in METRICS], how[s]] for s, v in scores.items()]
        print(table([name, *METRICS, "execution"], rows))
        speed = result.speed[name]
        print(
            f"\n{TIMED}, one image at a time: {speed['int4_ms']:.1f} ms, fp32 "
            f"{speed['fp32_ms']:.1f} ms, {speed['ratio']:.2f}x as fast (quartiles "
            f"{speed['ratio_q1']:.2f} to {speed['ratio_q3']:.2f}); {how[TIMED]}"
        )
        print("\nlayers of cod-tdq that lose most (input SQNR, averages over 4 images)")
        worst = [
            [
                w.name,
                w.role,
                f"{w.sqnr_db:.1f} dB",
                f"{w.zero_mass:.3f}",
                f"{w.clip_rate:.3f}",
                f"{w.eta:.2f}",
            ]
            for w in result.worst[name]
        ]
        print(table(["layer", "role", "SQNR", "rho_0", "clipped", "eta"], worst) + "\n")
    print("\n".join(conclusions(result)))
    print(f"\npicture: {result.picture}   ({result.seconds:.0f} s)")
