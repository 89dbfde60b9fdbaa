"""Save a quantized model and get it back bit for bit, whatever method made it.

The file of tensors holds the buffers of every scheme under their state-dict names, other buffers
in compact lossless form, and all 8-bit blocks of float parameters in three joined tensors.
`codtdq.json` holds everything else: config, plan, the schemes of every operator, and the record of
the run. A load checks both completely (`validation`) before it builds anything.
"""

from __future__ import annotations

import copy
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from codtdq._version import __version__
from codtdq.checkpoint import files, validation
from codtdq.checkpoint.codecs import SHARED
from codtdq.checkpoint.header import FORMAT_VERSION
from codtdq.checkpoint.tensors import StoredTensors, join
from codtdq.checkpoint.validation import ConfigReader
from codtdq.declarations import declaration_of
from codtdq.errors import CheckpointError, CodtdqError
from codtdq.numerics.compact import encode
from codtdq.numerics.floats import BlockFloats
from codtdq.operators.conversion import restore_structure
from codtdq.operators.quantized import quant_operators
from codtdq.operators.record import RECORD, QuantRecord, architecture_of, is_quantized, record_of


def save_model(model: nn.Module, directory: str | Path) -> Path:
    """Write a quantized model to a directory; returns the directory."""
    record = record_of(model)
    directory = Path(directory)
    state = model.state_dict(keep_vars=True)
    _check_storable(state)
    floats = {n: b for n, b in record.floats.items() if _unchanged(state.get(n), b)}
    tensors: dict[str, Tensor] = {}
    seen: dict[int, str] = {}
    aliases: dict[str, str] = {}
    for name, tensor in state.items():
        first = seen.setdefault(_identity(tensor), name)
        if first != name:
            aliases[name] = first  # tied tensors are stored once
        elif name not in floats and tensor.numel():
            tensors.update(encode(name, tensor.cpu()))
    tensors.update(join(floats))
    meta = {
        "format": FORMAT_VERSION,
        "codtdq": __version__,
        "architecture": record.architecture,
        "versions": {"torch": str(torch.__version__), "python": platform.python_version()},
        "config": record.plan.config.to_dict(),
        "plan": record.plan.to_dict(),
        "operators": {
            name: {
                "input": operator.input_scheme.record(),
                "weight": operator.weight_scheme.record(),
                "bias": operator.bias is not None,
            }
            for name, operator in quant_operators(model).items()
        },
        "run": record.run(),
        "floats": {name: list(block.shape) for name, block in floats.items()},
        "aliases": aliases,
    }
    files.write(directory, {k: v.clone() for k, v in tensors.items()}, meta)
    return directory


def read_header(directory: str | Path) -> dict[str, Any]:
    """The description of a checkpoint, checked for its format version, seal and types."""
    return files.read_meta(Path(directory))


def restore(
    skeleton: nn.Module,
    directory: str | Path,
    read_config: ConfigReader,
    *,
    header: dict[str, Any] | None = None,
    inplace: bool = False,
) -> nn.Module:
    """The saved model, built from a float one of the right architecture.

    read_config: the config of a header, whatever method it names; makes its schemes known.
    header: what `read_header` gave, if it was asked before.
    inplace: the float model becomes the saved one; otherwise it stays as it is. After an error
        such a model is of no use.
    """
    directory = Path(directory)
    if is_quantized(skeleton):
        raise CheckpointError("the given model is quantized already; pass a float one")
    meta, entries = files.read(directory, validation.byte_limit(skeleton), header)
    found, wanted = architecture_of(skeleton), meta["architecture"]
    if not _same_architecture(found, wanted):
        raise CheckpointError(f"{directory} holds a {wanted!r}; the given model is a {found!r}")
    try:
        return build(skeleton, meta, entries, read_config, inplace=inplace)
    except CodtdqError as error:
        raise CheckpointError(f"{directory}: {error}") from error


def build(
    skeleton: nn.Module,
    meta: Mapping[str, Any],
    entries: Mapping[str, Tensor],
    read_config: ConfigReader,
    *,
    inplace: bool = False,
) -> nn.Module:
    """The model of a header and its tensors; both are checked against the skeleton first."""
    plan, tensors, operators = validation.validate(meta, entries, read_config, skeleton)
    model = _without_data(skeleton) if inplace else _copy_without_data(skeleton)
    restore_structure(model, plan, operators)
    _add_paddings(model, tensors.names)
    state = model.state_dict()
    validation.check_names(state, tensors.names)
    loaded = {name: _value(name, target, tensors) for name, target in state.items()}
    model.load_state_dict(loaded, assign=True)
    setattr(
        model, RECORD, QuantRecord(plan, meta["architecture"], floats=tensors.floats, **meta["run"])
    )
    return model.eval().requires_grad_(False)


def _value(name: str, target: Tensor, tensors: StoredTensors) -> Tensor:
    """What a name of the state gets: the stored tensor, or what a scheme was filled with."""
    if not target.is_meta:
        return target
    value = tensors.get(name, target.dtype)
    if value is None:  # a tensor without elements is not stored
        return torch.empty(target.shape, dtype=target.dtype)
    validation.check_tensor(name, value, target)
    return value.to(target.dtype)


def _copy_without_data(model: nn.Module) -> nn.Module:
    """A copy of a model whose stored tensors have shapes only."""
    return copy.deepcopy(model, _blanks(model))


def _without_data(model: nn.Module) -> nn.Module:
    """The model itself, whose stored tensors have shapes only from now on."""
    blanks = _blanks(model)
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                tensors[name] = blanks.get(id(tensor), tensor)
    return model


def _blanks(model: nn.Module) -> dict[int, Any]:
    """What takes the place of each stored tensor, by its identity."""
    found: dict[int, Any] = {}
    for tensor in [*model.parameters(), *_persistent(model)]:
        blank = tensor.detach().to("meta")
        is_parameter = isinstance(tensor, nn.Parameter)
        found[id(tensor)] = nn.Parameter(blank, requires_grad=False) if is_parameter else blank
    return found


def _persistent(model: nn.Module) -> list[Tensor]:
    """Buffers that a state dict holds; others keep their values."""
    return [
        buffer
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and name not in module._non_persistent_buffers_set
    ]


def _add_paddings(model: nn.Module, stored: set[str]) -> None:
    """Make room for a buffer that a method may add to a module which declares it: the padding
    behind a norm that was shifted, as long as the norm is wide.
    """
    for path, module in model.named_modules():
        for norm, leaf in declaration_of(module).fold_padding.items():
            name = f"{path}.{leaf}" if path else leaf
            if name in stored and module._buffers.get(leaf) is None:
                like = module.get_submodule(norm)._parameters.get("weight")
                if like is None:
                    raise CheckpointError(f"{name} pads behind {norm}, which has no weight")
                module.register_buffer(leaf, torch.empty(like.shape, device="meta"))


def _same_architecture(found: str, wanted: str) -> bool:
    """Equal, or one class that a script knows as `__main__.Net` and a module by its own name."""
    if found == wanted:
        return True
    short = {found.rpartition(".")[2], wanted.rpartition(".")[2]}
    return len(short) == 1 and "__main__" in (found.partition(".")[0], wanted.partition(".")[0])


def _check_storable(state: Mapping[str, Any]) -> None:
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise CheckpointError(f"{name} is a {type(value).__name__}; only tensors can be saved")
        if value.layout is not torch.strided or value.is_complex() or value.is_meta:
            raise CheckpointError(f"{name} is {value.layout} {value.dtype}: it cannot be saved")
        if value.is_floating_point() and bool(torch.isnan(value).any()):
            raise CheckpointError(f"{name} holds NaN: the model is broken, and is not saved")


def _unchanged(tensor: Tensor | None, block: BlockFloats) -> bool:
    """Whether a parameter still holds what its stored form gives back."""
    if tensor is None:
        return False
    return torch.equal(block.decode().to(tensor.dtype).cpu(), tensor.cpu())


def _identity(tensor: Tensor) -> int:
    """One number per tensor in memory: the same place, shape, strides and dtype.

    Equal tables, which a load lets share their memory, are as many as the plan counted.
    """
    table = tensor.numel() >= SHARED and not isinstance(tensor, nn.Parameter)
    if not tensor.numel() or (table and "" not in encode("", tensor.cpu())):
        return id(tensor)
    return hash((tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype))
