"""Read and write checkpoints: strictly, without running code from the file, in whole or not at all.

Checkpoints come from many training scripts, so wrappers and prefixes are removed; everything else
must fit exactly, because a partly loaded network still produces plausible masks.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import codtdq.weights
from codtdq._version import __version__
from codtdq.errors import CheckpointError
from codtdq.io import write_tensors
from codtdq.models import block_weights
from codtdq.tensorfile import read_tensors

PACKED = ("vit-cod-w4a4",)  # quantized models in the package, a directory each
BLOCK8 = "block8"  # 8-bit blocks in place of a dtype
# Older ones run code of a crafted file (CVE-2025-32434 below 2.6, CVE-2026-24747 below 2.10).
SAFE_TORCH = (2, 10)
DENSE = torch.contiguous_format
PICKLE_SUFFIXES = (".pth", ".pt")
SAFETENSORS_SUFFIX = ".safetensors"
_WRAPPERS = (
    "state_dict",
    "average",
    "weights",
    "model",
    "params",
)  # entries that training scripts keep weights under
_PREFIXES = ("_orig_mod.", "module.")  # added by torch.compile and by data-parallel training
_SHOWN = 3  # differing keys that an error lists


def shipped_weights(filename: str) -> Path:
    """Where the package keeps a file of trained weights; the file itself may be absent."""
    return Path(codtdq.weights.__file__).parent / filename


def packed_checkpoint(spec: str | Path) -> Path:
    """The directory of a quantized model: one that exists, or one of the package by its name."""
    path = Path(spec)
    return shipped_weights(str(spec)) if str(spec) in PACKED and not path.exists() else path


def load_checkpoint(model: nn.Module, path: str | Path, *, architecture: str) -> None:
    """Fill `model` with the weights of a file, or raise `CheckpointError` and leave it unchanged.

    path: `.pth`/`.pt` (read with `weights_only=True`) or `.safetensors`; the state dict may sit
        under "state_dict", "model" or the like, its keys may carry `_orig_mod.` and `module.`.
    architecture: name of the model, for messages.
    Floating-point tensors are converted to the dtype of the model's own. A model that was built
    empty takes the tensors themselves, without a copy.
    """
    path = Path(path)
    expected = model.state_dict()
    found = _strip_prefixes(_unwrap(_read(path), path), expected, path)
    _check_fit(found, expected, path, architecture)
    converted = {key: found[key].to(expected[key].dtype) for key in expected}
    _check_finite(converted, {name for name, _ in model.named_parameters()}, path)
    if any(parameter.is_meta for parameter in model.parameters()):
        model.load_state_dict(_apart(converted), strict=True, assign=True)
    else:
        model.load_state_dict(converted, strict=True)


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, each dense and with memory of its own: in a file, several may share some."""
    found: dict[str, Tensor] = {}
    taken: set[int] = set()
    for key, tensor in tensors.items():
        storage = tensor.untyped_storage()
        alone = storage.nbytes() == tensor.nbytes and storage.data_ptr() not in taken
        taken.add(storage.data_ptr())
        found[key] = tensor.contiguous() if alone else tensor.clone(memory_format=DENSE)
    return found


def save_weights(
    model: nn.Module, path: str | Path, dtype: torch.dtype | str = torch.float16
) -> None:
    """Write the state dict of `model` as safetensors, atomically.

    dtype: stored type of floating-point tensors, or "block8"; integer buffers keep theirs.
    """
    path = Path(path)
    if path.suffix != SAFETENSORS_SUFFIX:
        raise CheckpointError(f"{path}: weights are written as {SAFETENSORS_SUFFIX}; rename it")
    if isinstance(dtype, str) and dtype != BLOCK8:
        raise CheckpointError(f"dtype is {dtype!r}; accepted: {BLOCK8!r} or a torch dtype")
    tensors: dict[str, Tensor] = {}
    for key, value in model.state_dict().items():
        for name, stored in _stored(key, value.detach().cpu(), dtype).items():
            if stored.is_floating_point() and not bool(torch.isfinite(stored).all()):
                raise CheckpointError(
                    f"{path}: {name} is not finite in {_dtype_name(dtype)}; "
                    "nothing was written; save in float32 or check the training run"
                )
            # a private copy: safetensors refuses tensors that share memory
            tensors[name] = stored.clone(memory_format=DENSE)
    metadata = {"format": "pt", "dtype": _dtype_name(dtype), "codtdq_version": __version__}
    architecture = getattr(getattr(model, "info", None), "name", None)
    if architecture is not None:
        metadata["architecture"] = architecture
    _write_atomically(tensors, metadata, path)


def _stored(key: str, value: Tensor, dtype: torch.dtype | str) -> dict[str, Tensor]:
    if not value.is_floating_point():
        return {key: value}
    return block_weights.encode(key, value) if isinstance(dtype, str) else {key: value.to(dtype)}


def _write_atomically(tensors: dict[str, Tensor], metadata: dict[str, str], path: Path) -> None:
    """Write beside the target and rename, so that a reader never sees half a file."""
    try:
        write_tensors(path, tensors, metadata)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be written ({_one_line(error)})") from error


def check_there(path: str | Path) -> Path:
    """The path of a checkpoint file that is there; asked before a large network is built for it."""
    if not Path(path).is_file():
        raise CheckpointError(f"{path}: no such checkpoint file; check the path")
    return Path(path)


def _read(path: Path) -> Any:
    """The content of a checkpoint file on the CPU."""
    check_there(path)
    suffix = path.suffix.lower()
    if suffix == SAFETENSORS_SUFFIX:
        try:
            return block_weights.decode(read_tensors(path)[0])
        except (OSError, ValueError, CheckpointError) as error:
            raise _damaged(path, error) from error
    if suffix in PICKLE_SUFFIXES:
        return _read_pickle(path)
    accepted = ", ".join((*PICKLE_SUFFIXES, SAFETENSORS_SUFFIX))
    raise CheckpointError(f"{path}: unknown suffix {path.suffix!r}; accepted: {accepted}")


def _is_torchscript(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/constants.pkl") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return False  # another format, or damaged: torch says which


def _read_pickle(path: Path) -> Any:
    if _torch_version() < SAFE_TORCH:
        raise CheckpointError(
            f"{path}: torch {torch.__version__} can run code from such a file even with "
            f"weights_only=True; upgrade to torch {'.'.join(map(str, SAFE_TORCH))}, or convert "
            "the file to .safetensors"
        )
    if _is_torchscript(path):
        raise CheckpointError(
            f"{path}: a TorchScript archive, which is a program; save the state_dict of the network"
        )
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "GLOBAL" not in str(error).upper():
            raise _damaged(path, error) from error
        raise CheckpointError(
            f"{path}: holds Python objects besides tensors, which could run code and are not "
            "read; save the bare state_dict of the network and use that file"
        ) from error
    except Exception as error:  # damaged files fail in many ways, from KeyError to RuntimeError
        raise _damaged(path, error) from error


def _torch_version() -> tuple[int, ...]:
    numbers = str(torch.__version__).split("+")[0].split(".")[:2]
    return tuple(int("".join(c for c in number if c.isdigit()) or 0) for number in numbers)


def _damaged(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{path}: damaged or not a checkpoint ({_one_line(error)}); download or copy it again"
    )


def _unwrap(content: Any, path: Path) -> dict[str, Tensor]:
    """The state dict inside what a training script saved."""
    while isinstance(content, Mapping):
        inner = next((content[k] for k in _WRAPPERS if isinstance(content.get(k), Mapping)), None)
        if inner is None:
            break
        content = inner
    if not isinstance(content, Mapping) or not content:
        raise CheckpointError(f"{path}: holds no state dict; save model.state_dict() instead")
    others = [key for key, value in content.items() if not isinstance(value, Tensor)]
    if others:
        raise CheckpointError(
            f"{path}: {len(others)} entries are no tensors (first: {others[0]!r}); "
            f"accepted: a state dict, bare or under {', '.join(_WRAPPERS)}"
        )
    return dict(content)


def _strip_prefixes(
    found: dict[str, Tensor], expected: Mapping[str, Tensor], path: Path
) -> dict[str, Tensor]:
    stripped: dict[str, Tensor] = {}
    for original, value in found.items():
        key = str(original)
        while key not in expected and key.startswith(_PREFIXES):
            key = key.split(".", 1)[1]
        if key in stripped:
            raise CheckpointError(
                f"{path}: holds {key!r} twice, with and without a wrapper prefix; keep one of them"
            )
        stripped[key] = value
    return stripped


def _check_fit(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], path: Path, architecture: str
) -> None:
    """Compare keys, shapes and number kinds; the order of messages is that of the model."""
    missing = [f"{key} is missing" for key in expected if key not in found]
    unexpected = [f"{key} is unexpected" for key in found if key not in expected]
    unfit = [
        f"{key} is {_describe(found[key])} where {_describe(wanted)} is needed"
        for key, wanted in expected.items()
        if key in found and _signature(found[key]) != _signature(wanted)
    ]
    differing = [*missing, *unexpected, *unfit]
    if differing:
        raise CheckpointError(
            f"{path}: does not fit {architecture!r}: {len(missing)} keys missing, "
            f"{len(unexpected)} unexpected, {len(unfit)} mis-shaped; "
            f"first: {'; '.join(differing[:_SHOWN])}; use a checkpoint of {architecture!r} "
            "or name the model that this file belongs to"
        )


def _signature(tensor: Tensor) -> tuple[torch.Size, bool, bool]:
    return tensor.shape, tensor.is_floating_point(), tensor.is_complex()


def _describe(tensor: Tensor) -> str:
    return f"{_dtype_name(tensor.dtype)} {list(tensor.shape)}"


def _dtype_name(dtype: torch.dtype | str) -> str:
    return str(dtype).removeprefix("torch.")


def _check_finite(tensors: Mapping[str, Tensor], parameters: set[str], path: Path) -> None:
    """Reject NaN anywhere and infinity in parameters; a mask buffer may hold -inf."""
    for key, tensor in tensors.items():
        if not tensor.is_floating_point():
            continue
        sound = torch.isfinite(tensor) if key in parameters else ~torch.isnan(tensor)
        if not bool(sound.all()):
            raise CheckpointError(
                f"{path}: {key} holds NaN or infinity; the file comes from a failed training run, "
                "use another checkpoint"
            )


def _one_line(error: Exception) -> str:
    """Type and first line of a message that may span many."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__
