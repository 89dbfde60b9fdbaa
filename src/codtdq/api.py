"""The verbs of the package: composition only, no numerics."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from codtdq.checkpoint import load_into, read_header, save_model
from codtdq.engine import use_backend
from codtdq.errors import CheckpointError, ConfigError
from codtdq.methods.apply import METHOD_RECORD
from codtdq.methods.store import is_method_directory, load_method_model, save_method_model
from codtdq.models import list_models, model_info
from codtdq.models.registry import build_model
from codtdq.numerics import ActivationResult, ActivationSpec
from codtdq.numerics import quantize as _quantize_tensor
from codtdq.operators import convert, quant_operators
from codtdq.planning import PRESETS, QuantConfig, QuantPlan, make_plan
from codtdq.planning import preset as _preset
from codtdq.planning.config import KINDS
from codtdq.planning.planner import activation_fields


def preset(name: str, *, model: str | nn.Module | None = None, **changes: Any) -> QuantConfig:
    """The config of a preset.

    model: a registered name, or a model; the activation modes that it declares as the paper's
        setting for it are taken over (CFRN's convolutions share a range, ESCNet's do not).
    changes: fields of QuantConfig to set on top.
    """
    info = model_info(model) if isinstance(model, str) else getattr(model, "info", None)
    return _preset(name, declared_modes=getattr(info, "act_modes", None), **changes)


def plan(model: nn.Module, config: QuantConfig | str) -> QuantPlan:
    """What `quantize` would do: one line per operator, and the totals. Nothing is changed."""
    return make_plan(_module(model), _config(config, model))


def quantize(
    model: nn.Module,
    config: QuantConfig | str = "cod-tdq",
    calibration: Iterable[Any] | None = None,
    *,
    inplace: bool = False,
) -> nn.Module:
    """Quantize any model with Linear or Conv layers; returns a new model in eval mode.

    config: a QuantConfig, or the name of a preset.
    calibration: batches (tensors, tuples or dicts), for configs that need them.
    inplace: change `model` itself, which saves a copy.
    """
    config = _config(config, _module(model))
    return convert(model, config, calibration=calibration, inplace=inplace)


def save(model: nn.Module, directory: str | Path) -> Path:
    """Write a quantized model to a directory, atomically; returns the directory."""
    if hasattr(model, METHOD_RECORD):
        return save_method_model(model, directory)
    return save_model(model, directory)


def load(
    directory: str | Path,
    *,
    model: nn.Module | None = None,
    backend: str = "auto",
    cache_weights: bool | None = None,
) -> nn.Module:
    """Restore a quantized model, without calibration data.

    model: a float model of the same architecture, for one that is not registered; it is turned
        into the quantized one in place.
    backend: "auto" (the native engine where it can run), "reference" (simulated), "cpu" (native, or
        an error) or "triton" (on a GPU, where the model then is, or an error; extra `gpu`).
    cache_weights: keep dequantized weights in memory for the operators that are simulated; by
        default only the reference backend does.
    """
    if is_method_directory(directory):
        restored = load_method_model(directory, model)
        use_backend(restored, backend)
        return restored
    if model is None:
        architecture = read_header(directory)["architecture"]
        if architecture not in list_models():
            raise CheckpointError(
                f"{directory} holds a {architecture!r}, which is not a registered model; "
                "pass a float model of that class: codtdq.load(directory, model=skeleton)"
            )
        model = build_model(architecture, empty=True)
    restored = load_into(model, directory, cache_weights=bool(cache_weights))
    record = use_backend(restored, backend)
    for name, operator in quant_operators(restored).items():
        if cache_weights or (cache_weights is None and name not in record.native):
            operator.refresh()
    return restored


def quantize_activation(
    x: Tensor,
    config: QuantConfig | ActivationSpec | str = "cod-tdq",
    *,
    kind: str | None = None,
    layout: str | None = None,
) -> ActivationResult:
    """Quantize one activation and return it with the statistics of every group.

    x: [..., C], or [B, C, H, W], whose pixels become tokens.
    config: a QuantConfig (or preset name), of which the mode for `kind` is used, or a bare spec.
    kind: linear, conv, depthwise or first; by default conv for 4-D tensors, else linear.
    layout: "last" or "first": where the channels are; by default first for 4-D tensors. A conv1d
        input [B, C, L] needs layout="first".
    """
    if not isinstance(x, Tensor) or x.ndim == 0:
        raise ConfigError("quantize_activation takes a tensor [..., C] or [B, C, H, W]")
    if layout is None:
        layout = "first" if x.ndim == 4 else "last"
    if layout == "first" and x.ndim < 3:
        raise ConfigError(f"layout='first' needs [B, C, ...]; found a tensor of {x.ndim} axes")
    if isinstance(config, ActivationSpec):
        return _quantize_tensor(x, config, layout=layout)
    config = _config(config, None)
    kind = kind or ("conv" if layout == "first" else "linear")
    if kind not in KINDS:
        raise ConfigError(f"kind is {kind!r}; accepted: {', '.join(KINDS)}")
    if config.act_bits is None:
        raise ConfigError(f"config {config.name!r} keeps activations float (act_bits is null)")
    spec = ActivationSpec(**activation_fields(config, kind, kind))
    return _quantize_tensor(x, spec, layout=layout)


def _module(model: object) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model is a {type(model).__name__}; accepted: a torch.nn.Module")
    return model


def _config(config: QuantConfig | str, model: nn.Module | None) -> QuantConfig:
    if isinstance(config, str):
        return preset(config, model=model)
    if isinstance(config, QuantConfig):
        return config
    raise ConfigError(
        f"config is a {type(config).__name__}; accepted: a QuantConfig or a preset name "
        f"({', '.join(PRESETS)})"
    )


__all__ = [
    "load",
    "plan",
    "preset",
    "quantize",
    "quantize_activation",
    "save",
]
