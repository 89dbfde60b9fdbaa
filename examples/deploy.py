"""Deploy: quantize once, ship a folder, load it elsewhere without calibration data, predict."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

import codtdq
from codtdq.data import generate, open_dataset
from codtdq.evaluation import CalibrationImages


def build(out: Path, images: int) -> Path:
    """On your machine: quantize, score, and write a folder with a model card."""
    model = codtdq.create_model("escnet-small")
    calibration = CalibrationImages(model, open_dataset("camosynth/calib", limit=images))
    quantized = codtdq.quantize(model, "cod-tdq-plus", calibration=calibration)
    scores = codtdq.evaluate(quantized, open_dataset("camosynth/val", limit=images)).metrics
    return codtdq.save_pretrained(
        quantized,
        out / "escnet-w4a4",
        metrics={"camosynth/val": scores},
        calibration="camosynth/calib, synthetic",
        licence="mit",
    )


def main(out: Path, images: int = 4) -> tuple[int, float]:
    """On the other machine: bytes of the weights, share of the photograph that is object."""
    folder = build(out, images)
    model = codtdq.from_pretrained(folder)  # the native engine where it can run
    print(codtdq.backend_of(model))
    photo = out / "photo.png"
    Image.fromarray(generate("test-easy", 0, 160).image).save(photo)
    mask = codtdq.predict(model, photo)
    Image.fromarray(mask).save(out / "mask.png")
    return next(folder.glob("model-*.safetensors")).stat().st_size, float(np.mean(mask > 127))


if __name__ == "__main__":
    print(main(Path("deployed")))
