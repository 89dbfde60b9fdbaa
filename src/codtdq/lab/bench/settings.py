"""What every worker of a benchmark run must know, in a form that travels as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from codtdq.evaluation.calibration import CALIBRATION_IMAGES
from codtdq.resolve import CALIBRATION_SPLIT

STRESSES = ("none", "outliers")


@dataclass(frozen=True)
class RunSettings:
    """Settings that all cells of a run share.

    out: the directory of the run. data_root: the folder that holds the benchmark sets.
    sources: where to open a data set, by its name in rows. imports: Python files to run first.
    checkpoints: weights file by model name. keep_models: do not delete the quantized models.
    """

    out: str
    data_root: str | None = None
    sources: dict[str, str] = field(default_factory=dict)
    calibration: str = CALIBRATION_SPLIT
    calibration_images: int = CALIBRATION_IMAGES
    checkpoints: dict[str, str] = field(default_factory=dict)
    untrained: bool = False
    imports: tuple[str, ...] = ()
    keep_models: bool = False

    @property
    def state_dir(self) -> Path:
        """Quantized models and half-done cells."""
        return Path(self.out) / "state"

    @property
    def cache_dir(self) -> Path:
        """Synthetic images that have been made already."""
        return Path(self.out) / "cache"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON-ready form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RunSettings:
        """Read what `to_dict()` gave, after a JSON round trip."""
        return cls(**{**data, "imports": tuple(data["imports"])})

    def fixed(self) -> dict[str, Any]:
        """What must not change between a run and its `--resume`: rows do not tell it apart."""
        return {
            "calibration": self.calibration,
            "calibration_images": self.calibration_images,
            "checkpoints": dict(sorted(self.checkpoints.items())),
        }
