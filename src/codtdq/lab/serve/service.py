"""What a request computes, in the worker thread: masks, cut-outs and heat maps of one picture."""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from codtdq.data.transforms import to_input
from codtdq.errors import ConfigError
from codtdq.evaluation.masks_to_files import encoded
from codtdq.evaluation.pictures import cutout_of
from codtdq.evaluation.predict import info_of, predict_batch
from codtdq.imagefile import decode_upright
from codtdq.lab.serve.evidence import Evidence
from codtdq.lab.serve.limits import Limits
from codtdq.lab.serve.variants import FLOAT, Variants

UPLOAD = "the upload"


@dataclass(frozen=True)
class Answer:
    """The mask of one network: uint8 [H, W], and the seconds that it took."""

    method: str
    mask: NDArray[np.uint8]
    seconds: float


class Service:
    """Computes with the networks; every function here runs in the one worker thread."""

    def __init__(self, variants: Variants, limits: Limits) -> None:
        self.variants = variants
        self.limits = limits
        self._evidence: Evidence | None = None

    def picture(self, data: bytes) -> NDArray[np.uint8]:
        """Decode an upload; `DataError` for what is too large or no image."""
        return decode_upright(data, UPLOAD, pixels=self.limits.pixels)

    def masks(self, data: bytes, methods: list[str]) -> tuple[NDArray[np.uint8], list[Answer]]:
        """The picture of an upload, and its mask by each method."""
        variants = [self.variants.get(method) for method in methods]  # before any work
        pixels = self.picture(data)
        answers = []
        for variant in variants:
            assert variant.model is not None
            start = time.perf_counter()
            mask = predict_batch(variant.model, [pixels])[0]
            answers.append(Answer(variant.method, np.asarray(mask), time.perf_counter() - start))
        return pixels, answers

    def predicted(self, data: bytes, methods: list[str]) -> dict[str, Any]:
        """Masks with time and size, JSON-ready."""
        pixels, answers = self.masks(data, methods)
        known = {variant.method: variant.to_dict() for variant in self.variants.all()}
        return {
            "model": self.variants.name,
            "width": pixels.shape[1],
            "height": pixels.shape[0],
            "masks": [
                {
                    "method": answer.method,
                    "title": known[answer.method]["title"],
                    "milliseconds": round(answer.seconds * 1e3, 1),
                    "mib": known[answer.method]["mib"],
                    "execution": known[answer.method]["execution"],
                    "covered": round(float((answer.mask >= 128).mean()), 4),
                    "png": _base64(answer.mask),
                }
                for answer in answers
            ],
        }

    def file(self, data: bytes, method: str, kind: str) -> bytes:
        """One PNG: the mask, or the picture with the mask as its opacity."""
        pixels, (answer,) = self.masks(data, [method])
        return encoded(answer.mask if kind == "mask" else cutout_of(pixels, answer.mask))

    def evidence(self, data: bytes, method: str) -> dict[str, Any]:
        """Heat maps of every layer, JSON-ready."""
        if method == FLOAT:
            raise ConfigError(f"{FLOAT} rounds nothing; accepted: a quantized method")
        model = self.variants.get(method).model
        original = self.variants.get(FLOAT).model
        assert model is not None and original is not None
        pixels = self.picture(data)
        info = info_of(model)
        if self._evidence is None:
            self._evidence = Evidence(original)
        inputs = to_input(pixels, info.input_size, info.mean, info.std).unsqueeze(0)
        with torch.inference_mode():
            layers = self._evidence.of(model, inputs)
        return {
            "method": method,
            "layers": [
                {"layer": one.layer, "zero_mass": round(one.zero_mass, 4), "png": _base64(one.map)}
                for one in layers
            ],
        }


def _base64(pixels: NDArray[np.uint8]) -> str:
    return base64.b64encode(encoded(pixels)).decode("ascii")
