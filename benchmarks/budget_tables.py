"""Tables of docs/benchmark.md about methods that learn: what longer learning brings and costs."""

from __future__ import annotations

import json

import numpy as np
from page_blocks import table
from score_rows import ROOT, Row, difference, rows

from codtdq.methods.registry import method_info

MODEL = "cfrn-small"  # the cheaper of the small networks
LEARNING = ("pq-sam", "ptq4sam", "ahcptq", "fima-q")
ORDER = ("fast", "tenth", "paper")
LONGER = ROOT / "results/budgets/results.jsonl"


def budgets() -> str:
    """S, steps and minutes of methods that learn, by budget; longer ones if they were run."""
    longer = rows("budgets/results.jsonl") if LONGER.exists() else []
    found: dict[tuple[str, str], list[Row]] = {}
    for row in [*rows("camosynth/results.jsonl"), *longer]:
        if row["model"] == MODEL and row["method"] in LEARNING and row["stress"] is None:
            found.setdefault((row["method"], row["budget"]), []).append(row)
    lines = []
    for method, budget in sorted(found, key=lambda key: (key[0], ORDER.index(key[1]))):
        parts = found[method, budget]
        score = np.mean([row["metrics"]["S"] for row in parts])
        gain = "" if budget == "fast" else _gain(parts, found[method, "fast"])
        cost = parts[0]["calibration"]
        line = [method_info(method).title, f"`{budget}`", f"{cost['steps']:,}", f"{score:.4f}"]
        lines.append([*line, gain, f"{cost['cpu_seconds'] / 60:.1f}"])
    head = ["method", "budget", "steps", "S", "gain over `fast`", "minutes of processor time"]
    return table(head, lines, text_columns=2)


def _gain(longer: list[Row], fast: list[Row]) -> str:
    """Of S over the same images, with its interval."""
    longer, fast = (sorted(parts, key=lambda row: row["dataset"]) for parts in (longer, fast))
    ours, theirs = (
        np.concatenate([row["per_image"]["S"] for row in parts]) for parts in (longer, fast)
    )
    return difference(ours, theirs, 3)[0]


def budget_cost() -> str:
    """Milliseconds of a step, and hours of a whole calibration at longer budgets."""
    document = json.loads((ROOT / "results/budgets/cost-cfrn-small.json").read_text())
    lines = []
    for method, cost in document["methods"].items():
        hours = (f"{cost['hours'][budget]:.2f}" for budget in ORDER[1:])
        blocks = str(cost["blocks"] or "-")
        title = method_info(method).title
        lines.append([title, blocks, f"{cost['ms_per_step']:.1f}", *hours])
    head = ["method", "blocks", "ms per step", *(f"hours, `{budget}`" for budget in ORDER[1:])]
    where = document["environment"]
    return f"{table(head, lines)}\n{where['cpu']}, torch {where['torch']}, one thread.\n"
