"""Write the tables of two pages from the rows in results/speed, so that no number is typed.

python benchmarks/speed_tables.py            rewrite docs/speed.md and docs/native-engine.md
python benchmarks/speed_tables.py --check    fail if a page and the rows differ

A table stands between `<!-- NAME -->` and `<!-- /NAME -->`; NAME is a file of results/speed for the
rows of `codtdq bench latency`, `NAME processes` for memory and the first mask, `kernels` for means,
`identity` for the rows of benchmarks/identity.py, `in short` for what all files say together.
"""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

from page_blocks import main, table

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "speed.md", ROOT / "docs" / "native-engine.md")
ROWS = ROOT / "results" / "speed"


def facts(document: dict[str, Any]) -> str:
    """One line: the machine, versions and the network."""
    machine = document["machine"]
    to = document.get("rows", [{}])[0].get("held")
    held = f", everybody held to {to} where the column says so" if to else ""
    return (
        f"{document['model']}, {document['input_size']} x {document['input_size']}, weights "
        f"{document['weights']}; {machine['cpu']}, {machine['cores']} cores, torch "
        f"{machine['torch']}, ours {machine['native_instruction_set']}{held}.\n\n"
    )


def latency(document: dict[str, Any]) -> str:
    """One line for each candidate: size, milliseconds and ratio by threads, loss where scored."""
    threads = sorted({row["threads"] for row in document["rows"]})
    names = list(dict.fromkeys(row["candidate"] for row in document["rows"]))
    scored = any("accuracy" in row for row in document["rows"])
    head = ["", "arithmetic", "MB"]
    head += [f"ms, {n} thread{'s' * (n > 1)}" for n in threads]
    head += [f"against FP32, {n}" for n in threads] + (["S", "distance"] if scored else [])
    holds = any("held" in row for row in document["rows"])
    head += ["held"] if holds else []
    lines = []
    for name in names:
        rows = {row["threads"]: row for row in document["rows"] if row["candidate"] == name}
        first = next(iter(rows.values()))
        line = [name, first.get("precision", ""), _megabytes(first)]
        line += [_milliseconds(rows.get(n)) for n in threads]
        line += [_ratio(rows.get(n)) for n in threads]
        if scored:
            known = first.get("accuracy", {})
            line += [_number(known.get("S"), ".4f"), _number(known.get("distance"), ".4f")]
        line += [str(first.get("held", "-"))] if holds else []
        lines.append(line)
    failed = "".join(
        f"\n{row['candidate']} has no figure: {row['skipped']}\n"
        for row in document["rows"]
        if row["threads"] == threads[0] and "skipped" in row
    )
    return facts(document) + table(head, lines) + failed


OURS = ("cod-tdq", "w4a8", "cod-tdq-plus", "vit-cod-w4a4")
EIGHT_BITS = ("openvino-int8", "openvino-int8-bf16")
NETWORKS = (
    "cfrn",
    "escnet",
    "vit-cod",
    "cfrn-small",
    "escnet-small",
    "cfrn-avx512-vnni",
    "cfrn-avx2",
)


def in_short() -> str:
    """One line for each network and setting: how often it runs while others run once."""
    head = ["network", "setting", "MB", "threads", "PyTorch FP32"]
    head += ["OpenVINO int8", "int8, bfloat16 between", "fastest other"]
    lines = []
    for path in filter(Path.exists, (ROWS / f"{name}.json" for name in NETWORKS)):
        document = json.loads(path.read_text(encoding="utf-8"))
        held = document["rows"][0].get("held")
        network = f"`{document['model']}`" + (f", all held to {held}" if held else "")
        for setting, threads in product(OURS, (1, 2)):
            rows = {row["candidate"]: row for row in document["rows"] if row["threads"] == threads}
            if setting in rows:
                size = _megabytes(rows[setting])
                lines.append(
                    [network, f"`{setting}`", size, str(threads), *_against(rows, setting)]
                )
    return table(head, lines, text_columns=2)


def _against(rows: dict[str, Any], setting: str) -> list[str]:
    """Ratios: against FP32, int8 of both kinds, and the fastest of all others. Who could not be
    held to the instruction set of a table is no rival in it.
    """
    own, held = rows[setting]["wall_ms"]["median"], rows[setting].get("held")
    others = {
        name: row["wall_ms"]["median"] / own
        for name, row in rows.items()
        if "wall_ms" in row
        and not row.get("precision", "").startswith("W")
        and row.get("held") == held
    }
    fastest = min(others, key=lambda name: others[name])
    ratios = [f"{others[name]:.2f}x" if name in others else "-" for name in ("fp32", *EIGHT_BITS)]
    return [*ratios, f"{others[fastest]:.2f}x ({fastest})"]


def processes(document: dict[str, Any]) -> str:
    """Fresh processes that load a file and predict: the highest memory, and the first mask."""
    rows = [row for row in document["processes"] if row["batch"] == 1]
    base = {row["threads"]: row for row in rows if row["candidate"] == "fp32"}
    head = ["", "threads", "peak MB", "of FP32", "first mask s", "earlier than FP32"]
    lines = [
        [
            row["candidate"],
            str(row["threads"]),
            f"{row['peak_bytes'] / 1e6:.0f}",
            f"{row['peak_bytes'] / base[row['threads']]['peak_bytes']:.2f}",
            f"{row['first_mask_seconds']:.2f}",
            f"{base[row['threads']]['first_mask_seconds'] / row['first_mask_seconds']:.2f}x",
        ]
        for row in rows
    ]
    return facts(document) + table(head, lines)


def kernels(document: dict[str, Any]) -> str:
    """Geometric means over shapes, and what a value costs the quantizers."""
    head = ["", "threads", "shapes", "against FP32", "least", "ns per value"]
    lines = [
        [
            mean["kind"],
            str(mean["threads"]),
            str(mean["shapes"]),
            f"{mean['speedup']:.2f}x",
            f"{mean['slowest']:.2f}x",
            _nanoseconds(document, mean) if mean["kind"].startswith("quantizer") else "-",
        ]
        for mean in document["means"]
    ]
    machine = document["machine"]
    return (
        f"{machine['cpu']}, torch {machine['torch']}, ours {machine['native_instruction_set']}.\n\n"
        + table(head, lines)
    )


def _nanoseconds(document: dict[str, Any], mean: dict[str, Any]) -> str:
    each = [
        row["int4"]["wall_ms"]["median"] * 1e6 / row["values"]
        for row in document["rows"]
        if (row["kind"], row["threads"]) == (mean["kind"], mean["threads"])
    ]
    return f"{min(each):.2f} to {max(each):.2f}"


def identity(document: dict[str, Any]) -> str:
    """One line for each network and setting, a column for each instruction set but the best."""
    rows, machine = document["identity"], document["machine"]
    sets = list(dict.fromkeys(row["set"] for row in rows))
    settings = dict.fromkeys((row["model"], row["method"]) for row in rows)
    by_key = {(row["model"], row["method"], row["set"]): row for row in rows}
    lines = [[*key, *(_agreement(by_key[(*key, name)]) for name in sets)] for key in settings]
    return (
        f"Against {rows[0]['against']}, {rows[0]['images']} images each; {machine['cpu']}, torch "
        f"{machine['torch']}.\n\n" + table(["network", "setting", *sets], lines)
    )


def _agreement(row: dict[str, Any]) -> str:
    if row["identical"] == row["images"]:
        return "bit for bit"
    return (
        f"{row['identical']} of {row['images']} bit for bit, p within "
        f"{row['max_difference']:.1e}, overlap {_number(row['min_iou'], '.4f')}"
    )


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form).replace("0.", ".", 1)


def _megabytes(row: dict[str, Any]) -> str:
    return f"{row['weight_bytes'] / 1e6:.1f}" if row.get("weight_bytes") else "-"


def _milliseconds(row: dict[str, Any] | None) -> str:
    return "-" if row is None or "wall_ms" not in row else f"{row['wall_ms']['median']:.1f}"


def _ratio(row: dict[str, Any] | None) -> str:
    if row is None or "speedup" not in row:
        return "-"
    spread = row["speedup"]
    return f"{spread['median']:.2f} [{spread['q1']:.2f}, {spread['q3']:.2f}]"


def made(name: str) -> str:
    """The block of a name."""
    if name == "in short":
        return in_short()
    file, _, kind = name.partition(" ")
    document = json.loads((ROWS / f"{file}.json").read_text(encoding="utf-8"))
    if "identity" in document:
        return identity(document)
    if "means" in document:
        return kernels(document)
    return processes(document) if kind == "processes" else latency(document)


if __name__ == "__main__":
    sys.exit(main(__doc__.splitlines()[0], PAGES, made))
