"""Results of the speed benchmarks as tables: titles, headings and cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from codtdq.cli.common import table

Table = tuple[str, Sequence[str], list[list[str]]]  # title, header, lines
FORMATS = ("text", "markdown")
MB = 1e6  # as in the paper's tables
_SIDES = ("baseline_ms", "other_ms")
SHOWN_SHARE = 0.005  # rows of a profile below this share of both passes are summed up


def kernel_tables(result: dict[str, Any]) -> list[Table]:
    """Operators, and their geometric means."""
    lines = [
        [
            row["kind"],
            row["name"],
            str(row["threads"]),
            _ms(row["fp32"]),
            row["fp32"]["layout"],
            _ms(row["int4"]),
            _ratio(row["speedup"]),
            f"{row['cpu_speedup']:.2f}",
        ]
        for row in result["rows"]
    ]
    means = [
        [
            mean["kind"],
            str(mean["threads"]),
            str(mean["shapes"]),
            f"{mean['speedup']:.2f}",
            f"{mean['cpu_speedup']:.2f}",
            f"{mean['slowest']:.2f}",
        ]
        for mean in result["means"]
    ]
    return [
        (
            f"operators under {result['preset']}, input quantization included",
            [
                "kind",
                "shape",
                "threads",
                "torch ms",
                "torch's best",
                "native ms",
                "speed-up",
                "in CPU time",
            ],
            lines,
        ),
        (
            "geometric means",
            ["kind", "threads", "shapes", "speed-up", "in CPU time", "smallest"],
            means,
        ),
    ]


def latency_tables(result: dict[str, Any], *, memory: bool, first_mask: bool) -> list[Table]:
    """Return the times, coverage and whatever else was measured."""
    size = result["input_size"]
    tables: list[Table] = [
        (
            f"{result['model']}, {size} x {size}, weights {result['weights']}",
            [
                "candidate",
                "batch",
                "threads",
                "ms per pass",
                "ms/image",
                "images/s",
                "speed-up",
                "in CPU time",
                "execution",
            ],
            [_latency_line(row) for row in result["rows"]],
        ),
        (
            "run by the native engine",
            ["method", "of quantized operators", "of all operators", "of multiply-accumulates"],
            [[name, *_coverage(cover)] for name, cover in result["coverage"].items()],
        ),
    ]
    if memory:
        tables.append(_memory_table(result["processes"]))
    if first_mask:
        tables.append(_first_mask_table(result["processes"]))
    if "profile" in result:
        tables += _profile_tables(result["profile"])
    return tables


def _latency_line(row: dict[str, Any]) -> list[str]:
    place = [row["candidate"], str(row["batch"]), str(row["threads"])]
    if "skipped" in row:
        return [*place, "skipped", "-", "-", "-", "-", row["skipped"]]
    return [
        *place,
        _ms(row),
        f"{row['ms_per_image']:.1f}",
        f"{row['images_per_second']:.2f}",
        _ratio(row["speedup"]),
        f"{row['cpu_speedup']:.2f}",
        _execution(row),
    ]


def _memory_table(processes: list[dict[str, Any]]) -> Table:
    lines = [
        [
            row["candidate"],
            str(row["batch"]),
            str(row["threads"]),
            f"{row['peak_bytes'] / MB:.0f}",
            f"{(row['peak_bytes'] - row['import_bytes']) / MB:.0f}",
            f"{row['peak_ratio']:.2f}x",
        ]
        for row in processes
    ]
    header = ["candidate", "batch", "threads", "peak MB", "above imports MB", "smaller"]
    return ("peak resident memory of a process that loads and predicts", header, lines)


def _first_mask_table(processes: list[dict[str, Any]]) -> Table:
    first = min(row["batch"] for row in processes)
    lines = [
        [
            row["candidate"],
            str(row["threads"]),
            f"{row['first_mask_seconds']:.2f}",
            f"{row['after_imports_seconds']:.2f}",
            f"{row['load_seconds']:.2f}",
            f"{row['predict_seconds']:.2f}",
            f"{row['first_mask_speedup']:.2f}",
            f"{row['after_imports_speedup']:.2f}",
        ]
        for row in processes
        if row["batch"] == first
    ]
    header = [
        "candidate",
        "threads",
        "from process start",
        "from after imports",
        "loading",
        "predicting",
        "speed-up",
        "after imports",
    ]
    return (f"seconds from the file to the first mask, batch {first}", header, lines)


def _profile_tables(profile: dict[str, Any]) -> list[Table]:
    """By kind of work, then operator by operator."""
    header = [
        "operator or function",
        "calls",
        "fp32 ms",
        f"{profile['method']} ms",
        "share",
        "speed-up",
    ]
    where = f"where the time goes, batch 1, {profile['threads']} threads"
    total = {"what": "total", "calls": 1, **{side: profile[side] for side in _SIDES}}
    tables: list[Table] = []
    for title, key in ((where, "kinds"), (f"{where}, in detail", "rows")):
        rows = [*_without_crumbs(profile[key], profile), total]
        lines = [_profile_line(row, profile["other_ms"]) for row in rows]
        tables.append((title, header, lines))
    return tables


def _without_crumbs(rows: list[dict[str, Any]], totals: dict[str, float]) -> list[dict[str, Any]]:
    """Return the rows that matter on either side, the others summed up in one."""
    shown: list[dict[str, Any]] = []
    crumbs: list[dict[str, Any]] = []
    for row in rows:
        share = max(row[side] / max(totals[side], 1e-12) for side in _SIDES)
        (shown if share >= SHOWN_SHARE else crumbs).append(row)
    if crumbs:
        sums = {key: sum(row[key] for row in crumbs) for key in ("calls", *_SIDES)}
        shown.append({"what": f"{len(crumbs)} smaller ones", **sums})
    return shown


def _profile_line(row: dict[str, Any], total: float) -> list[str]:
    before, after = row["baseline_ms"], row["other_ms"]
    return [
        row["what"],
        str(row["calls"]),
        f"{before:.2f}",
        f"{after:.2f}",
        f"{after / max(total, 1e-12):.1%}",
        f"{before / after:.2f}" if before and after else "-",
    ]


def storage_table(name: str, splits: dict[str, dict[str, Any]]) -> Table:
    """Return the bytes by purpose, a column per method."""
    columns = list(splits.values())
    lines = [[label, *(f"{split[key]:,}" for split in columns)] for key, label in _STORAGE_LABELS]
    lines.append(
        [
            "scales and metadata, of the packed weights",
            *(f"{split['overhead']:.3%}" for split in columns),
        ]
    )
    lines.append(
        ["the same with sizes alone as metadata", *(f"{s['bare_overhead']:.3%}" for s in columns)]
    )
    lines.append(["smaller than FP32", *(f"{split['ratio']:.2f}x" for split in columns)])
    return (f"bytes of a packed checkpoint: {name}", ["", *splits], lines)


_STORAGE_LABELS = [
    ("packed_weights", "packed weights"),
    ("row_padding", "padding of odd outputs"),
    ("weight_scales", "weight scales"),
    ("activation_ranges", "fixed activation ranges"),
    ("float_blocks", "float parameters in 8-bit blocks"),
    ("float_block_ranges", "ranges of these blocks"),
    ("float_tensors", "float tensors stored as they are"),
    ("buffers", "index tables and masks"),
    ("tensor_index", "metadata: index of the tensors"),
    ("description", "metadata: plan and config (JSON)"),
    ("total", "total on disk"),
    ("shapes", "sizes of the packed weights alone, int32"),
    ("fp32", "the same parameters in FP32"),
]


def deployment_tables(result: dict[str, Any]) -> list[Table]:
    """Return the paper's table of one model, and the facts around it."""
    size, batch, threads = result["input_size"], result["batch"], result["threads"]
    lines = [
        [
            row["candidate"],
            f"{row['weight_bytes'] / MB:.2f}",
            f"{row['images_per_second']:.2f}",
            f"{row['ms_per_image']:.1f}",
            f"{row['peak_bytes'] / MB:.1f}",
            _ratio(row["speedup"]),
            row["execution"],
        ]
        for row in result["rows"]
    ]
    over, split = result["overhead"], result["storage"]
    facts = [
        *[
            [f"overhead of {label}", _share(over[key])]
            for key, label in (("dstg", "DSTG"), ("dcrp", "DCRP"), ("both", "both"))
        ],
        *[
            [f"native {what}", share]
            for what, share in zip(
                ("of quantized operators", "of all operators", "of multiply-accumulates"),
                _coverage(result["coverage"]),
            )
        ],
        ["packed weights", f"{split['packed_weights']:,} bytes"],
        ["weight scales", f"{split['weight_scales']:,} bytes"],
        ["metadata", f"{split['metadata']:,} bytes"],
        ["scales and metadata", f"{split['overhead']:.3%} of the packed weights"],
        ["total on disk", f"{split['total']:,} bytes"],
    ]
    title = (
        f"{result['model']}, {size} x {size}, batch {batch}, {threads} threads, "
        f"weights {result['weights']}"
    )
    return [
        (
            title,
            [
                "method",
                "weights MB",
                "images/s",
                "ms/image",
                "peak memory MB",
                "speed-up",
                "execution",
            ],
            lines,
        ),
        (f"{result['model']}: cod-tdq in detail", ["", ""], facts),
    ]


def gpu_tables(result: dict[str, Any]) -> list[Table]:
    """Return the paper's runtime table, and how much of each network ran on the kernels."""
    size = result["input_size"]
    lines = [
        [
            row["candidate"],
            str(row["batch"]),
            f"{row['weight_bytes'] / MB:.2f}",
            f"{row['images_per_second']:.2f}",
            f"{row['ms_per_image']:.2f}",
            f"{row['peak_bytes'] / MB:.2f}",
            f"{row['speedup']:.2f}",
            row["execution"],
        ]
        for row in result["rows"]
    ]
    return [
        (
            f"{result['model']}, {size} x {size}, {result['device']}, weights {result['weights']}",
            [
                "method",
                "batch",
                "weights MB",
                "images/s",
                "ms/image",
                "peak memory MB",
                "speed-up",
                "execution",
            ],
            lines,
        ),
        (
            "run by the Triton kernels",
            ["method", "of quantized operators", "of all operators", "of multiply-accumulates"],
            [[name, *_coverage(cover)] for name, cover in result["coverage"].items()],
        ),
    ]


def render(tables: Sequence[Table], form: str) -> str:
    """Return all tables, in text or Markdown."""
    blocks = []
    for title, header, lines in tables:
        if form == "markdown":
            blocks.append(f"### {title}\n\n{_markdown(header, lines)}")
        else:
            blocks.append(f"{title}\n\n{table(header, lines)}")
    return "\n\n".join(blocks)


def machine_line(facts: dict[str, Any]) -> str:
    """Return what the numbers were taken on."""
    switches = "".join(f", {key}={value}" for key, value in facts["fp32_switches"].items())
    load = "unknown" if facts["load"] is None else facts["load"][0]
    lines = [
        f"{facts['cpu']}, {facts['cores']} cores, load {load}; torch {facts['torch']} "
        f"({facts['fp32_instruction_set']}{switches}), native {facts['native_instruction_set']}"
    ]
    return "\n".join(lines + [f"note: {note}" for note in facts["notes"]])


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, [":---" if i == 0 else "---:" for i in range(len(header))], *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


def _ms(timing: dict[str, Any]) -> str:
    wall = timing["wall_ms"]
    digits = 1 if wall["median"] >= 100 else 3 if wall["median"] < 1 else 2
    return f"{wall['median']:.{digits}f} [{wall['q1']:.{digits}f}, {wall['q3']:.{digits}f}]"


def _ratio(speedup: dict[str, float]) -> str:
    return f"{speedup['median']:.2f} [{speedup['q1']:.2f}, {speedup['q3']:.2f}]"


def _share(extra: dict[str, float]) -> str:
    return f"{extra['median']:+.2%} [{extra['q1']:+.2%}, {extra['q3']:+.2%}]"


def _execution(row: dict[str, Any]) -> str:
    if "difference" not in row:
        return str(row["execution"])
    return (
        f"{row['execution']} (built in {row['build_seconds']:.0f} s, output differs by "
        f"{row['difference']:.1e})"
    )


def _coverage(cover: dict[str, Any]) -> list[str]:
    return [
        f"{cover['of_quantized']:.2%} ({cover['native_operators']}/{cover['quantized_operators']})",
        f"{cover['of_operators']:.2%} ({cover['native_operators']}/{cover['operators']})",
        f"{cover['of_macs']:.2%} of {cover['macs'] / 1e9:.2f} G",
    ]
