"""Results of the speed benchmarks as tables: titles, headings and cells.

The tables of `latency` have a file of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from codtdq.cli.common import table

Table = tuple[str, Sequence[str], list[list[str]]]  # title, header, lines
FORMATS = ("text", "markdown")
MB = 1e6  # as in the paper's tables


def kernel_tables(result: dict[str, Any]) -> list[Table]:
    """Operators, and their geometric means."""
    lines = [
        [
            row["kind"],
            row["name"],
            str(row["threads"]),
            ms_cell(row["fp32"]),
            row["fp32"]["layout"],
            ms_cell(row["int4"]),
            ratio_cell(row["speedup"]),
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
            ratio_cell(row["speedup"]),
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
                coverage_cells(result["coverage"]),
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
            [[name, *coverage_cells(cover)] for name, cover in result["coverage"].items()],
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


def ms_cell(timing: dict[str, Any]) -> str:
    """Return median and quartiles of a wall time."""
    wall = timing["wall_ms"]
    digits = 1 if wall["median"] >= 100 else 3 if wall["median"] < 1 else 2
    return f"{wall['median']:.{digits}f} [{wall['q1']:.{digits}f}, {wall['q3']:.{digits}f}]"


def ratio_cell(speedup: dict[str, float]) -> str:
    """Return median and quartiles of a ratio."""
    return f"{speedup['median']:.2f} [{speedup['q1']:.2f}, {speedup['q3']:.2f}]"


def _share(extra: dict[str, float]) -> str:
    return f"{extra['median']:+.2%} [{extra['q1']:+.2%}, {extra['q3']:+.2%}]"


def coverage_cells(cover: dict[str, Any]) -> list[str]:
    """Return how much ran native: of quantized operators, of all, of multiply-accumulates."""
    return [
        f"{cover['of_quantized']:.2%} ({cover['native_operators']}/{cover['quantized_operators']})",
        f"{cover['of_operators']:.2%} ({cover['native_operators']}/{cover['operators']})",
        f"{cover['of_macs']:.2%} of {cover['macs'] / 1e9:.2f} G",
    ]
