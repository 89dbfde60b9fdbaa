"""The float network that competitors get: at one input shape, with files that are made once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from codtdq.errors import UnsupportedError
from codtdq.lab.bench.speed.competitors.onnx_files import export_fp32
from codtdq.lab.text import one_line
from codtdq.models.registry import ModelInfo, first_output

LONGEST_NOTE = 200  # characters of an error in a table
RANDOM_BATCHES = 4


@dataclass(frozen=True)
class Calibration:
    """Batches [B, 3, s, s] that a quantizer may look at, and where they come from."""

    batches: Iterable[Tensor]
    source: str


class Network:
    """A float network, images of the measured shape, and the files made of it in a folder."""

    def __init__(
        self, model: nn.Module, images: Tensor, folder: Path, calibration: Calibration | None = None
    ) -> None:
        self.model, self.images, self.folder = model, images, folder
        self.calibration = calibration or random_batches(images)
        self._made: dict[str, Any] = {}
        with torch.inference_mode():
            outputs = model(images)
        flat, self._structure = pytree.tree_flatten(outputs)
        self._outputs = len(flat)
        self.expected = self.mask(outputs)

    def mask(self, outputs: Any) -> Tensor:
        """Return the mask logits, float32, of what a runtime gave: a flat sequence or our own."""
        flat = [torch.as_tensor(part) for part in pytree.tree_leaves(outputs)]
        if len(flat) != self._outputs:
            raise UnsupportedError(f"it has {len(flat)} outputs, the network has {self._outputs}")
        info = getattr(self.model, "info", None)
        pick = info.mask_logits if isinstance(info, ModelInfo) else first_output
        return pick(pytree.tree_unflatten(flat, self._structure)).float()

    def difference(self, outputs: Any) -> float:
        """Relative distance of mask logits from eager torch: near 0 for the same network."""
        return float((self.mask(outputs) - self.expected).norm() / self.expected.norm())

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what `make` gives, made once; an error is kept as well, and raised again."""
        if name not in self._made:
            try:
                self._made[name] = make()
            except UnsupportedError as error:  # says all by itself
                self._made[name] = error
            except Exception as error:  # whatever it is, those who share the file share it
                text = f"{name} failed: {one_line(error, LONGEST_NOTE)}"
                self._made[name] = UnsupportedError(text)
                raise self._made[name] from error
        if isinstance(self._made[name], UnsupportedError):
            raise self._made[name]
        return self._made[name]

    def onnx(self) -> Path:
        """Return the network in ONNX, exported once."""
        return self.once(
            "ONNX export",
            lambda: export_fp32(self.model, self.images, self.folder / "network.onnx"),
        )


def with_data(path: Path) -> Sequence[Path]:
    """Return an ONNX file and the file of its weights, where they are apart."""
    data = path.with_name(f"{path.name}.data")
    return (path, data) if data.exists() else (path,)


def random_batches(images: Tensor) -> Calibration:
    """Stand in where a network has no images to calibrate on."""
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randn(images.shape, generator=generator) for _ in range(RANDOM_BATCHES)]
    return Calibration(batches, f"{RANDOM_BATCHES} random inputs")
