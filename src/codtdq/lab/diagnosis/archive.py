"""The diagnostic export (S4.5): X, c, Delta, sigma and X_hat of every quantized input, on disk.

One safetensors file per method, image, operator and call: DIR/METHOD/IMAGE/ORDER-NAME.safetensors,
written whole or not at all, so that memory never holds more than one input.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from codtdq.errors import DataError
from codtdq.io import write_tensors
from codtdq.lab.diagnosis.groups import Observation
from codtdq.lab.text import safe_name
from codtdq.tensorfile import read_tensors

FIELDS = ("x", "radius", "step", "sigma", "x_hat")


class Archive:
    """Writes the inputs of one method."""

    def __init__(self, directory: str | Path, method: str) -> None:
        self._root = Path(directory) / safe_name(method)

    def write(self, image: str, order: int, name: str, call: int, seen: Observation) -> Path:
        """Store one input; x and x_hat are tokens [N, C], the rest has one value per group.

        A method without groups has neither radius nor step nor sigma.
        """
        tensors: dict[str, Tensor] = {"x": seen.x, "x_hat": seen.x_hat}
        facts = {"operator": name, "image": image, "call": str(call), "mode": ""}
        if seen.result is not None:
            result = seen.result
            tensors |= {"radius": result.radius, "step": result.step, "sigma": result.sigma}
            facts["mode"] = result.spec.mode
        suffix = f".{call}" if call else ""
        path = self._root / safe_name(image) / f"{order:03d}-{safe_name(name)}{suffix}.safetensors"
        # copies: safetensors takes no tensors that share memory, as X and X_hat of FP32 do
        copies = {k: v.contiguous().clone() for k, v in tensors.items()}
        return write_tensors(path, copies, facts)


def read_entry(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and facts (operator, image, call, mode) of one file of an archive."""
    try:
        return read_tensors(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is no file of a diagnosis archive: {error}") from error


__all__ = ["FIELDS", "Archive", "read_entry"]
