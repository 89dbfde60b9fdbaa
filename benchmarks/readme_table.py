"""The table of README.md: size, accuracy and speed of vit-cod against FP32 and eight bits."""

from __future__ import annotations

import json

from page_blocks import table
from score_rows import ROOT, Row, rows

SPEED = ROOT / "results" / "speed" / "vit-cod.json"
SHIPPED = ROOT / "src" / "codtdq" / "weights" / "vit-cod-w4a4"
RIVALS = {"openvino-int8": "floats", "openvino-int8-bf16": "bfloat16"}
PLUS = "cod-tdq-plus"


def readme() -> str:
    """One line for each network, and below what the times are of."""
    found = json.loads(SPEED.read_text(encoding="utf-8"))
    timed = {row["candidate"]: row for row in found["rows"] if row["threads"] == 1}
    scored = {row["method"]: row for row in rows("vit-cod/results.jsonl")}
    shipped = sum(path.stat().st_size for path in SHIPPED.glob("*.safetensors"))
    bits = scored[PLUS]["bits"]
    plus = f"W4A4, COD-TDQ plus ({bits['weight']:.1f} / {bits['activation']:.1f} effective bits)"
    lines = [_line("FP32, PyTorch", scored["fp32"], timed["fp32"])]
    for name, between in RIVALS.items():
        title = f"int8, OpenVINO with NNCF ({between} between)"
        lines.append(_line(title, {"metrics": timed[name]["accuracy"]}, timed[name]))
    lines.append(_line("W4A4, naive", scored["w4a4"], timed.get("w4a4")))
    lines.append(_line(plus, scored[PLUS], timed[PLUS] | {"weight_bytes": shipped}))
    count = scored["fp32"]["count"]
    head = [f"[vit-cod](docs/vit-cod.md), {count} photographs", "file", "S (higher is better)"]
    shown = table([*head, "MAE (lower)", "one image, 1 core"], lines)
    return f"{shown}\n{_times(found['machine']['cpu'], timed[PLUS]['weight_bytes'], shipped)}\n"


def _line(title: str, score: Row, timed: Row | None) -> list[str]:
    """What was not timed has neither time nor file."""
    marks = [f"{score['metrics'][key]:.4f}" for key in ("S", "MAE")]
    size = _megabytes(timed["weight_bytes"]) if timed else ""
    return [title, size, *marks, f"{timed['wall_ms']['median']:.0f} ms" if timed else ""]


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _times(cpu: str, timed: int, shipped: int) -> str:
    """Where the times come from; and of what file, if it is not the one that ships."""
    text = f"Times: {cpu}, all in one run"
    if _megabytes(timed) != _megabytes(shipped):
        text += f"; that of COD-TDQ plus is of a file with other bits, {_megabytes(timed)}"
    return f"{text} ([how](docs/speed.md))."
