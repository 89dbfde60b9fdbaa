"""Save a quantized model and get it back bit for bit.

`model.safetensors` holds packed weights and scales under their state-dict names, buffers in
compact lossless form, and all 8-bit blocks of float parameters in three joined tensors (many tiny
entries would cost more header than data). `codtdq.json` holds everything else.
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
from codtdq.checkpoint import codecs, files
from codtdq.errors import CheckpointError, CodtdqError
from codtdq.numerics.floats import BLOCK, BlockFloats
from codtdq.operators.conversion import (
    RECORD,
    QuantRecord,
    apply_plan,
    architecture_of,
    quant_operators,
    record_of,
)
from codtdq.planning import QuantConfig, QuantPlan

FORMAT_VERSION = 1
_FLOATS = ("floats#codes", "floats#low", "floats#step")


def save_model(
    model: nn.Module, directory: str | Path, *, extra: Mapping[str, Any] | None = None
) -> Path:
    """Write a quantized model to a directory; returns the directory.

    extra: further entries of the JSON file, e.g. the record of a benchmark method.
    """
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
        elif name not in floats:
            tensors.update(codecs.encode(name, tensor.cpu()))
    tensors.update(_join(floats))
    meta = {
        "format": FORMAT_VERSION,
        "codtdq": __version__,
        "architecture": record.architecture,
        "versions": {"torch": str(torch.__version__), "python": platform.python_version()},
        "config": record.plan.config.to_dict(),
        "plan": record.plan.to_dict(),
        "floats": {name: list(block.shape) for name, block in floats.items()},
        "aliases": aliases,
        **(extra or {}),
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
    if version > FORMAT_VERSION:
        raise CheckpointError(
            f"{directory} has format version {version}; this codtdq {__version__} reads up to "
            f"{FORMAT_VERSION}: upgrade codtdq"
        )
    missing = {"architecture", "config", "plan", "floats", "sha256"} - set(meta)
    if missing:
        raise CheckpointError(f"{directory / files.META} lacks {', '.join(sorted(missing))}")


def load_into(
    skeleton: nn.Module, directory: str | Path, *, cache_weights: bool = True
) -> nn.Module:
    """Turn a float model of the right architecture into the saved quantized one, in place.

    cache_weights: keep dequantized weights beside the packed ones; False trades speed for memory.
    """
    directory = Path(directory)
    if isinstance(getattr(skeleton, RECORD, None), QuantRecord):
        raise CheckpointError("the given model is quantized already; pass a float one")
    meta = read_header(directory)
    found, wanted = architecture_of(skeleton), meta["architecture"]
    if not _same_architecture(found, wanted):
        raise CheckpointError(f"{directory} holds a {wanted!r}; the given model is a {found!r}")
    meta, entries = files.read(directory)
    _check_header(meta, directory)
    plan = _read_plan(meta, directory)
    try:
        floats = _split(meta["floats"], entries, directory)
        loaded = _resolve(_structure(skeleton, plan), entries, floats, meta, directory)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        text = " ".join(str(error).split())
        raise CheckpointError(f"{directory} is damaged: {type(error).__name__} {text}") from error
    # Everything fits: only now is the given model changed.
    apply_plan(skeleton, plan, empty=True)
    on_meta = any(p.is_meta for p in skeleton.parameters())
    skeleton.load_state_dict(loaded, assign=on_meta)
    for operator in quant_operators(skeleton).values():
        operator.refresh(cache=cache_weights)
    setattr(skeleton, RECORD, QuantRecord(plan, meta["architecture"], floats))
    return skeleton.eval()


def _same_architecture(found: str, wanted: str) -> bool:
    """Equal, or one class that a script knows as `__main__.Net` and a module by its own name."""
    if found == wanted:
        return True
    short = {found.rpartition(".")[2], wanted.rpartition(".")[2]}
    return len(short) == 1 and "__main__" in (found.partition(".")[0], wanted.partition(".")[0])


def _structure(skeleton: nn.Module, plan: QuantPlan) -> dict[str, Tensor]:
    """Names, shapes and dtypes of the quantized state, worked out on a copy without data."""
    tensors = [*skeleton.parameters(), *skeleton.buffers()]
    memo: dict[int, Any] = {}
    for tensor in tensors:
        blank = tensor.detach().to("meta")
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(blank, requires_grad=False) if is_parameter else blank
    twin = copy.deepcopy(skeleton, memo)
    apply_plan(twin, plan, empty=True)
    return dict(twin.state_dict())


def _read_plan(meta: Mapping[str, Any], directory: Path) -> QuantPlan:
    try:
        return QuantPlan.from_dict(meta["plan"], QuantConfig.from_dict(meta["config"]))
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
    missing, extra = sorted(set(state) - stored), sorted(stored - set(state))
    if missing or extra:
        raise CheckpointError(
            f"{directory} does not fit the model: {len(missing)} keys missing "
            f"({', '.join(missing[:3]) or 'none'}), {len(extra)} unexpected "
            f"({', '.join(extra[:3]) or 'none'})"
        )
    loaded: dict[str, Tensor] = {}
    for name, target in state.items():
        source = aliases.get(name, name)
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
