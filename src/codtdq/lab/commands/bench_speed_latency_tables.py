"""Results of `codtdq bench latency` as tables: times, sizes, scores, coverage, processes."""

from __future__ import annotations

from typing import Any

from codtdq.lab.commands.bench_speed_tables import MB, Table, coverage_cells, ms_cell, ratio_cell

SHOWN_SHARE = 0.005  # rows of a profile below this share of both passes are summed up
_SIDES = ("baseline_ms", "other_ms")


def latency_tables(result: dict[str, Any], *, memory: bool, first_mask: bool) -> list[Table]:
    """Return the times, coverage and whatever else was measured."""
    tables: list[Table] = [
        _main_table(result),
        (
            "run by the native engine",
            ["method", "of quantized operators", "of all operators", "of multiply-accumulates"],
            [[name, *coverage_cells(cover)] for name, cover in result["coverage"].items()],
        ),
    ]
    if "held" in result:
        tables.append(_holding_table(result["held"]))
    if memory:
        tables.append(_memory_table(result["processes"]))
    if first_mask:
        tables.append(_first_mask_table(result["processes"]))
    if "profile" in result:
        tables += _profile_tables(result["profile"])
    return tables


def _main_table(result: dict[str, Any]) -> Table:
    """Size, speed and loss, a line per candidate, batch size and number of threads."""
    size, rows = result["input_size"], result["rows"]
    scored = next((row["accuracy"] for row in rows if "S" in row.get("accuracy", {})), None)
    title = f"{result['model']}, {size} x {size}, weights {result['weights']}"
    if scored is not None:
        title += f"; scores on {scored['images']} images of {scored['dataset']}"
    if "held" in result:
        title += f"; held to {result['held']['set']}"
    header = [
        "candidate",
        "batch",
        "threads",
        "ms per pass",
        "ms/image",
        "images/s",
        "speed-up",
        "in CPU time",
        "MB",
        *(["S", "MAE", "|p - p_fp32|"] if scored is not None else []),
        *(["held"] if "held" in result else []),
        "precision",
        "execution",
    ]
    return title, header, [_latency_line(row, header) for row in rows]


def _latency_line(row: dict[str, Any], header: list[str]) -> list[str]:
    place = [row["candidate"], str(row["batch"]), str(row["threads"])]
    if "skipped" in row:
        between = ["-"] * (len(header) - len(place) - 2)
        return [*place, "skipped", *between, row["skipped"]]
    return [
        *place,
        ms_cell(row),
        f"{row['ms_per_image']:.1f}",
        f"{row['images_per_second']:.2f}",
        ratio_cell(row["speedup"]),
        f"{row['cpu_speedup']:.2f}",
        "-" if row["weight_bytes"] is None else f"{row['weight_bytes'] / MB:.2f}",
        *(_score_cells(row.get("accuracy", {})) if "S" in header else []),
        *([row["held"]] if "held" in header else []),
        row["precision"],
        _execution(row),
    ]


def _score_cells(scores: dict[str, Any]) -> list[str]:
    if "S" not in scores:
        return ["failed", "-", "-"]
    return [f"{scores['S']:.4f}", f"{scores['MAE']:.4f}", f"{scores['distance']:.4f}"]


def _execution(row: dict[str, Any]) -> str:
    said = [str(row["execution"])]
    if row.get("note"):
        said.append(row["note"])
    if "difference" in row:
        said.append(f"built in {row['build_seconds']:.0f} s")
        apart = row["difference"]
        said.append("output not finite" if apart is None else f"output differs by {apart:.1e}")
    if "failed" in row.get("accuracy", {}):
        said.append(f"no scores: {row['accuracy']['failed']}")
    return "; ".join(said)


def _holding_table(held: dict[str, Any]) -> Table:
    lines = [
        [family, held["set"] if found["held"] else "not held", found["evidence"]]
        for family, found in held["families"].items()
    ]
    return (f"held to {held['set']}", ["library", "instruction set", "how it shows"], lines)


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
