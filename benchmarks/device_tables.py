"""Tables of docs/gpu.md: estimates by rooflines, and the kernels against the simulation."""

from __future__ import annotations

import json
import re
from pathlib import Path

from page_blocks import table

RESULTS = Path(__file__).parents[1] / "results"


def roofline() -> str:
    """Milliseconds per image as results/roofline estimates them."""
    lines = []
    for model, title in (("cfrn", "CFRN"), ("escnet", "ESCNet")):
        for device, place in (("rtx-4090", "RTX 4090"), ("orin", "Orin")):
            text = (RESULTS / "roofline" / f"{model}-{device}.md").read_text(encoding="utf-8")
            found = {
                cells[0]: cells
                for cells in (
                    [cell.strip() for cell in line.strip("|\n").split("|")]
                    for line in re.findall(r"^\| (?:FP32|FP16|W4A4).*$", text, re.MULTILINE)
                )
            }
            ours = found["W4A4 (COD-TDQ)"]
            times = [found[name][4] for name in ("FP32", "FP16")]
            published = "-" if ours[6] == "-" else f"{found['FP32'][6]} to {ours[6]} ms, {ours[7]}"
            lines.append([f"{title}, {place}", *times, ours[4], ours[5], published])
    head = ["ms per image, estimated", "FP32", "FP16", "W4A4", "gain over FP32"]
    return table([*head, "the paper's measurement"], lines)


def triton() -> str:
    """Means of the paired differences, with their standard errors."""
    metrics = ("S", "wF", "E_mean", "F_mean", "MAE")
    names = {"triton": "Triton", "simulated, noise 1e-6": "simulated with noise"}
    lines = []
    for row in json.loads((RESULTS / "triton" / "summary.json").read_text(encoding="utf-8")):
        for key, title in names.items():
            found = row["differences"][key]
            cells = (f"{found[m]['mean']:+.4f} ± {found[m]['error']:.4f}" for m in metrics)
            lines.append([f"{row['model']}, {title}", str(row["images"]), *cells])
    return table(["difference from the simulated path", "images", *metrics], lines)
