"""Tables of docs/vit-cod.md: the network for photographs."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
from page_blocks import table
from score_rows import ROOT, Row, difference, rows

from codtdq.methods.registry import method_info

VIT_COD_PLAIN = "cod-tdq-plus-no-spare"
VIT_COD_FIRST = ("fp32", "w4a4", "dstg-only", "cod-tdq", "cod-tdq-guarded")


def vit_cod() -> str:
    """The network for photographs: ours in the order of the text, other methods by S."""
    files = ("vit-cod/results.jsonl", "vit-cod/methods/results.jsonl")
    found = {row["method"]: row for name in files for row in rows(name)}
    last = [name for name in (VIT_COD_PLAIN, "cod-tdq-plus") if name in found]
    others = [name for name in found if name not in VIT_COD_FIRST and name not in last]
    others.sort(key=lambda name: -found[name]["metrics"]["S"])
    names = {
        "fp32": "FP32",
        "w4a4": "`w4a4` (naive)",
        VIT_COD_PLAIN: "`cod-tdq-plus`, no spare bits",
        "cod-tdq-plus": "`cod-tdq-plus` (`vit-cod-w4a4`)",
    }
    metrics = ["S", "wF", "E_mean", "F_max", "MAE"]
    titles = {name: f"{method_info(name).title} (`{name}`)" for name in others} | names
    return vit_cod_table(
        [found[name] for name in [*VIT_COD_FIRST, *others, *last]], titles, metrics
    )


def vit_cod_table(found: list[Row], titles: dict[str, str], metrics: list[str]) -> str:
    """Rows as they come: bits, scores and the distance to the float masks."""
    lines = []
    for row in found:
        away = row.get("distance")
        bits = row.get("bits") or {"weight": 32, "activation": 32}
        wide = " / ".join(f"{bits[kind]:.3g}" for kind in ("weight", "activation"))
        cells = (f"{row['metrics'][key]:.4f}" for key in metrics)
        title = titles.get(row["method"], f"`{row['method']}`")
        lines.append([title, wide, *cells, "-" if away is None else f"{away:.4f}"])
    return table(["setting", "bits W / A", *metrics, "distance"], lines)


def vit_cod_of(name: str) -> Callable[[], str]:
    """The table of one file of rows of vit-cod, in its order."""
    titles = {"fp32": "FP32", "w4a4": "`w4a4` (naive)"}
    return lambda: vit_cod_table(rows(f"vit-cod/{name}.jsonl"), titles, ["S", "wF", "MAE"])


def vit_cod_variants() -> str:
    """The paper's settings on photographs, with the paired difference of S to cod-tdq."""
    base = {row["method"]: row for row in rows("vit-cod/results.jsonl")}["cod-tdq"]
    lines = []
    for row in rows("vit-cod/variants.jsonl"):
        assert row["per_image"]["name"] == base["per_image"]["name"]
        pair = (np.array(each["per_image"]["S"]) for each in (row, base))
        bits = " / ".join(f"{row['bits'][kind]:.3g}" for kind in ("weight", "activation"))
        native = "simulated" if row["execution"].startswith("simulated") else "native"
        scores = [row["metrics"]["S"], row["metrics"]["wF"], row["metrics"]["MAE"], row["distance"]]
        cells = [f"{value:.4f}" for value in scores]
        lines.append([f"`{row['method']}`", native, bits, *cells, difference(*pair, 3)[0]])
    head = ["setting", "execution", "bits W / A", "S", "wF", "MAE", "distance"]
    return table([*head, "S against `cod-tdq` (95 %)"], lines, text_columns=2)


def vit_cod_tokens() -> str:
    """What the inputs of the encoder's layers look like, means over its blocks."""
    layers = json.loads((ROOT / "results/vit-cod/tokens.json").read_text())["layers"]
    head = ["input of", "D(X)", "heaviest token over the median one"]
    head += ["set to zero, one range", "set to zero, groups of 32 (DSTG)"]
    lines = []
    for kind in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"):
        each = [layer for name, layer in layers.items() if name.endswith(kind)]

        def mean(key: str, each: list[dict[str, float]] = each) -> float:
            return float(np.mean([layer[key] for layer in each]))

        line = [f"`{kind}`", f"{mean('disparity'):.0f}", f"{mean('peak_ratio'):.1f}"]
        lines.append([*line, f"{mean('zeroed_tensor'):.0%}", f"{mean('zeroed_groups'):.0%}"])
    return table(head, lines)


def vit_cod_felt() -> str:
    """What the mask feels of rounding, by parts of the network."""
    felt = json.loads((ROOT / "results/vit-cod/felt.json").read_text())["felt"]
    parts = {"patch projection": ["encoder.patch_embed."]}
    for first in (0, 3, 6, 9):
        blocks = [f"encoder.blocks.{block}." for block in range(first, first + 3)]
        parts[f"blocks {first} to {first + 2}"] = blocks
    parts["decoder"] = ["decoder."]
    total = {
        key: sum(each[key] for each in felt.values()) for key in ("elements", "inputs", "weight")
    }
    lines = []
    for title, starts in parts.items():
        chosen = [each for name, each in felt.items() if name.startswith(tuple(starts))]
        shares = (sum(each[key] for each in chosen) / total[key] for key in total)
        lines.append([title, *(f"{share:.1%}" for share in shares)])
    return table(["part", "weights in it", "felt of its inputs", "felt of its weights"], lines)
