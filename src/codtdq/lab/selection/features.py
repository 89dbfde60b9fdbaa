"""What the float model computes on the calibration images, kept once and in bounded memory.

Feature points are the outputs of blocks, found from how modules are called (`find_blocks`): a
residual block, a decoder stage, or a single operator where there is nothing larger. Of every
output a fixed random sample of values is kept, the same positions for every setting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.errors import CalibrationError
from codtdq.methods.rivals.blocks import find_blocks
from codtdq.methods.workbench import Workbench
from codtdq.models.registry import first_output
from codtdq.planning.config import QuantConfig

SAMPLES = 2048  # values kept of one output and image: 100 blocks and 16 images take 13 MB


def feature_points(model: nn.Module, batch: Tensor) -> list[str]:
    """Names of the modules whose outputs are compared, in running order."""
    bench = Workbench(model, QuantConfig(), [batch])
    return [block.name for block in find_blocks(bench)]


def logits_of(model: nn.Module, batch: Tensor) -> Tensor:
    """Mask logits [B, 1, h, w], picked as the model declares; else its first output."""
    info = getattr(model, "info", None)
    pick: Callable[[Any], Tensor] = getattr(info, "mask_logits", first_output)
    return pick(model(batch))


def sampled(values: Tensor) -> Tensor:
    """Return at most SAMPLES values of a tensor, at positions that depend on its size only."""
    flat = values.detach().float().reshape(-1)
    if flat.numel() <= SAMPLES:
        return flat.clone()
    generator = torch.Generator().manual_seed(flat.numel())
    return flat[torch.randint(flat.numel(), (SAMPLES,), generator=generator)]


@contextmanager
def tapped(model: nn.Module, names: Sequence[str]) -> Iterator[dict[str, list[Tensor]]]:
    """Inside the block every forward pass appends samples of the named modules' outputs."""
    seen: dict[str, list[Tensor]] = {}

    def hook_of(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                seen.setdefault(name, []).append(sampled(output))

        return hook

    handles = [model.get_submodule(name).register_forward_hook(hook_of(name)) for name in names]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


class FloatReference:
    """Samples of the float model's features, and its logits, image by image.

    batches: inputs [1, 3, H, W], one image each, which are run again for every candidate.
    """

    def __init__(self, model: nn.Module, batches: Sequence[Tensor]) -> None:
        if not batches:
            raise CalibrationError("selection got no images; pass at least one")
        self.batches = list(batches)
        self.points = feature_points(model, self.batches[0])
        self.features: list[dict[str, Tensor]] = []  # per image: point -> samples of all its calls
        self.logits: list[Tensor] = []  # per image: [1, 1, h, w]
        with torch.inference_mode(), tapped(model, self.points) as seen:
            for batch in self.batches:
                self.logits.append(logits_of(model, batch).float())
                self.features.append(_joined(seen))

    def __len__(self) -> int:
        return len(self.batches)


class Drift:
    """Relative squared error per feature point, and of the logits, summed over images.

    e_p = sum (f_hat - f)^2 / sum (f - mean f)^2. A constant offset of the float feature is no
    signal, so it does not hide an error.
    """

    def __init__(self, reference: FloatReference) -> None:
        self._reference = reference
        self._error = dict.fromkeys([*reference.points, ""], 0.0)  # "": the logits
        self._power = dict.fromkeys(self._error, 0.0)

    def add(self, index: int, seen: dict[str, list[Tensor]], logits: Tensor) -> None:
        """Take in one image of the quantized model; `seen` is emptied for the next."""
        exact = self._reference.features[index]
        for name, values in _joined(seen).items():
            self._compare(name, exact[name], values)
        self._compare("", self._reference.logits[index].reshape(-1), logits.float().reshape(-1))

    def _compare(self, name: str, exact: Tensor, found: Tensor) -> None:
        exact, found = exact.double(), found.double()
        self._error[name] += (found - exact).square().sum().item()
        self._power[name] += (exact - exact.mean()).square().sum().item()

    def features(self) -> dict[str, float]:
        """e_p by feature point; points that the images did not reach are left out."""
        return {
            name: _ratio(self._error[name], self._power[name])
            for name in self._reference.points
            if self._power[name] > 0
        }

    def logits(self) -> float:
        """Return the same of the mask logits."""
        return _ratio(self._error[""], self._power[""])


def _ratio(error: float, power: float) -> float:
    return error / power if power > 0 else (0.0 if error == 0 else float("inf"))


def _joined(seen: dict[str, list[Tensor]]) -> dict[str, Tensor]:
    """Return the samples of one image, all calls of a point in one vector; empties `seen`."""
    joined = {name: torch.cat(parts) for name, parts in seen.items()}
    seen.clear()
    return joined
