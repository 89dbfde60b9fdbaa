"""Write the tables of scores in docs/ from the rows in results/, so that no number is typed.

python benchmarks/score_tables.py            rewrite the pages
python benchmarks/score_tables.py --check    fail if a page and its rows differ

A table stands between `<!-- NAME -->` and `<!-- /NAME -->`; NAME is a key of TABLES.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import method_tables as methods
import numpy as np
import paper_tables as paper
import plus_tables as plus
import use_tables as use
import vit_cod_tables as vit_cod
from budget_tables import budget_cost, budgets
from device_tables import roofline, triton
from document_tables import document_table
from page_blocks import BLOCK, main, table
from readme_table import readme
from score_rows import ROOT, SMALL, Scores, difference, rows

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def against_float(file: str, models: tuple[str, ...]) -> str:
    """S, the paired difference to FP32, and the mean distance per image; the closest first."""
    scores = Scores(rows(file))
    several = len(models) > 1
    head = ["setting"] + ([] if several else ["A bits", "W bits"])
    for model in models:
        head += [f"S {model}" if several else "S", "to FP32 (95 %)", "distance"]

    def away(name: str, model: str) -> float:
        return float(np.abs(scores.joined(name, model) - scores.joined("fp32", model)).mean())

    lines = []
    present = [name for name in scores.info if all(scores.seeds(name, m) for m in models)]
    for name in sorted(present, key=lambda name: away(name, models[0])):
        line = [scores.title(name)] + ([] if several else scores.bits(name))
        for model in models:
            line.append(scores.mean(name, model))
            if name == "fp32":
                line += ["", ""]
                continue
            gap, _ = difference(scores.joined(name, model), scores.joined("fp32", model), 3)
            line += [gap, f"{away(name, model):.4f}"]
        lines.append(line)
    return table(head, lines)


TABLES: dict[str, Callable[[], str]] = {
    "all-methods": methods.all_methods,
    "planted-outliers": methods.planted,
    "birefnet": use.birefnet,
    "collapse": methods.collapse,
    "plus-scores": plus.plus_scores,
    "plus-paired": plus.plus_paired,
    "plus-engine": plus.plus_engine,
    "plus-standing": plus.plus_standing,
    "photographs": lambda: against_float("photographs/results.jsonl", SMALL),
    "segformer": lambda: against_float("segformer/results.jsonl", ("segformer-small",)),
    "ingredients": plus.ingredients,
    "variants": paper.variants,
    "bounds-gain": paper.bounds_gain,
    "selection": paper.selection,
    "simulation": use.simulation,
    "demo": use.demo,
    "vit-cod-scores": vit_cod.vit_cod,
    "vit-cod-tokens": vit_cod.vit_cod_tokens,
    "vit-cod-felt": vit_cod.vit_cod_felt,
    "vit-cod-variants": vit_cod.vit_cod_variants,
    "vit-cod-camosynth": vit_cod.vit_cod_of("camosynth"),
    "budgets": budgets,
    "budget-cost": budget_cost,
    "runtime-cfrn": lambda: document_table(
        "runtime", "speed/deployment.json", "cfrn", with_published=True
    ),
    "weights-cfrn": lambda: document_table(
        "weights", "weights/cfrn.json", "cfrn", with_published=True
    ),
    "weights-cfrn-small": lambda: document_table(
        "weights", "weights/cfrn-small.json", "cfrn-small"
    ),
    "weights-escnet-small": lambda: document_table(
        "weights", "weights/escnet-small.json", "escnet-small"
    ),
    "roofline": roofline,
    "score-throughput": use.score_throughput,
    "triton": triton,
    "readme": readme,
}


def made(name: str) -> str:
    """The block of a name, with empty lines around the table."""
    return f"\n{TABLES[name]()}\n"


def pages() -> list[Path]:
    """The pages that hold a table of scores; other scripts fill others."""
    return [
        path
        for path in PAGES
        if set(TABLES) & {found[1] for found in BLOCK.finditer(path.read_text(encoding="utf-8"))}
    ]


if __name__ == "__main__":
    sys.exit(main(__doc__.splitlines()[0], pages(), made))
