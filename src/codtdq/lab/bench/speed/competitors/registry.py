"""The competitors by name: what each needs, whose library it is, and who builds it."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from codtdq.environment import install_hint
from codtdq.errors import ConfigError, UnsupportedError
from codtdq.lab.bench.speed.competitors import with_onnxruntime, with_openvino, with_torch
from codtdq.lab.bench.speed.competitors.network import Network
from codtdq.lab.bench.speed.competitors.runtime import Runtime

EXTRA = "compare"
ALL = "all"
BASELINE = "torch"  # eager FP32, which every run has as its first row, `fp32`


@dataclass(frozen=True)
class Entry:
    """One name of `--compare`."""

    build: Callable[[Network, int], Runtime]
    family: str  # torch, onnxruntime or openvino: who holds its instruction set
    libraries: tuple[str, ...] = ()


_ONNX = ("onnx", "onnxscript")
_ORT, _OV = (*_ONNX, "onnxruntime"), (*_ONNX, "openvino")
COMPETITORS: dict[str, Entry] = {
    "torch-bf16": Entry(with_torch.bf16, "torch"),
    "torch.compile": Entry(with_torch.compiled, "torch"),
    "channels-last": Entry(with_torch.channels_last, "torch"),
    "onnxruntime": Entry(with_onnxruntime.fp32, "onnxruntime", _ORT),
    "onnxruntime-int8": Entry(with_onnxruntime.int8, "onnxruntime", _ORT),
    "openvino": Entry(with_openvino.default, "openvino", _OV),
    "openvino-f32": Entry(with_openvino.f32, "openvino", _OV),
    "openvino-int8": Entry(with_openvino.int8, "openvino", (*_OV, "nncf")),
    "openvino-int8-bf16": Entry(with_openvino.int8_bf16, "openvino", (*_OV, "nncf")),
}


def expand(names: Sequence[str]) -> list[str]:
    """Return the names to build, each once: `all` stands for every one, `torch` is always there."""
    found = list(COMPETITORS) if ALL in names else list(dict.fromkeys(names))
    return [name for name in found if name != BASELINE]


def check(names: Sequence[str]) -> None:
    """Unknown names and missing libraries fail before anything is measured."""
    for name in expand(names):
        if name not in COMPETITORS:
            close = difflib.get_close_matches(name, COMPETITORS, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            known = ", ".join((ALL, BASELINE, *COMPETITORS))
            raise ConfigError(f"--compare is {name!r}{hint}; accepted: {known}")
        needed = COMPETITORS[name].libraries
        missing = [library for library in needed if importlib.util.find_spec(library) is None]
        if missing:
            raise UnsupportedError(
                f"{name} needs {', '.join(missing)}, which is not installed: {install_hint(EXTRA)}"
            )
