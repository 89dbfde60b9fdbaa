"""Tables of docs/the-paper.md: the paper's settings and its self-selection."""

from __future__ import annotations

import json

from page_blocks import table
from score_rows import CASE_HEAD, CASES, ROOT, SMALL, Scores, difference, rows

from codtdq.lab.tables.catalogue import ABLATION


def variants() -> str:
    """The paper's settings; in brackets what cod-tdq gains over the row, where it is certain."""
    scores = Scores(rows("variants/results.jsonl"))
    lines = []
    for name in sorted(scores.info, key=["fp32", *ABLATION].index):
        cells = []
        for case in CASES:
            text, certain = difference(
                scores.joined("cod-tdq", *case), scores.joined(name, *case), 3
            )
            gain = f" ({text.split(' ')[0]})" if certain else ""
            cells.append(scores.mean(name, *case, digits=3) + gain)
        lines.append([f"**`{name}`**" if name == "cod-tdq" else f"`{name}`", *cells])
    return table(["setting", *CASE_HEAD], lines)


def bounds_gain() -> str:
    """What bounds add to token groups, and C1 or C2 to a shared range, with intervals."""
    scores = Scores(rows("variants/results.jsonl"))
    pairs = {
        "C1 and C2 on token groups": ("cod-tdq", "dstg-only"),
        "the same, in Linear operators only": ("cod-tdq-linear-dcrp", "dstg-only"),
        "C1 on one range per tensor": ("c1-only", "w4a4"),
        "C2 on one range per tensor": ("c2-only", "w4a4"),
    }
    lines = [
        [
            title,
            *(
                difference(scores.joined(one, *case), scores.joined(other, *case), 3)[0]
                for case in CASES
            ),
        ]
        for title, (one, other) in pairs.items()
    ]
    return table(["S gained by", *CASE_HEAD], lines)


def selection() -> str:
    """Which setting the paper's label-free score selects, and where the paper's own stands."""
    lines = []
    for model in SMALL:
        path = ROOT / "results" / "selection" / f"paper-{model}.json"
        found = json.loads(path.read_text(encoding="utf-8"))
        best, paper = found["chosen"], found["paper_setting"]
        chosen = ", ".join(
            "none" if best[key] is None else f"{best[key]:g}"
            for key in ("act_group_size", "tau", "zero_ratio")
        )
        place = f"rank {paper['rank']} of {paper['of']}, score {paper['score']:.4f}"
        selected = f"({chosen}), score {best['score']:.4f}"
        lines.append([model, selected, place, str(paper["lower_in_every_term"])])
    head = ["model", "selected (g, tau, zr)", "the paper's (32, 1, 0.2)"]
    return table([*head, "settings lower in every term"], lines, text_columns=3)
