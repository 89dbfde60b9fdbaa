"""The networks that are timed: FP32, and quantized ones as a user has them, saved and loaded."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from codtdq.api import config, load, save
from codtdq.checkpoint.store import read_header
from codtdq.data import open_images
from codtdq.engine import backend_of
from codtdq.errors import ConfigError
from codtdq.evaluation.calibration import CalibrationImages
from codtdq.lab.bench.speed.competitors import Calibration
from codtdq.lab.bench.speed.machine import require_engine
from codtdq.methods import list_methods, method_info
from codtdq.models import model_info
from codtdq.models.registry import feed_at
from codtdq.models.weights import packed_checkpoint, save_weights
from codtdq.operators.record import is_quantized, record_of
from codtdq.resolve import CALIBRATION_SPLIT, open_model, quantize_for

BASELINE = "fp32"
CALIBRATION_IMAGES = 4  # for times alone: ranges cost the same whatever their values are
FP32_FILE = "fp32.safetensors"
SHOWN = "camosynth/val"  # what a timed pass sees: images that nobody was calibrated on


@dataclass
class Subject:
    """One network under test: in memory, and the file or directory that holds it."""

    name: str  # method, or that of a quantized model
    model: nn.Module
    path: Path
    build_seconds: float = 0.0  # to quantize, write and load; of a quantized model to load

    @property
    def execution(self) -> str:
        """How its products are computed."""
        record = backend_of(self.model)
        return "torch" if record is None else record.execution

    @property
    def precision(self) -> str:
        """Widths of weights and activations, as the method was asked for them."""
        if not is_quantized(self.model):
            return "f32"
        asked = record_of(self.model).config
        weights, inputs = (asked[key] or 32 for key in ("weight_bits", "act_bits"))
        return f"W{weights}A{inputs}"

    @property
    def bytes(self) -> int:
        """Bytes on disk, of the file or of all files in the directory."""
        if self.path.is_file():
            return self.path.stat().st_size
        return sum(file.stat().st_size for file in self.path.iterdir() if file.is_file())


@dataclass
class Subjects:
    """FP32 first, then the methods, then quantized models."""

    architecture: str
    input_size: int
    weights: str  # where they come from, for the output
    members: dict[str, Subject]
    calibration_images: int = CALIBRATION_IMAGES
    trained: bool = False
    calibration_set: str = CALIBRATION_SPLIT
    data_root: str | None = None

    @property
    def baseline(self) -> nn.Module:
        """The FP32 network."""
        return self.members[BASELINE].model

    def images(self, batch: int) -> Tensor:
        """Return the inputs [B, 3, size, size]: the first images of a split of camosynth."""
        return next(iter(self._shown(SHOWN, batch, batch)))

    def calibration(self, batch: int) -> Calibration:
        """Return batches of the images that our methods are calibrated on, for other quantizers."""
        count = -(-self.calibration_images // batch) * batch  # whole batches
        images = self._shown(self.calibration_set, count, batch)
        return Calibration(images, f"{images.images} images of {self.calibration_set}")

    def _shown(self, name: str, count: int, batch: int) -> CalibrationImages:
        images = open_images(name, self.data_root, limit=count)
        return CalibrationImages(self.baseline, images, count=count, batch_size=batch)


@contextlib.contextmanager
def prepared(
    architecture: str,
    methods: Sequence[str],
    *,
    quantized: Sequence[str] = (),
    checkpoint: str | Path | None = None,
    untrained: bool = False,
    write_fp32: bool = False,
    native: bool = True,
    calibration: str = CALIBRATION_SPLIT,
    data_root: str | None = None,
    calibration_images: int = CALIBRATION_IMAGES,
    budget: str = "fast",
    size: int | None = None,
) -> Iterator[Subjects]:
    """Quantize by every method, write, load on the native engine; files live as long as the block.

    quantized: directories of quantized models that are there, or names of those of the package.
    write_fp32: also write the float checkpoint, for measurements that begin with a file.
    native: the engine is needed; False where only the files count.
    budget: of methods that reconstruct; "least" where only times and sizes count.
    size: side of the input; None: the model's own.
    """
    if native:
        require_engine()
    for method in methods:
        method_info(method)  # an unknown name fails before anything is built
    stored = _stored(architecture, quantized)
    with tempfile.TemporaryDirectory(prefix="codtdq-speed-") as folder:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = open_model(architecture, checkpoint, untrained=untrained)
        feed_at(model, size)
        fp32_file = Path(folder) / FP32_FILE
        if write_fp32:
            save_weights(model, fp32_file, torch.float32)
        members = {BASELINE: Subject(BASELINE, model.eval(), fp32_file)}
        for method in dict.fromkeys(methods):
            if method != BASELINE:
                begin = time.perf_counter()
                settings = config(method, model=model)
                made = quantize_for(
                    model,
                    settings,
                    dataset=calibration,
                    root=data_root,
                    count=calibration_images,
                    budget=budget,
                )
                directory = save(made, Path(folder) / method)
                del made
                members[method] = _loaded(method, directory, size, begin)
        for name, directory in stored.items():
            members[name] = _loaded(name, directory, size, time.perf_counter())
        yield Subjects(
            architecture,
            size or model_info(architecture).input_size,
            _weights(architecture, checkpoint),
            members,
            calibration_images,
            is_trained(architecture, checkpoint),
            calibration,
            data_root,
        )


def _loaded(name: str, directory: Path, size: int | None, begin: float) -> Subject:
    model = load(directory)
    feed_at(model, size)
    return Subject(name, model, directory, time.perf_counter() - begin)


def _stored(architecture: str, quantized: Sequence[str]) -> dict[str, Path]:
    """Directories by the name of a row; those of other networks are refused."""
    found = {}
    for spec in quantized:
        directory = packed_checkpoint(spec)
        own = read_header(directory)["architecture"]
        if own != architecture:
            raise ConfigError(f"{spec} is a {own}; accepted: quantized models of {architecture}")
        if directory.name in found or directory.name in list_methods():
            raise ConfigError(f"{spec}: another row has the name {directory.name}; rename it")
        found[directory.name] = directory
    return found


def is_trained(architecture: str, checkpoint: str | Path | None) -> bool:
    """Whether a model has weights that were learnt: its own, or given ones."""
    return checkpoint is not None or model_info(architecture).weights is not None


def _weights(architecture: str, checkpoint: str | Path | None) -> str:
    if checkpoint is not None:
        return f"from {Path(checkpoint).name}"
    return "random (untrained)" if model_info(architecture).weights is None else "shipped"
