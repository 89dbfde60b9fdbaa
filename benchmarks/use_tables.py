"""Tables of pages for users: the demo, BiRefNet, scoring, and how near the simulation is."""

from __future__ import annotations

import json

from page_blocks import table
from score_rows import ROOT, SMALL


def simulation() -> str:
    """What the simulation in PyTorch differs by from the native engine, for whole networks."""
    found = json.loads((ROOT / "results/speed/simulated.json").read_text())
    rows = found["identity"]
    lines = [
        [
            f"`{row['model']}`",
            f"`{row['method']}`",
            f"{row['identical']} of {row['images']}",
            f"{row['mean_difference']:.3f}",
            f"{row['mean_iou']:.3f}",
            f"{row['min_iou']:.3f}",
        ]
        for row in rows
    ]
    head = ["network", "setting", "equal maps", "mean difference of p", "overlap", "least"]
    facts = f"{found['machine']['cpu']}, {rows[0]['against']}, torch {found['machine']['torch']}.\n"
    return f"{table(head, lines, text_columns=2)}\n{facts}"


def birefnet() -> str:
    """Size, time and memory of BiRefNet by side, as far as there are runs of `bench latency`."""
    files = (ROOT / "results/speed").glob("birefnet*.json")
    runs = [json.loads(path.read_text()) for path in files]
    runs.sort(key=lambda run: (-len(run["model"]), run["input_size"]))  # lite first
    if not runs:
        return "There is no run of these commands in `results/speed`.\n"
    threads = sorted({row["threads"] for run in runs for row in run["rows"]})
    head = ["network", "side", "setting", "MB"]
    head += [f"ms, {n} thread{'s' * (n > 1)}" for n in threads] + ["against FP32", "peak MB"]
    lines = []
    for run in runs:
        peaks = {row["candidate"]: row["peak_bytes"] for row in run.get("processes", ())}
        for name in dict.fromkeys(row["candidate"] for row in run["rows"]):
            rows = {row["threads"]: row for row in run["rows"] if row["candidate"] == name}
            first = rows[min(rows)]
            times = [f"{rows[n]['wall_ms']['median']:.0f}" if n in rows else "-" for n in threads]
            peak = f"{peaks[name] / 1e6:.0f}" if name in peaks else "-"
            size = [f"`{run['model']}`", str(run["input_size"]), f"`{name}`"]
            size += [f"{first['weight_bytes'] / 1e6:.1f}"]
            lines.append([*size, *times, f"{first['speedup']['median']:.2f}x", peak])
    machine = runs[0]["machine"]
    facts = (
        f"{machine['cpu']}, torch {machine['torch']}, ours {machine['native_instruction_set']}; "
        f"weights {', '.join(sorted({run['weights'] for run in runs}))}.\n"
    )
    return f"{table(head, lines, text_columns=3)}\n{facts}"


def score_throughput() -> str:
    """Images per second of `codtdq score` and PySODMetrics, and what one is faster by."""
    found = json.loads((ROOT / "results/score/throughput.json").read_text())
    (height, width), ours = found["size"], found["rows"][0]
    head = ["", "processes", "images/s", "`codtdq score` is faster by", "by processor time"]
    names = {"codtdq score": "`codtdq score`, start-up included"}
    lines = []
    for row in found["rows"]:
        line = [names.get(row["side"], row["side"]), str(row["processes"])]
        line += [f"{found['count'] / row['seconds']:.1f}"]
        for key in ("seconds", "cpu_seconds"):
            line += ["-" if row is ours else f"{row[key] / ours[key]:.1f}x"]
        lines.append(line)
    gap = max(
        abs(row["means"][key] - ours["means"][key])
        for row in found["rows"][1:]
        for key in row["means"]
    )
    facts = (
        f"{found['count']} maps of {width} x {height}; {found['machine']}, {found['cores']} cores, "
        f"load {found['load']} before the run; PySODMetrics {found['packages']['pysodmetrics']}. "
        f"Means differ by at most {gap:.0e}.\n"
    )
    return f"{table(head, lines)}\n{facts}"


def demo() -> str:
    """What `codtdq demo` printed: S and MAE of every setting."""
    found = json.loads((ROOT / "results/demo/demo.json").read_text(encoding="utf-8"))["scores"]
    names = list(dict.fromkeys(name for scores in found.values() for name in scores))
    lines = []
    for name in sorted(names, key=list(found[SMALL[0]]).index):
        cells = []
        for scores in found.values():
            score = scores.get(name)
            cells.append(f"{score['S']:.3f} / {score['MAE']:.3f}" if score else "")
        lines.append([f"`{name}`", *cells])
    return table(["S / MAE", *found], lines)
