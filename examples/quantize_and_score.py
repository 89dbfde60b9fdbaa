"""Quantize a network by two methods, skip layers, save, load, predict, score: one way for both."""

from __future__ import annotations

from pathlib import Path

import codtdq
from codtdq.data import open_dataset
from codtdq.evaluation import CalibrationImages


def main(out: Path, images: int = 8) -> dict[str, float]:
    """S of both methods on synthetic scenes."""
    model = codtdq.create_model("cfrn-small")
    calibration = CalibrationImages(model, open_dataset("camosynth/calib", limit=images))
    scenes = open_dataset("camosynth/val", limit=images)
    scores: dict[str, float] = {}
    for name in ("cod-tdq-plus", "repq-vit"):
        config = codtdq.config(name, model=model, skip_patterns=["eem4_1.proj_*"])
        quantized = codtdq.quantize(model, config, calibration=calibration)
        restored = codtdq.load(codtdq.save(quantized, out / name))
        mask = codtdq.predict(restored, scenes[0].image)
        assert (mask == codtdq.predict(quantized, scenes[0].image)).all()
        scores[name] = codtdq.evaluate(restored, scenes).metrics["S"]
    return scores


if __name__ == "__main__":
    print(main(Path("quantized")))
