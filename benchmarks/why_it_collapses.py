"""Which inputs lose their evidence under which method: SQNR and zero mass of the worst operators.

python benchmarks/why_it_collapses.py [--model cfrn-small] [--images 8] [--out rows.jsonl]
"""

import argparse
import json
from pathlib import Path

import codtdq
from codtdq.data import open_dataset
from codtdq.evaluation import CalibrationImages, layer_losses
from codtdq.methods import apply_method, method_info

METHODS = (
    "w4a4",
    "dstg-only",
    "cod-tdq-per-tensor-conv",
    "c1-only",
    "dstg-everywhere",
    "cod-tdq-guarded",
    "per-token",
    "repq-vit",
)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="cfrn-small")
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--out", type=Path, help="JSON lines: a row for each method")
    args = parser.parse_args()
    rows = []
    model = codtdq.create_model(args.model)
    calibration = CalibrationImages(model, open_dataset("camosynth/calib", limit=128), count=128)
    test = CalibrationImages(
        model, open_dataset("camosynth/test-easy", limit=args.images), count=args.images
    )
    worst = None
    for name in args.methods.split(","):
        losses = layer_losses(apply_method(model, name, calibration), test)
        if worst is None:  # the operators that lose most under the first method, for all
            worst = [loss.name for loss in losses[:6]]
        by_name = {loss.name: loss for loss in losses}
        mean = sum(loss.sqnr_db for loss in losses) / len(losses)
        print(f"{method_info(name).title}: mean SQNR {mean:.1f} dB over {len(losses)} operators")
        for operator in worst:
            loss = by_name[operator]
            numbers = f"SQNR {loss.sqnr_db:6.1f} dB  zeros {loss.zero_mass:.3f}"
            print(f"  {operator:44} {loss.role:10} {numbers}")
        kept = {each: [by_name[each].sqnr_db, by_name[each].zero_mass] for each in worst}
        row = {"model": args.model, "method": name, "images": args.images}
        rows.append(row | {"operators": len(losses), "mean_sqnr_db": mean, "worst": kept})
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
