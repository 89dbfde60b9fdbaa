"""Tables of docs/benchmark.md: every method, with outliers, and why some collapse."""

from __future__ import annotations

import numpy as np
from page_blocks import table
from score_rows import CASE_HEAD, SMALL, Row, Scores, rows

from codtdq.lab.tables.catalogue import ABLATION, GROUPS
from codtdq.methods.registry import method_info

EVIDENCE = {"re-implemented from the abstract": " (a)", "second-hand description": " (s)"}


def all_methods() -> str:
    """S of every method on both small networks, in the groups of the paper's table."""
    scores = Scores(rows("camosynth/results.jsonl"))
    listed = {name for names in GROUPS.values() for name in names}
    ablations = [name for name in ABLATION if name not in listed]
    others = [name for name in scores.info if name not in listed and name not in ablations]
    groups = {**GROUPS, "Ablations of the paper": ablations, "Variants and controls": others}
    head = ["method", "ranges", "granularity", "A bits", "W bits", *SMALL]
    lines = []
    for group, members in groups.items():
        present = [name for name in members if name in scores.info]
        if group != "Full precision and naive quantization":
            present.sort(key=lambda name: -np.mean(scores.seeds(name, SMALL[0])))
        lines.append([f"**{group}**", *[""] * (len(head) - 1)])
        for name in present:
            info = scores.info[name]["info"]
            title = scores.title(name) + EVIDENCE.get(info["evidence"], "")
            line = [title, info["ranges"], _granularity(scores.info[name]), *scores.bits(name)]
            lines.append([*line, *(scores.mean(name, model, digits=3) for model in SMALL)])
    return table(head, lines, text_columns=3)


def _granularity(row: Row) -> str:
    """As the method declares it; with the shared ranges that CFRN declares for convolutions."""
    modes = row["config"].get("act_modes", {})
    shared = modes.get("conv", "per_token_group") != modes.get("linear", "per_token_group")
    more = f"; CFRN's convolutions: {modes['conv'].removeprefix('per_')}" if shared else ""
    return row["info"]["granularity"] + more


def planted() -> str:
    """S with planted outlier channels beside S without, over the same images."""
    outliers = Scores(rows("camosynth-outliers/results.jsonl"))
    plain = Scores(rows("camosynth/results.jsonl"), limit=50)

    def cells(name: str) -> list[str]:
        found = []
        for model in SMALL:
            same = name  # the per-tensor reading is CFRN's; ESCNet has no shared ranges
            if model == SMALL[1] and not outliers.seeds(name, model, "outliers"):
                same = name.removesuffix("-per-tensor-conv")
            found += [plain.mean(same, model, digits=3)]
            found += [outliers.mean(same, model, "outliers", digits=3)]
        return found

    order = sorted(outliers.info, key=lambda name: -outliers.seeds(name, SMALL[0], "outliers")[0])
    order.sort(key=lambda name: name != "fp32")
    return table(["method", *CASE_HEAD], [[outliers.title(name), *cells(name)] for name in order])


def collapse() -> str:
    """SQNR and zeros of the inputs that lose most under the naive setting."""
    hidden = ("cod-tdq-guarded",)  # as dstg-everywhere, and the table is wide
    found = [row for row in rows("collapse/cfrn-small.jsonl") if row["method"] not in hidden]
    head = ["input", *(method_info(row["method"]).title for row in found)]
    lines = [
        [f"`{_short(name)}`", *("{:.1f} / {:.3f}".format(*row["worst"][name]) for row in found)]
        for name in found[0]["worst"]
    ]
    count = found[0]["operators"]
    lines.append([f"mean of {count} inputs", *(f"{row['mean_sqnr_db']:.1f}" for row in found)])
    return table(head, lines)


def _short(operator: str) -> str:
    return operator if len(operator) < 30 else "..." + operator[-22:]
