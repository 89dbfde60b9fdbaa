"""Scores of cod-tdq-plus on the native engine, rows as those of `codtdq bench accuracy`.

    python benchmarks/plus_engine.py --out runs/plus-engine
    cp runs/plus-engine/results.jsonl results/plus/engine.jsonl

`codtdq bench accuracy` simulates, so that rows do not depend on a processor. This calibrates as it
does (the same images and seeds, so the same model: rows have its hash) and scores the written model
on the engine. Cells whose row is there are skipped.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from codtdq.api import load
from codtdq.evaluation.provenance import execution_of
from codtdq.lab.bench.cells import make_grid, make_groups, row_identity
from codtdq.lab.bench.group import finished_row
from codtdq.lab.bench.prepare import MODEL, prepare_group
from codtdq.lab.bench.rows import RESULTS, ResultsFile, read_results
from codtdq.lab.bench.settings import RunSettings
from codtdq.lab.bench.shard import run_shard

METHOD = "cod-tdq-plus"
SPLITS = tuple(f"camosynth/test-{name}" for name in ("easy", "texture", "small", "spikes"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="cfrn-small,escnet-small")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--limit", type=int, help="images per split (default all 250)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help=f"folder of {RESULTS}")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    settings = RunSettings(out=str(args.out))
    file = args.out / RESULTS
    done = {row_identity(row) for row in read_results(file)} if file.exists() else set()
    grid = make_grid(
        args.models.split(","),
        [METHOD],
        SPLITS,
        seeds=map(int, args.seeds.split(",")),
        limit=args.limit,
    )
    for group in make_groups([cell for cell in grid if cell.identity not in done]):
        directory = settings.state_dir / group.key
        facts = prepare_group(group, settings, directory)
        model = load(directory / MODEL, backend="cpu")
        for cell in group.cells:
            shard = run_shard(model, cell, 0, settings, directory)  # a split is one part
            row = finished_row(cell, facts, [shard]) | {"execution": execution_of(model)}
            with ResultsFile(file) as results:
                results.append(row)
            sys.stdout.write(
                f"{group.title}: {cell.dataset} S {row['metrics']['S']:.4f}, {row['execution']}\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
