"""The models that commands know by name, and what each declares about itself.

A model is one file: a builder function under `@register_model`. The declaration travels with the
network (`model.info`), so evaluation never has to guess a size, a normalisation or a post-process.

Layer roles are declared where the layer is made: a module class may carry
`quantization = Declaration(roles={"qkv": "attention", "fc1": "mlp"})`; see codtdq.declarations.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from codtdq.environment import install_hint
from codtdq.errors import ConfigError, UnsupportedError
from codtdq.models.skeleton import without_parameters

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
POSTPROCESSES = ("sigmoid", "sigmoid-minmax", "binary")


def first_output(outputs: Any) -> Tensor:
    """The mask logits of a network that returns a tensor, or a tuple that begins with it."""
    return outputs if isinstance(outputs, Tensor) else outputs[0]


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """What a model declares: how to feed it, how to read its mask, how the paper quantizes it."""

    name: str
    description: str
    input_size: int  # square side in pixels that the network is fed with
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    # sigmoid-minmax: resize logits, sigmoid, per-image min-max (CFRN)
    # sigmoid: soft map; binary: sigmoid >= 0.5 before the resize (ESCNet as released)
    postprocess: str = "sigmoid"
    size_multiple: int = 32  # sides of the input must be multiples of this
    # picks the mask logits [B, 1, h, w] out of whatever forward returns
    mask_logits: Callable[[Any], Tensor] = first_output
    # activation mode by role in the paper's setting, e.g. {"conv": "per_tensor"}
    act_modes: dict[str, str] = field(default_factory=dict)
    # whether maps may lie in channels-last order anywhere inside: no module calls view on them
    channels_last: bool = False
    # the training loss of the network, by name in codtdq.lab.training.losses
    loss: str = "bce-iou"
    # the checkpoint that ships with the package (file under codtdq/weights), if any
    weights: str | None = None
    # Python package whose module the builder makes; the extra of the same name brings it
    requires: str | None = None
    source: str = ""  # paper or public code that defines the architecture

    def __post_init__(self) -> None:
        if self.postprocess not in POSTPROCESSES:
            raise ConfigError(
                f"model {self.name!r}: postprocess is {self.postprocess!r}; "
                f"accepted: {', '.join(POSTPROCESSES)}"
            )

    def check_size(self, height: int, width: int) -> None:
        """Refuse an input size that the network does not take."""
        if min(height, width) < 1 or height % self.size_multiple or width % self.size_multiple:
            raise ConfigError(
                f"size {height} x {width}; {self.name} takes multiples of {self.size_multiple}"
            )


def feed_at(model: nn.Module, size: int | None) -> None:
    """Have a registered model fed at another input size; None: at its own."""
    if size is not None:
        info = getattr(model, "info", None)
        assert isinstance(info, ModelInfo)
        info.check_size(size, size)
        model.__dict__["info"] = replace(info, input_size=size)


_MODELS: dict[str, tuple[ModelInfo, Callable[[], nn.Module]]] = {}


def register_model(
    name: str, **declaration: Any
) -> Callable[[Callable[[], nn.Module]], Callable[[], nn.Module]]:
    """Register a builder under `name`; keywords are the fields of `ModelInfo`.

    >>> @register_model("my-net", description="ours", input_size=352)
    ... def my_net() -> nn.Module:
    ...     return MyNet()
    """

    def add(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        if name in _MODELS:
            raise ConfigError(f"model {name!r} is registered already; choose another name")
        _MODELS[name] = (ModelInfo(name=name, **declaration), build)
        return build

    return add


def list_models() -> list[str]:
    """Names of all registered models, in the order of registration."""
    return list(_MODELS)


def model_info(name: str) -> ModelInfo:
    """The declaration of a registered model."""
    return _find(name)[0]


def check_installed(name: str) -> None:
    """Raise `UnsupportedError` if the package that builds a registered model is missing."""
    needed = model_info(name).requires
    if needed is not None and importlib.util.find_spec(needed) is None:
        raise UnsupportedError(
            f"{name} is built by {needed}, which is not installed; run {install_hint(needed)}"
        )


def build_model(name: str, *, empty: bool = False) -> nn.Module:
    """A registered network with fresh weights, in eval mode, carrying its declaration.

    empty: its parameters have no values and take no memory, until a checkpoint gives them some.
    """
    info, build = _find(name)
    check_installed(name)
    with without_parameters() if empty else contextlib.nullcontext():
        model = build().eval()
    model.info = info  # type: ignore[assignment]
    return model


def create_model(
    name: str, *, checkpoint: str | Path | None = None, pretrained: bool = True
) -> nn.Module:
    """Build a registered model in eval mode and load its weights.

    checkpoint: a released `.pth`/`.pt` (read with `weights_only=True`) or `.safetensors` file.
        Without it, the weights that ship with the package are used; a model that has none there
        is a `ConfigError`.
    pretrained: False leaves the random weights of a fresh network where no checkpoint is given.
    """
    from codtdq.models.weights import check_there, load_checkpoint, shipped_weights

    info = model_info(name)
    if checkpoint is None and pretrained:
        if info.weights is None:
            raise ConfigError(
                f"no weights of {name} come with the package; pass checkpoint=FILE, "
                "or pretrained=False for random weights"
            )
        checkpoint = shipped_weights(info.weights)
        if not checkpoint.is_file():  # a wheel has what the demo needs
            raise ConfigError(
                f"the weights of {name} are not in this installation: they lie in the project's "
                f"repository, at src/codtdq/weights/{info.weights}; pass that file as the "
                "checkpoint, or install from a checkout with pip install -e ."
            )
    if checkpoint is None:
        return build_model(name)
    check_there(checkpoint)
    model = build_model(name, empty=True)
    load_checkpoint(model, checkpoint, architecture=name)
    return model


def _find(name: str) -> tuple[ModelInfo, Callable[[], nn.Module]]:
    if name not in _MODELS:
        close = difflib.get_close_matches(name, _MODELS, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ConfigError(f"unknown model {name!r}{hint}; known: {', '.join(_MODELS)}")
    return _MODELS[name]
