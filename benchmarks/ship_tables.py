"""Write tables of docs/runtime.md and docs/security.md from results/runtime, fuzz and faults.

python benchmarks/ship_tables.py            rewrite the pages
python benchmarks/ship_tables.py --check    fail if a page and the rows differ
"""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

from page_blocks import main, table

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "runtime.md", ROOT / "docs" / "security.md")
FIRST_MASKS = [
    ROOT / "results" / "runtime" / f"{name}.json"
    for name in ("cfrn", "cfrn-2-threads", "escnet", "escnet-2-threads")
]
SIZES = ROOT / "results" / "runtime" / "sizes.json"
FUZZ = ROOT / "results" / "fuzz" / "runs.jsonl"
FAULTS = ROOT / "results" / "faults" / "runs.jsonl"
BROKEN = ROOT / "results" / "faults" / "broken.jsonl"
FAILURES = ("tracebacks", "crashes", "hangs", "slow", "greedy", "bad refusals")


def first_masks() -> str:
    """A table for each network that was measured."""
    return "\n".join(first_mask(path) for path in FIRST_MASKS if path.exists())


def first_mask(path: Path) -> str:
    """Sizes, imports and first masks, and how much earlier than torch."""
    found = json.loads(path.read_text())
    machine, rows = found["machine"], found["rows"]
    base = next(row for row in rows if row["candidate"] == "torch FP32")
    lines = [
        [
            row["candidate"],
            f"{row['installed_bytes'] / 1e6:.1f}",
            f"{row['file_bytes'] / 1e6:.1f}",
            f"{row['import_seconds']:.2f}",
            f"{row['first_mask_seconds']:.2f}",
            f"{base['first_mask_seconds'] / row['first_mask_seconds']:.1f}x",
            f"{row['processor_seconds']:.2f}",
            f"{row['peak_bytes'] / 1e6:.0f}",
            f"{row['peak_bytes'] / base['peak_bytes']:.2f}",
        ]
        for row in rows
    ]
    head = ["", "installed MB", "file MB", "import s", "first mask s", "against torch"]
    head += ["processor s", "peak MB", "of torch's"]
    told = (
        f"{found['model']}, {found['method']}, random weights, {found['threads']} thread"
        f"{'s' * (found['threads'] > 1)}, the least of {found['runs']} process"
        f"{'es' * (found['runs'] > 1)} after one to warm up; "
        f"{machine['cpu']}, {machine['cores']} cores, load {machine['load'][0]} before, torch "
        f"{machine['torch']}, ONNX Runtime {machine['onnxruntime']}, ours "
        f"{machine['native_instruction_set']}."
    )
    return textwrap.fill(told, 120) + "\n\n" + table(head, lines)


def sizes() -> str:
    """Bytes of exported files, beside parameters in FP32."""
    lines = []
    for row in json.loads(SIZES.read_text()):
        program, onnx = (row["float_bytes"] / row[f"{kind}_bytes"] for kind in ("program", "onnx"))
        lines.append(
            [
                row["model"],
                f"{row['float_bytes'] / 1e6:.1f}",
                f"{row['program_bytes'] / 1e6:.1f} ({program:.2f}x)",
                f"{row['arena_bytes'] / 2**20:.1f}",
                f"{row['onnx_bytes'] / 1e6:.1f} ({onnx:.2f}x)",
                f"{row['onnx_deviation']['from_float']:.1e}",
            ]
        )
    head = ["network", "FP32 MB", "program MB (smaller)", "memory of a run MiB"]
    return table([*head, "portable ONNX MB (smaller)", "its masks differ by"], lines)


def fuzz() -> str:
    """Inputs and failures of each target, over all runs."""
    rows = [json.loads(line) for line in FUZZ.read_text().splitlines()]
    lines = []
    for target in dict.fromkeys(row["target"] for row in rows):
        own = [row for row in rows if row["target"] == target]
        lines.append([target, *_sums(own)])
    head = ["target", "inputs", "accepted", "run", "failures", "slowest s", "memory MiB"]
    return table(head, lines)


def _sums(rows: list[dict[str, Any]]) -> list[str]:
    def total(*keys: str) -> int:
        return sum(row.get(key, 0) for row in rows for key in keys)

    def shown(*keys: str) -> str:
        return f"{total(*keys):,}" if any(key in row for row in rows for key in keys) else "-"

    timed = [row for row in rows if "slowest_seconds" in row]
    slowest = f"{max(row['slowest_seconds'] for row in timed):.2f}" if timed else "-"
    if timed and len(timed) < len(rows):  # rows of before inputs were timed
        slowest += f" (of {sum(row['inputs'] for row in timed):,})"
    grown = max((row["most_grown_mib"] for row in rows if "most_grown_mib" in row), default=None)
    valid = max(row.get("valid_mib", 0) for row in rows)
    most = max(row.get("most_mib", 0) for row in rows)
    memory = f"{valid:.0f} + {grown:.1f}" if grown is not None else f"{most:.0f}"
    return [
        f"{total('inputs'):,}",
        shown("accepted"),
        shown("built and run", "run"),
        f"{total(*FAILURES):,}",
        slowest,
        memory,
    ]


def faults() -> str:
    """How often each fault was tried and lost something: of each test its last run."""
    rows = [json.loads(line) for line in FAULTS.read_text().splitlines()]
    last = {row["test"]: row for row in rows}.values()
    lines = []
    for fault in dict.fromkeys(row["fault"] for row in last):
        own = [row for row in last if row["fault"] == fault]
        files = sorted({row["test"].partition("::")[0] for row in own})
        tried, lost = (sum(row[key] for row in own) for key in ("tried", "lost"))
        lines.append([fault, ", ".join(f"`{one}`" for one in files), f"{tried}", f"{lost}"])
    return table(["fault", "tests", "tried", "lost"], lines, text_columns=2)


def found() -> str:
    """What went wrong once and its tests; the changes of the source that they were seen to tell."""
    sys.path.append(str(ROOT / "tests" / "faults"))
    from causes import CAUSES

    seen = {json.loads(line)["when"] for line in BROKEN.read_text().splitlines()}
    lines = [
        [
            cause.what,
            ", ".join(f"`{test}`" for test in cause.tests),
            "; ".join(one.when for one in cause.breaks if one.when in seen) or "-",
        ]
        for cause in CAUSES
    ]
    return table(["what went wrong", "tests", "seen to fail when"], lines, text_columns=3)


TABLES = {"found": found, "first mask": first_masks, "sizes": sizes, "fuzz": fuzz, "faults": faults}


def made(name: str) -> str:
    return TABLES[name]()


if __name__ == "__main__":
    sys.exit(main(__doc__.splitlines()[0], PAGES, made))
