"""Does the label-free score rank settings as the metric does? Score and S over a grid, both models.

    python benchmarks/selection.py [--models cfrn-small,escnet-small] [--out results/selection]

The score sees calibration images without masks; S is measured on other, labelled test images. Every
setting is one row of rows.jsonl; a run goes on where an earlier one stopped. The weights of the
score are those of the package (codtdq.lab.selection.score), fixed before S was measured.
"""

import argparse
import json
import os
import random
from pathlib import Path

from scipy.stats import spearmanr

import codtdq
from codtdq.data import open_dataset
from codtdq.evaluation import CalibrationImages, evaluate
from codtdq.lab.figures import hyperparameter_sensitivity
from codtdq.lab.figures.files import save_figure
from codtdq.lab.selection import WEIGHTS, Candidate, Selector, candidate_grid, select_per_layer

MODELS = ("cfrn-small", "escnet-small")
PROJECTIONS = ("guarded", "min")
DEFAULT = Candidate(32, 1.0, 0.2)
PER_LAYER, FLOAT = "per-layer", "fp32"
GRID = candidate_grid((16, 32, 64), (0.5, 1.0, None), (0.1, 0.2, 0.4, None))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--images", type=int, default=16, help="calibration images of the score")
    parser.add_argument("--test-images", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path("results/selection"))
    parser.add_argument("--summary-only", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if not args.summary_only:
        for model in args.models.split(","):
            measure(model, args)
    rows = read_rows(args.out / "rows.jsonl")
    write(args.out / "summary.md", summary(rows))
    draw(rows, args.out)


def draw(rows, out):
    """S over g, tau and zr, a figure per model and projection."""
    floats = {row["model"]: row["S"] for row in rows if row["setting"] == FLOAT}
    for model in floats:
        for projection in ("min", "guarded"):
            points = [
                (*numbers(row["setting"]), row["S"])
                for row in rows
                if row["model"] == model
                and row["projection"] == projection
                and row["setting"] not in (PER_LAYER, FLOAT)
            ]
            if points:
                figure = hyperparameter_sensitivity(points, reference=floats[model])
                save_figure(figure, out / f"sensitivity-{model}-{projection}.png")


def numbers(setting):
    """(g, tau, zr) of a setting such as "g=32 tau=1 zr=none"."""
    values = [part.split("=")[1] for part in setting.split()]
    return [None if value == "none" else float(value) for value in values[:3]]


def measure(name, args):
    """All settings of one model that have no row yet."""
    path = args.out / "rows.jsonl"
    key = {"model": name, "images": args.images, "test_images": args.test_images}
    done = {(r["projection"], r["setting"]) for r in read_rows(path) if same(r, key)}
    model = codtdq.create_model(name)
    images = CalibrationImages(
        model, open_dataset("camosynth/calib", limit=args.images), count=args.images
    )
    test = open_dataset("camosynth", limit=args.test_images)
    if ("-", FLOAT) not in done:
        append(path, key | {"projection": "-", "setting": FLOAT, "S": score_of(model, test)})
    base = codtdq.preset("cod-tdq-guarded", model=model)
    selector = Selector(model, base, images)
    # the same random order in every run: a partial file is a fair sample of the grid
    work = [(p, c) for p in PROJECTIONS for c in GRID if p == PROJECTIONS[0] or bounded(c)]
    random.Random(0).shuffle(work)
    work = [(p, PER_LAYER) for p in PROJECTIONS] + sorted(work, key=lambda w: w[1] != DEFAULT)
    for projection, setting in work:
        if (projection, str(setting)) in done:
            continue
        selector.base = base.replace(projection=projection)
        if setting == PER_LAYER:
            config, _ = select_per_layer(selector, GRID)
        else:
            config = setting.config(selector.base)
        append(path, key | row(selector, projection, str(setting), config, test))


def bounded(candidate):
    """Without C1 and C2 there is nothing to project: both projections are the same."""
    return candidate.tau is not None or candidate.zero_ratio is not None


def row(selector, projection, setting, config, test):
    terms, bits = selector.score(config)
    return {
        "projection": projection,
        "setting": setting,
        "bits": bits,
        **terms.to_dict(),
        "S": score_of(selector.quantized, test),
    }


def score_of(model, test):
    return float(evaluate(model, test).metrics["S"])


def same(row, key):
    return all(row[field] == value for field, value in key.items())


def read_rows(path):
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def append(path, row):
    with path.open("a") as stream:
        stream.write(json.dumps(row) + "\n")


def summary(rows):
    """Markdown: correlations, then what each rule of choice would have got."""
    grid = [r for r in rows if r["setting"] not in (PER_LAYER, FLOAT)]
    weights = ", ".join(f"{name} {weight:g}" for name, weight in WEIGHTS.items())
    images = sorted({(r["images"], r["test_images"]) for r in rows})
    lines = [
        "# Label-free selection against the metric",
        "",
        f"Score on {images[0][0]} images of camosynth/calib (no masks), S on {images[0][1]} test "
        "images of camosynth (four splits). Base: cod-tdq-guarded (token groups in every layer), "
        "with the guarded and the default (min) projection. Weights of the score, fixed before "
        f"S was measured: {weights}. Made by `python benchmarks/selection.py`.",
        "",
        "Spearman rank correlation with S over the grid: the score and each term ought to be "
        "strongly negative, as lower is better. Settings are measured in random order; a row says "
        "how many of the grid it holds.",
        "",
        "| model | projection | settings | S from..to | score | " + " | ".join(WEIGHTS) + " |",
        "|---|---|---|---|---|" + "---|" * len(WEIGHTS),
    ]
    for title, part in parts(grid):
        values = [correlation(part, field) for field in ("score", *WEIGHTS)]
        ends = f"{min(r['S'] for r in part):.3f}..{max(r['S'] for r in part):.3f}"
        whole = len(GRID) if "both" not in title else len(GRID) + sum(map(bounded, GRID))
        lines.append(f"| {title} | {len(part)} of {whole} | {ends} | " + " | ".join(values) + " |")
    lines += [
        "",
        "S of the setting that the score chooses, of the best setting (which needs labels), of the "
        "default (g 32, tau 1, zr 0.2), and of the setting that the score chooses per layer:",
        "",
        "| model | projection | FP32 | chosen | S | best | S | default S | per-layer S | "
        "chosen - best | chosen - default | rank of chosen |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for title, part in parts(grid):
        lines.append(choice(title, part, rows))
    return "\n".join(lines) + "\n"


def parts(grid):
    """Rows of each model: by projection (a setting without bounds belongs to both), and all."""
    for model in sorted({r["model"] for r in grid}):
        mine = [r for r in grid if r["model"] == model]
        for projection in PROJECTIONS:
            free = [r for r in mine if r["setting"].endswith("tau=none zr=none")]
            own = [r for r in mine if r["projection"] == projection and r not in free]
            part = own + free
            yield f"{model} | {projection}", part
        yield f"{model} | both", mine


def correlation(part, field):
    if len(part) < 3:
        return "-"
    value = spearmanr([r[field] for r in part], [r["S"] for r in part]).statistic
    return f"{value:+.2f}"


def choice(title, part, rows):
    model, projection = title.split(" | ")
    chosen = min(part, key=lambda r: (r["score"], r["bits"]))
    best = max(part, key=lambda r: r["S"])
    default = [r for r in part if r["setting"] == str(DEFAULT)]
    mixed = [
        r
        for r in rows
        if r["model"] == model and r["setting"] == PER_LAYER and r["projection"] == projection
    ]
    exact = [r for r in rows if r["model"] == model and r["setting"] == FLOAT]
    rank = 1 + sum(r["S"] > chosen["S"] for r in part)
    against = f"{chosen['S'] - default[0]['S']:+.4f}" if len(default) == 1 else "-"
    cells = [
        title,
        one(exact),
        named(chosen, projection),
        f"{chosen['S']:.4f}",
        named(best, projection),
        f"{best['S']:.4f}",
        one(default),
        one(mixed),
        f"{chosen['S'] - best['S']:+.4f}",
        against,
        f"{rank} of {len(part)}",
    ]
    return "| " + " | ".join(cells) + " |"


def named(row, projection):
    return row["setting"] + (f" {row['projection']}" if projection == "both" else "")


def one(rows):
    return f"{rows[0]['S']:.4f}" if len(rows) == 1 else "-"


def write(path, text):
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


if __name__ == "__main__":
    main()
