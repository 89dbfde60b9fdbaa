"""Sizes of what `codtdq export` writes, for every network: a program file and a portable ONNX file.

    python benchmarks/export_sizes.py --out results/runtime/sizes.json [--models cfrn,escnet]

Each file is written by the command that a user would type, and removed again; rows of networks that
are not named stay. Models without shipped weights have random ones, which no size depends on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MODELS = ("cfrn-small", "escnet-small", "segformer-small", "vit-cod", "cfrn", "escnet", "escnet-v2")
METHOD = "cod-tdq"


def exported(model: str, kind: str, folder: Path) -> dict[str, Any]:
    """What the command tells of a file."""
    words = ["export", model, "--method", METHOD, "--to", kind, "--out", str(folder / kind)]
    words += ["--untrained"] if not _shipped(model) else []
    done = subprocess.run(
        [sys.executable, "-m", "codtdq", *words, "--json"], capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{model}: {done.stderr.strip()[-2000:]}")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def _shipped(model: str) -> bool:
    import codtdq

    return codtdq.models.model_info(model).weights is not None


def row(model: str) -> dict[str, Any]:
    """Bytes of both files, of the parameters in FP32, and of a run."""
    with tempfile.TemporaryDirectory() as name:
        program = exported(model, "program", Path(name))
        onnx = exported(model, "onnx", Path(name))
    return {
        "model": model,
        "method": METHOD,
        "float_bytes": onnx["float_bytes"],
        "program_bytes": program["bytes"],
        "arena_bytes": max(one["arena_bytes"] for one in program["programs"]),
        "onnx_bytes": onnx["bytes"],
        "onnx_deviation": onnx["deviation"],
    }


def main() -> None:
    """Add rows to a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS), help="names, joined by commas")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    from codtdq.io import write_json

    rows = {one["model"]: one for one in _rows(args.out)}
    for model in args.models.split(","):
        rows[model] = row(model)
        print(json.dumps(rows[model]), flush=True)
        write_json(args.out, [rows[one] for one in MODELS if one in rows])


def _rows(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    return found


if __name__ == "__main__":
    main()
