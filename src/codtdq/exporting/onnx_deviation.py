"""How far masks of an ONNX file are from ours, in ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from codtdq.data.camosynth import CamoSynth
from codtdq.data.splits import TEST_SPLITS
from codtdq.data.transforms import to_input
from codtdq.evaluation.masks import to_mask
from codtdq.evaluation.predict import info_of, mask_logits

IMAGES = 4  # synthetic scenes


@dataclass(frozen=True)
class Deviation:
    """Mean differences of masks from 0 to 1, over some scenes."""

    images: int
    from_quantized: float  # to the masks of the model as it is, with quantized activations
    # to those of its weights with float activations, where that is what the file computes
    from_float: float | None

    def __str__(self) -> str:
        masks = f"masks of ONNX Runtime on {self.images} synthetic scenes: mean difference"
        if self.from_float is None:
            return f"{masks} {self.from_quantized:.1e} to the model's own"
        return (
            f"{masks} {self.from_float:.1e} to these weights under float activations, "
            f"{self.from_quantized:.1e} to the model with quantized ones"
        )


def measure_deviation(path: Path, model: nn.Module, plain: nn.Module | None) -> Deviation | None:
    """Compare masks; None where ONNX Runtime is not installed, or the input is not square.

    plain: the twin with float activations that was exported, if it was.
    """
    try:
        import onnxruntime
    except ModuleNotFoundError:
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    shape = given.shape
    if shape[2] != shape[3]:
        return None
    info = info_of(model, int(shape[2]))
    scenes = CamoSynth(TEST_SPLITS[0], limit=IMAGES)
    others = [model] if plain is None else [model, plain]
    gaps = np.zeros(len(others))
    for index in range(IMAGES):
        image = scenes[index].image
        x = to_input(image, int(shape[2]), info.mean, info.std).unsqueeze(0)
        x = x.expand(shape[0], -1, -1, -1).contiguous()
        found = torch.from_numpy(session.run(None, {given.name: x.numpy()})[0])
        masks: list[Any] = [
            to_mask(logits[0], image.shape[:2], info.postprocess)
            for logits in (found, *(mask_logits(other, info, x) for other in others))
        ]
        gaps += [np.abs(masks[0].astype(float) - other).mean() / 255 for other in masks[1:]]
    mean = [float(one) / IMAGES for one in gaps]
    return Deviation(IMAGES, mean[0], None if plain is None else mean[1])
