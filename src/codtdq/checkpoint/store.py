"""Save a quantized model and get it back bit for bit, whatever method made it.

`model.safetensors` holds the buffers of every scheme under their state-dict names, other buffers
in compact lossless form, and all 8-bit blocks of float parameters in three joined tensors (many
tiny entries would cost more header than data). `codtdq.json` holds everything else: config, plan,
the schemes of every operator, and the record of the run.
"""

from __future__ import annotations

import copy
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from codtdq._version import __version__
from codtdq.checkpoint import codecs, files
from codtdq.declarations import declaration_of
from codtdq.errors import CheckpointError, CodtdqError
from codtdq.numerics.floats import BLOCK, BlockFloats
from codtdq.operators.conversion import restore_structure
from codtdq.operators.quantized import quant_operators
from codtdq.operators.record import RECORD, QuantRecord, architecture_of, is_quantized, record_of
from codtdq.planning.config import QuantConfig
from codtdq.planning.plan import QuantPlan

FORMAT_VERSION = 2
_FLOATS = ("floats#codes", "floats#low", "floats#step")
_REQUIRED = {"architecture", "config", "plan", "operators", "run", "floats", "sha256"}
ConfigReader = Callable[[Mapping[str, Any]], QuantConfig]


def save_model(model: nn.Module, directory: str | Path) -> Path:
    """Write a quantized model to a directory; returns the directory."""
    record = record_of(model)
    directory = Path(directory)
    state = model.state_dict()
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
            tensors.update(codecs.encode(name, tensor.cpu()))
    tensors.update(_join(floats))
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
    """The description of a checkpoint, checked for its format version."""
    directory = Path(directory)
    meta = files.read_meta(directory)
    _check_header(meta, directory)
    return meta


def _check_header(meta: Mapping[str, Any], directory: Path) -> None:
    version = meta.get("format")
    if type(version) is not int or version < 1:
        raise CheckpointError(f"{directory / files.META} has no format version")
    if version != FORMAT_VERSION:
        newer = version > FORMAT_VERSION
        raise CheckpointError(
            f"{directory} has format version {version}; this codtdq {__version__} reads "
            f"{FORMAT_VERSION}: {'upgrade codtdq' if newer else 'quantize the model again'}"
        )
    missing = _REQUIRED - set(meta)
    if missing:
        raise CheckpointError(f"{directory / files.META} lacks {', '.join(sorted(missing))}")


def restore(skeleton: nn.Module, directory: str | Path, read_config: ConfigReader) -> nn.Module:
    """The saved model, built from a float one of the right architecture, which stays as it is.

    read_config: turns the stored fields into a config, whatever method they belong to.
    """
    directory = Path(directory)
    if is_quantized(skeleton):
        raise CheckpointError("the given model is quantized already; pass a float one")
    meta, entries = files.read(directory)
    _check_header(meta, directory)
    found, wanted = architecture_of(skeleton), meta["architecture"]
    if not _same_architecture(found, wanted):
        raise CheckpointError(f"{directory} holds a {wanted!r}; the given model is a {found!r}")
    plan = _read_plan(meta, directory, read_config)
    try:
        floats = _split(meta["floats"], entries, directory)
        aliases = {
            name: entries[source] for name, source in meta["aliases"].items() if source in entries
        }
        model = _structure(skeleton, plan, meta["operators"], {**entries, **aliases})
        loaded = _resolve(dict(model.state_dict()), entries, floats, meta, directory)
        record = QuantRecord(plan, meta["architecture"], floats=floats, **meta["run"])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        text = " ".join(str(error).split())
        raise CheckpointError(f"{directory} is damaged: {type(error).__name__} {text}") from error
    model.load_state_dict(loaded, assign=True)
    _check_complete(model, directory)
    setattr(model, RECORD, record)
    return model.eval().requires_grad_(False)


def _structure(
    skeleton: nn.Module,
    plan: QuantPlan,
    operators: Mapping[str, Any],
    entries: Mapping[str, Tensor],
) -> nn.Module:
    """A copy of the float model without data, with the quantized operators of the file."""
    memo: dict[int, Any] = {}
    for tensor in [*skeleton.parameters(), *_persistent(skeleton)]:
        blank = tensor.detach().to("meta")
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(blank, requires_grad=False) if is_parameter else blank
    model = copy.deepcopy(skeleton, memo)
    restore_structure(model, plan, operators)
    _add_buffers(model, entries)
    return model


def _persistent(model: nn.Module) -> list[Tensor]:
    """Buffers that a state dict holds; others keep their values."""
    return [
        buffer
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and name not in module._non_persistent_buffers_set
    ]


def _add_buffers(model: nn.Module, entries: Mapping[str, Tensor]) -> None:
    """Make room for what only the file knows: the length of a scheme's vectors, and a buffer that a
    method may add to a module which declares it (the padding behind a norm that was shifted).
    """
    for name in codecs.entry_names(set(entries)):
        path, _, leaf = name.rpartition(".")
        owner = model.get_submodule(path)
        known = owner._buffers.get(leaf)
        shape = codecs.stored_shape(name, entries)
        inside = ".input_scheme" in path or ".weight_scheme" in path
        if known is not None and inside and known.numel() <= 1 and known.shape != shape:
            owner.register_buffer(leaf, known.new_empty(shape, device="meta"))
        elif known is None and leaf in declaration_of(owner).fold_padding.values():
            owner.register_buffer(leaf, torch.empty(shape, device="meta"))


def _check_complete(model: nn.Module, directory: Path) -> None:
    empty = [name for name, tensor in model.state_dict().items() if tensor.is_meta]
    if empty:
        raise CheckpointError(f"{directory}: {', '.join(empty[:3])} got no values")


def _same_architecture(found: str, wanted: str) -> bool:
    """Equal, or one class that a script knows as `__main__.Net` and a module by its own name."""
    if found == wanted:
        return True
    short = {found.rpartition(".")[2], wanted.rpartition(".")[2]}
    return len(short) == 1 and "__main__" in (found.partition(".")[0], wanted.partition(".")[0])


def _read_plan(meta: Mapping[str, Any], directory: Path, read_config: ConfigReader) -> QuantPlan:
    try:
        return QuantPlan.from_dict(meta["plan"], read_config(meta["config"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{directory / files.META} is damaged: {error!r}") from error
    except CodtdqError as error:
        raise CheckpointError(f"{directory / files.META}: {error}") from error


def _resolve(
    state: Mapping[str, Tensor],
    entries: dict[str, Tensor],
    floats: dict[str, BlockFloats],
    meta: Mapping[str, Any],
    directory: Path,
) -> dict[str, Tensor]:
    """The stored tensor for every name of the state, checked for shape and kind."""
    aliases: dict[str, str] = dict(meta.get("aliases") or {})
    stored = codecs.entry_names(set(entries)) | set(floats) | set(aliases)
    needed = {name for name, tensor in state.items() if tensor.numel()}
    missing, extra = sorted(needed - stored), sorted(stored - set(state))
    if missing or extra:
        raise CheckpointError(
            f"{directory} does not fit the model: {len(missing)} keys missing "
            f"({', '.join(missing[:3]) or 'none'}), {len(extra)} unexpected "
            f"({', '.join(extra[:3]) or 'none'})"
        )
    loaded: dict[str, Tensor] = {}
    for name, target in state.items():
        source = aliases.get(name, name)
        if not target.numel() and source not in stored:
            loaded[name] = torch.empty(target.shape, dtype=target.dtype)
            continue
        if source in floats:
            value = floats[source].decode()
        else:
            value = codecs.decode(source, entries, target.dtype)
        same_kind = value.is_floating_point() == target.is_floating_point()
        if value.shape != target.shape or not same_kind:
            raise CheckpointError(
                f"{directory}: {name} has shape {tuple(value.shape)} and dtype {value.dtype}, "
                f"the model expects {tuple(target.shape)} and {target.dtype}"
            )
        loaded[name] = value.to(target.dtype)
    return loaded


def _check_storable(state: Mapping[str, Any]) -> None:
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise CheckpointError(f"{name} is a {type(value).__name__}; only tensors can be saved")
        if value.layout is not torch.strided or value.is_complex() or value.is_meta:
            raise CheckpointError(f"{name} is {value.layout} {value.dtype}: it cannot be saved")


def _join(floats: Mapping[str, BlockFloats]) -> dict[str, Tensor]:
    if not floats:
        return {}
    blocks = list(floats.values())
    parts = (
        torch.cat([block.codes for block in blocks]),
        torch.cat([block.low for block in blocks]),
        torch.cat([block.step for block in blocks]),
    )
    return dict(zip(_FLOATS, parts))


def _split(
    shapes: Mapping[str, list[int]], entries: dict[str, Tensor], directory: Path
) -> dict[str, BlockFloats]:
    """Cut the joined tensors apart again, and take them out of `entries`."""
    if not shapes:
        return {}
    if not set(_FLOATS) <= set(entries):
        raise CheckpointError(f"{directory}: {', '.join(_FLOATS)} are missing")
    codes, low, step = (entries.pop(name) for name in _FLOATS)
    result: dict[str, BlockFloats] = {}
    at = block_at = 0
    for name, shape in shapes.items():
        count = torch.Size(shape).numel()
        blocks = -(-count // BLOCK)
        result[name] = BlockFloats(
            codes[at : at + count].clone(),
            low[block_at : block_at + blocks].clone(),
            step[block_at : block_at + blocks].clone(),
            torch.Size(shape),
        )
        at, block_at = at + count, block_at + blocks
    if at != codes.numel() or block_at != low.numel():
        raise CheckpointError(f"{directory}: the stored float blocks do not fit their shapes")
    return result


def _unchanged(tensor: Tensor | None, block: BlockFloats) -> bool:
    """Whether a parameter still holds what its stored form gives back."""
    if tensor is None:
        return False
    return torch.equal(block.decode().to(tensor.dtype).cpu(), tensor.cpu())


def _identity(tensor: Tensor) -> int:
    """One number per tensor in memory: the same place, shape, strides and dtype."""
    if not tensor.numel():
        return id(tensor)
    return hash((tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype))
