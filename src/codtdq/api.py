"""The verbs of the package: composition only, no numerics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.checkpoint import read_header, restore, save_model
from codtdq.checkpoint.verify import Verified
from codtdq.checkpoint.verify import verify as _verify
from codtdq.engine import backend_of, use_backend
from codtdq.engine.program.program import Program
from codtdq.errors import CheckpointError, ConfigError, UnsupportedError
from codtdq.evaluation.calibration import calibration_batches
from codtdq.exporting.program import ExportedProgram, export_program
from codtdq.exporting.verify import VerifiedProgram, verify_program
from codtdq.memory import garbage_stays, release_memory
from codtdq.methods import config_for, config_from, config_of, list_methods, outline, quantize_model
from codtdq.models import list_models, model_info
from codtdq.models.registry import build_model
from codtdq.models.weights import packed_checkpoint
from codtdq.numerics import ActivationResult, ActivationSpec
from codtdq.numerics import quantize as _quantize_tensor
from codtdq.operators import quant_operators
from codtdq.operators.foreign import with_linears
from codtdq.planning import QuantConfig, QuantPlan
from codtdq.planning.cod_tdq_config import KINDS
from codtdq.planning.config import read_json

DEFAULT = "cod-tdq-plus"  # here and on the command line

ConfigLike = QuantConfig | str | Path | Mapping[str, Any]


def config(of: ConfigLike, *, model: str | nn.Module | None = None, **changes: Any) -> QuantConfig:
    """The config of a method or preset by name, of a JSON file, of a mapping, or a config itself.

    model: a registered name, or a model; the activation modes that it declares as the paper's
        setting for it are taken over (CFRN's convolutions share a range, ESCNet's do not).
    changes: fields to set on top.
    """
    if isinstance(of, QuantConfig):
        found = of
    elif isinstance(of, Mapping):
        found = config_from(of)
    elif isinstance(of, Path) or (isinstance(of, str) and of.endswith(".json")):
        found = config_from(read_json(of))
    elif isinstance(of, str):
        return config_for(of, model_info(model) if isinstance(model, str) else model, **changes)
    else:
        raise ConfigError(
            f"config is a {type(of).__name__}; accepted: a config, a mapping of its fields, a JSON "
            f"file, or a name ({', '.join(list_methods())})"
        )
    return found.replace(**changes) if changes else found


preset = config  # the older name of the same thing


def plan(model: nn.Module, config: ConfigLike = DEFAULT, **changes: Any) -> QuantPlan:
    """What `quantize` would do: one line per operator, and the totals. Nothing is changed."""
    settings = _settings(config, _module(model), changes)
    return outline(model, settings, blank_image(model))[0]


def quantize(
    model: nn.Module,
    config: ConfigLike = DEFAULT,
    *,
    calibration: Iterable[Any] | str | Path | None = None,
    backend: str = "auto",
    seed: int = 0,
    budget: str = "fast",
    state_dir: str | Path | None = None,
    inplace: bool = False,
) -> nn.Module:
    """Quantize any model with Linear or Conv layers; returns a new model in eval mode.

    What it returns is what `load(save(...))` returns, to the bit.

    config: any method or preset by name, a config object, a mapping of its fields or a JSON file.
    calibration: for methods that need it: batches (tensors, tuples or dicts) as the model takes
        them; or, where the model declares its input, images: a folder, a file, a glob pattern, the
        name of a data set, or a list of files, PIL images or arrays [H, W, 3].
    backend: as of `load`.
    budget: "fast", "tenth" or "paper": optimisation steps of methods that reconstruct.
    state_dir: where a long calibration keeps what is finished, to go on after a stop.
    inplace: change `model` itself, which saves a copy.
    """
    settings = _settings(config, _module(model), {})
    batches = calibration_batches(model, calibration)
    done = quantize_model(
        model, settings, batches, seed=seed, budget=budget, state_dir=state_dir, inplace=inplace
    )
    use_backend(done, backend)
    return done


def save(model: nn.Module, directory: str | Path) -> Path:
    """Write a quantized model to a directory, atomically; returns the directory."""
    return save_model(model, directory)


@garbage_stays()
def load(
    directory: str | Path,
    *,
    model: nn.Module | None = None,
    backend: str = "auto",
    cache_weights: bool = True,
) -> nn.Module:
    """Restore a quantized model, without calibration data.

    directory: what `save` wrote, or the name of a quantized model of the package, "vit-cod-w4a4".
    model: a float model of the same architecture, for one that is not registered; it stays as it
        is.
    backend: "auto" (the native engine where it can run), "reference" (simulated), "cpu" (native, or
        an error) or "triton" (on a GPU, where the model then is, or an error; extra `gpu`).
    cache_weights: keep dequantized weights in memory for the operators that are simulated; False
        trades their speed for memory.
    """
    directory = packed_checkpoint(directory)
    header, own = None, model is None
    if model is None:
        header = read_header(directory)
        architecture = header["architecture"]
        if architecture not in list_models():
            raise CheckpointError(
                f"{directory} holds a {architecture!r}, which is not a registered model; "
                "pass a float model of that class: codtdq.load(directory, model=skeleton)"
            )
        model = build_model(architecture, empty=True)
    restored = restore(with_linears(model), directory, config_of, header=header, inplace=own)
    use_backend(restored, backend)
    if not cache_weights:
        for operator in quant_operators(restored).values():
            operator.refresh_cache(keep=False)
    release_memory()  # of the float network, and of what was checked
    return restored


def compile(model: nn.Module, *examples: Tensor) -> Program:
    """The forward pass of a model for inputs of these shapes as one call of the native engine.

    Of a float model, or of a quantized one on the engine, which `use_backend` captures by itself:
    this is for who wants the program in hand, to profile it or to know why there is none.
    """
    if model.training:
        raise ConfigError("the model is in training mode; call model.eval() first")
    record = backend_of(model)
    if quant_operators(model) and (record is None or record.name != "cpu" or record.fallbacks):
        raise UnsupportedError(
            "a program takes operators that the native engine executes; found simulated ones: "
            'use_backend(model, "cpu")'
        )
    forward = type(model).forward
    return Program(lambda *inputs: forward(model, *inputs), examples)


def export(
    model: nn.Module,
    path: str | Path,
    *,
    sizes: Sequence[tuple[int, int]] = (),
    batch: int = 1,
    input_size: int | None = None,
) -> ExportedProgram:
    """Write the mask of a model as a program file, which `codtdq.runtime` runs without torch.

    sizes: (height, width) of inputs; by default the model's own.
    batch: images that one run may take.
    input_size: of a model that declares none.
    """
    return export_program(model, path, sizes=sizes, batch=batch, input_size=input_size)


def verify(
    path: str | Path,
    *,
    signers: str | Path | None = None,
    identity: str | None = None,
    signature: str | Path | None = None,
) -> Verified | VerifiedProgram:
    """Check a saved model completely without building or running it; raises `CheckpointError`.

    path: a directory that `save` wrote, or a program file of `export`.
    signers, identity: an allowed-signers file of `ssh-keygen`, and whose signature of the
        checkpoint's `codtdq.json`, or of the program file, must hold.
    signature: where it is, if not beside that file.
    """
    if Path(path).is_file():
        return verify_program(path, signers=signers, identity=identity, signature=signature)
    directory = packed_checkpoint(path)
    return _verify(
        directory, config_of, _skeleton, signers=signers, identity=identity, signature=signature
    )


def _skeleton(architecture: str) -> nn.Module | None:
    return build_model(architecture, empty=True) if architecture in list_models() else None


def quantize_activation(
    x: Tensor,
    config: QuantConfig | ActivationSpec | str = "cod-tdq",
    *,
    kind: str | None = None,
    layout: str | None = None,
) -> ActivationResult:
    """Quantize one activation and return it with the statistics of every group.

    x: [..., C], or [B, C, H, W], whose pixels become tokens.
    config: a CodTdqConfig (or its name), of which the mode for `kind` is used, or a bare spec.
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
    settings = _settings(config, None, {})
    kind = kind or ("conv" if layout == "first" else "linear")
    if kind not in KINDS:
        raise ConfigError(f"kind is {kind!r}; accepted: {', '.join(KINDS)}")
    if settings.act_bits is None:
        raise ConfigError(f"config {settings.name!r} keeps activations float (act_bits is null)")
    spec = ActivationSpec(**settings.activation_fields(kind, kind))
    return _quantize_tensor(x, spec, layout=layout)


def _module(model: object) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model is a {type(model).__name__}; accepted: a torch.nn.Module")
    return model


def _settings(of: ConfigLike, model: nn.Module | None, changes: Mapping[str, Any]) -> QuantConfig:
    return config(of, model=model, **changes)


def blank_image(model: nn.Module) -> Tensor | None:
    """An image of the size that a registered model declares."""
    size = getattr(getattr(model, "info", None), "input_size", None)
    return None if size is None else torch.zeros(1, 3, size, size)


__all__ = ["config", "load", "plan", "preset", "quantize", "quantize_activation", "save", "verify"]
