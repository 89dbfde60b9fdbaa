"""The table of README.md: size, accuracy and speed of vit-cod against FP32 and eight bits."""

from __future__ import annotations

import json

from page_blocks import table
from score_rows import ROOT, Row, rows

SPEED = ROOT / "results" / "speed" / "vit-cod.json"
SHIPPED = "vit-cod-w4a4"
RIVALS = {"openvino-int8": "floats", "openvino-int8-bf16": "bfloat16"}
PLUS = "cod-tdq-plus"


def readme() -> str:
    """One line for each network, and below what the times are of."""
    found = json.loads(SPEED.read_text(encoding="utf-8"))
    timed = {row["candidate"]: row for row in found["rows"] if row["threads"] == 1}
    scored = {row["method"]: row for row in rows("vit-cod/results.jsonl")}
    bits = scored[PLUS]["bits"]
    plus = f"W4A4, COD-TDQ plus ({bits['weight']:.1f} / {bits['activation']:.1f} effective bits)"
    lines = [_line("FP32, PyTorch", scored["fp32"], timed["fp32"])]
    for name, between in RIVALS.items():
        title = f"int8, OpenVINO with NNCF ({between} between)"
        lines.append(_line(title, {"metrics": timed[name]["accuracy"]}, timed[name]))
    lines.append(_line("W4A4, naive", scored["w4a4"], timed["w4a4"]))
    lines.append(_line(plus, scored[PLUS], timed[SHIPPED]))
    count = scored["fp32"]["count"]
    head = [f"[vit-cod](docs/vit-cod.md), {count} photographs", "file", "S (higher is better)"]
    shown = table([*head, "MAE (lower)", "one image, 1 core"], lines)
    cpu = found["machine"]["cpu"]
    return f"{shown}\nTimes: {cpu}, all in one run ([how](docs/speed.md)).\n"


def _line(title: str, score: Row, timed: Row) -> list[str]:
    marks = [f"{score['metrics'][key]:.4f}" for key in ("S", "MAE")]
    size, time = timed["weight_bytes"] / 1e6, timed["wall_ms"]["median"]
    return [title, f"{size:.1f} MB", *marks, f"{time:.0f} ms"]
