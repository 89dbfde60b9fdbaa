"""Tables of docs/cod-tdq-plus.md: our own method."""

from __future__ import annotations

import numpy as np
from page_blocks import table
from score_rows import CASE_HEAD, CASES, ROOT, SMALL, Scores, difference, rows


def plus_scores() -> str:
    """All images, three seeds."""
    scores = Scores(rows("plus/results.jsonl"))
    lines = []
    for name in ("fp32", "cod-tdq-plus", "arcquant", "smoothquant", "cod-tdq-guarded"):
        line = [scores.title(name), *scores.bits(name)]
        lines.append([*line, *(scores.mean(name, *case) for case in CASES)])
        if name == "cod-tdq-plus":
            shares, spans = [], []
            for case in CASES:
                seeds, best = scores.seeds(name, *case), scores.seeds("fp32", *case)[0]
                shares.append(f"{np.mean(seeds) / best:.1%}")
                spans.append(f"{min(seeds):.4f} to {max(seeds):.4f}")
            lines += [["its three seeds", "", "", *spans], ["its share of FP32", "", "", *shares]]
    return table(["setting", "A bits", "W bits", *CASE_HEAD], lines)


def plus_paired() -> str:
    """Differences of cod-tdq-plus to the others over the same images."""
    scores = Scores(rows("plus/results.jsonl"))
    rivals = ("fp32", "arcquant", "smoothquant", "cod-tdq-guarded", "dstg-only", "per-token-all")
    lines = [
        [
            scores.title(rival),
            *(
                difference(scores.joined("cod-tdq-plus", *case), scores.joined(rival, *case))[0]
                for case in CASES
            ),
        ]
        for rival in rivals
    ]
    return table(["cod-tdq-plus against", *CASE_HEAD], lines)


def plus_engine() -> str:
    """cod-tdq-plus before whole multipliers, with them, and on the engine if it was run there."""
    files = {
        "simulated, E4M3 scales": "plus/former.jsonl",
        "simulated": "plus/results.jsonl",
        "native engine": "plus/engine.jsonl",
    }
    found = {
        title: Scores(rows(file))
        for title, file in files.items()
        if (ROOT / "results" / file).exists()
    }
    lines = []
    for title, scores in found.items():
        cells = []
        for model in SMALL:
            seeds = scores.seeds("cod-tdq-plus", model)
            spread = f" ({min(seeds):.4f} to {max(seeds):.4f})" if seeds else ""
            cells.append(scores.mean("cod-tdq-plus", model) + spread)
        lines.append([title, *cells])
    *others, last = found
    for other in others:
        pairs = [_same_seeds(found[last], found[other], "cod-tdq-plus", model) for model in SMALL]
        lines.append([f"{last} - {other}", *(difference(*pair)[0] for pair in pairs)])
    return table(["S of cod-tdq-plus", *SMALL], lines)


def _same_seeds(first: Scores, second: Scores, method: str, model: str) -> list[np.ndarray]:
    """S of every image by both, mean of the seeds that both have."""
    found = [scores.images.get((method, model, None), {}) for scores in (first, second)]
    seeds = sorted(found[0].keys() & found[1].keys())
    if not seeds:
        return [np.empty(0), np.empty(0)]
    return [np.mean([np.concatenate(each[seed]) for seed in seeds], 0) for each in found]


def plus_standing() -> str:
    """Over how many W4A4 methods cod-tdq-plus is certainly ahead, and which are undecided."""
    lines = []
    for folder, stress in (("camosynth", None), ("camosynth-outliers", "outliers")):
        scores = Scores(rows(f"{folder}/results.jsonl"))
        for model in SMALL:
            ours = scores.joined("cod-tdq-plus", model, stress)
            found: dict[bool, list[str]] = {True: [], False: []}
            for name in set(scores.info) - {"fp32", "w8a8", "w4a8", "cod-tdq-plus"}:
                theirs = scores.joined(name, model, stress)
                if len(theirs):
                    _, certain = difference(ours, theirs)
                    found[certain and ours.mean() > theirs.mean()].append(scores.title(name))
            case = f"{model}{', with outliers' if stress else ''}"
            count = len(found[True]) + len(found[False])
            rest = ", ".join(sorted(found[False])) or "-"
            lines.append([case, rest, str(len(ours)), f"{len(found[True])} of {count}"])
    return table(["network", "undecided", "images", "ahead of"], lines, text_columns=2)


def ingredients() -> str:
    """Each ingredient of cod-tdq-plus left out, and added alone to cod-tdq."""
    found = [
        {
            row["setting"]: row
            for row in rows(f"plus/ingredients-{model}.jsonl")
            if not row["stress"]
        }
        for model in SMALL
    ]
    digits = {"difference": 4, "overlap": 3, "S": 4}
    lines = [
        [name, *(f"{each[name][key]:.{digits[key]}f}" for each in found for key in digits)]
        for name in found[0]
    ]
    return table(["setting", *(f"{key}, {model}" for model in SMALL for key in digits)], lines)
