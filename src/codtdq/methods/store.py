"""Save a model that a method made, and get it back bit for bit.

The same two files as any quantized model; `codtdq.json` names the schemes of every operator, the
tensors hold their state and everything else that the model owns.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from codtdq._version import __version__
from codtdq.checkpoint import files, load_into, save_model
from codtdq.errors import CheckpointError, ConfigError
from codtdq.methods.apply import METHOD_RECORD, MethodRecord
from codtdq.methods.registry import list_methods
from codtdq.models.registry import build_model, list_models
from codtdq.operators.conversion import RECORD, architecture_of
from codtdq.operators.simulated import SimOperator, sim_class_for, sim_operators
from codtdq.schemes.inputs import build_input_quantizer
from codtdq.schemes.weights import build_weight_store

FORMAT = "method-1"


def save_method_model(model: nn.Module, directory: str | Path) -> Path:
    """Write a model that `apply_method` made; returns the directory."""
    record = getattr(model, METHOD_RECORD, None)
    if not isinstance(record, MethodRecord):
        raise ConfigError(
            f"{type(model).__name__} was not made by a method; call apply_method first"
        )
    directory = Path(directory)
    if hasattr(model, RECORD):
        return save_model(model, directory, extra={"method": record.to_dict()})
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    seen: dict[tuple[int, torch.Size], str] = {}
    for name, tensor in model.state_dict().items():
        key = (tensor.data_ptr(), tensor.shape)
        if tensor.numel() and key in seen:
            aliases[name] = seen[key]
            continue
        seen[key] = name
        tensors[name] = tensor.detach().cpu().contiguous().clone()
    meta = {
        "format": FORMAT,
        "codtdq": __version__,
        "architecture": record.architecture,
        "method": record.to_dict(),
        "operators": {
            name: {"role": op.role, "input": op.input_quantizer.record(),
                   "weight": op.weight_store.record(), "bias": op.bias is not None}
            for name, op in sim_operators(model).items()
        },
        "aliases": aliases,
    }  # fmt: skip
    files.write(directory, tensors, meta)
    return directory


def is_method_directory(directory: str | Path) -> bool:
    """Whether a directory holds a model with a method's own operators."""
    return files.read_meta(Path(directory)).get("format") == FORMAT


def load_method_model(directory: str | Path, model: nn.Module | None = None) -> nn.Module:
    """Restore a model that `save_method_model` wrote.

    model: a float model of the same architecture, for one that is not registered; it is turned
        into the quantized one in place.
    """
    directory = Path(directory)
    meta = files.read_meta(directory)
    if meta.get("format") == FORMAT:
        return _restore(directory, model)
    skeleton = _skeleton(meta, directory, model)
    done = load_into(skeleton, directory)
    if isinstance(meta.get("method"), dict):
        setattr(done, METHOD_RECORD, MethodRecord(**meta["method"]))
    return done


def _skeleton(meta: dict[str, Any], directory: Path, model: nn.Module | None) -> nn.Module:
    wanted = meta.get("architecture")
    if model is None:
        if wanted not in list_models():
            raise CheckpointError(
                f"{directory} holds a {wanted!r}, which is not a registered model; pass a float "
                "model of that class: codtdq.load(directory, model=skeleton)"
            )
        return build_model(str(wanted))
    found = architecture_of(model)
    if found != wanted and found.rpartition(".")[2] != str(wanted).rpartition(".")[2]:
        raise CheckpointError(f"{directory} holds a {wanted!r}; the given model is a {found!r}")
    return model


def _restore(directory: Path, model: nn.Module | None) -> nn.Module:
    list_methods()  # the schemes of built-in methods are known once their files are imported
    meta, tensors = files.read(directory)
    skeleton = _skeleton(meta, directory, model)
    modules = dict(skeleton.named_modules())
    try:
        # First of all: operators behind one norm may share the buffers of their quantizers.
        for alias, source in (meta.get("aliases") or {}).items():
            tensors[alias] = tensors[source]
        for name, entry in meta["operators"].items():
            module = modules.get(name)
            if module is None or isinstance(module, SimOperator):
                raise CheckpointError(f"{directory}: the model has no float operator {name!r}")
            if entry["bias"] and module._parameters.get("bias") is None:
                module.bias = nn.Parameter(torch.zeros(entry["weight"]["shape"][0]))
            module._parameters["weight"] = nn.Parameter(torch.zeros(0), requires_grad=False)
            store = build_weight_store(entry["weight"])
            inputs = build_input_quantizer(entry["input"])
            _fill(store, f"{name}.weight_store.", tensors)
            _fill(inputs, f"{name}.input_quantizer.", tensors)
            sim_class_for(module).adopt(module, inputs=inputs, weight=store, role=entry["role"])
        _fill_extra_buffers(skeleton, tensors)
        skeleton.load_state_dict(tensors)
        record = MethodRecord(**meta["method"])
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        text = " ".join(str(error).split())
        raise CheckpointError(f"{directory} is damaged: {type(error).__name__} {text}") from error
    setattr(skeleton, METHOD_RECORD, record)
    return skeleton.eval().requires_grad_(False)


def _fill(root: nn.Module, prefix: str, tensors: dict[str, Tensor]) -> None:
    """Give the buffers under `root` the shapes and values that the file has for them."""
    for path, module in root.named_modules():
        for leaf, buffer in list(module._buffers.items()):
            name = f"{prefix}{path + '.' if path else ''}{leaf}"
            if buffer is not None and name in tensors:
                module._buffers[leaf] = tensors[name].clone()


def _fill_extra_buffers(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Buffers that a method added to modules of the model itself (a norm's padding token)."""
    known = set(model.state_dict())
    for name, tensor in tensors.items():
        if name not in known:
            path, _, leaf = name.rpartition(".")
            model.get_submodule(path).register_buffer(leaf, tensor.clone())
