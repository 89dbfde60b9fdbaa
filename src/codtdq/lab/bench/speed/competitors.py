"""What a user would pick instead, on the same float network: other layouts, compilers, runtimes.

The libraries come with the extra `compare`. One that cannot take the network is skipped, and the
reason is part of the result; one that is not installed is an error before anything is measured.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.errors import ConfigError, UnsupportedError
from codtdq.lab.bench.speed.onnx_files import export_fp32, quantize_int8
from codtdq.lab.text import one_line

EXTRA = "compare"
LONGEST_NOTE = 200  # characters of an error in a table
# what each needs to be installed
COMPETITORS: dict[str, tuple[str, ...]] = {
    "channels-last": (),
    "torch.compile": (),
    "onnxruntime": ("onnx", "onnxscript", "onnxruntime"),
    "onnxruntime-int8": ("onnx", "onnxscript", "onnxruntime"),
    "openvino": ("onnx", "onnxscript", "openvino"),
}


@dataclass(frozen=True)
class Competitor:
    """A built candidate, or the reason why there is none."""

    run: Callable[[], object] | None
    runtime: str
    reason: str = ""
    build_seconds: float = 0.0
    difference: float = 0.0  # of its mask logits from eager torch, relative to their norm


def check(names: Sequence[str]) -> None:
    """Unknown names and missing libraries fail before anything is measured."""
    for name in names:
        if name not in COMPETITORS:
            raise ConfigError(f"--compare is {name!r}; accepted: {', '.join(COMPETITORS)}")
        missing = [lib for lib in COMPETITORS[name] if importlib.util.find_spec(lib) is None]
        if missing:
            raise UnsupportedError(
                f"{name} needs {', '.join(missing)}, which is not installed: "
                f"pip install 'codtdq[{EXTRA}]'"
            )


class Bench:
    """Competitors of one float network at one input shape; exported files live in the block."""

    def __init__(self, model: nn.Module, images: Tensor) -> None:
        self._model, self._images = model, images
        self._onnx: Path | UnsupportedError | None = None
        self._int8: Path | None = None

    def __enter__(self) -> Bench:
        self._folder = tempfile.TemporaryDirectory(prefix="codtdq-compare-")
        return self

    def __exit__(self, *error: object) -> None:
        self._folder.cleanup()

    def build(self, name: str, threads: int) -> Competitor:
        """Make a competitor ready to run with so many threads, and run it once."""
        builders: dict[str, Callable[[int], tuple[Callable[[], Any], str]]] = {
            "channels-last": self._channels_last,
            "torch.compile": self._compiled,
            "onnxruntime": self._onnxruntime,
            "onnxruntime-int8": self._onnxruntime_int8,
            "openvino": self._openvino,
        }
        begin = time.perf_counter()
        try:
            with _quiet():
                run, runtime = builders[name](threads)
                output = run()
        # any failure inside someone else's compiler is a fact about it, not about this run
        except Exception as error:
            return Competitor(None, name, one_line(error, LONGEST_NOTE))
        seconds = time.perf_counter() - begin
        return Competitor(run, runtime, "", seconds, self._difference(output))

    def _channels_last(self, threads: int) -> tuple[Callable[[], Any], str]:
        model = copy.deepcopy(self._model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        images = self._images.contiguous(memory_format=torch.channels_last)
        return _forward(model, images), "torch, channels_last"

    def _compiled(self, threads: int) -> tuple[Callable[[], Any], str]:
        torch._dynamo.reset()  # the number of threads is part of the generated code
        compiled = torch.compile(self._model)
        return _forward(compiled, self._images), f"torch.compile {torch.__version__}"

    def _onnxruntime(self, threads: int) -> tuple[Callable[[], Any], str]:
        return self._session(self._exported(), threads, "fp32")

    def _onnxruntime_int8(self, threads: int) -> tuple[Callable[[], Any], str]:
        what = "int8 linear layers (dynamic, per-channel, reduce_range)"
        return self._session(self._quantized(), threads, what)

    def _session(self, path: Path, threads: int, what: str) -> tuple[Callable[[], Any], str]:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # its idle threads must not spin while another candidate is timed
        options.add_session_config_entry("session.force_spinning_stop", "1")
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        feed = {session.get_inputs()[0].name: self._images.numpy()}
        return lambda: session.run(None, feed), f"onnxruntime {onnxruntime.__version__} {what}"

    def _openvino(self, threads: int) -> tuple[Callable[[], Any], str]:
        import openvino

        core = openvino.Core()
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
        }
        request = core.compile_model(str(self._exported()), "CPU", settings).create_infer_request()
        images = self._images.numpy()
        version = openvino.__version__.partition("-")[0]
        return lambda: list(request.infer([images]).values()), f"openvino {version} fp32"

    def _exported(self) -> Path:
        """Return the network in ONNX, exported once."""
        if isinstance(self._onnx, UnsupportedError):
            raise self._onnx
        if self._onnx is None:
            try:
                self._onnx = export_fp32(self._model, self._images, self._file("network.onnx"))
            except Exception as error:  # whatever the exporter meets, all runtimes share it
                self._onnx = UnsupportedError(
                    f"ONNX export failed: {one_line(error, LONGEST_NOTE)}"
                )
                raise self._onnx from error
        return self._onnx

    def _quantized(self) -> Path:
        """Return the exported network in int8, made once."""
        if self._int8 is None:
            self._int8 = quantize_int8(self._exported(), self._file("network-int8.onnx"))
        return self._int8

    def _file(self, name: str) -> Path:
        return Path(self._folder.name) / name

    def _difference(self, output: Any) -> float:
        """Relative distance of the first output from eager torch: near 0 for the same network."""
        expected = _first(_forward(self._model, self._images)())
        found = _first(output).to(expected.dtype)
        return float((found - expected).norm() / expected.norm())


def _first(output: Any) -> Tensor:
    first = output[0] if isinstance(output, list | tuple) else output
    return first if isinstance(first, Tensor) else torch.as_tensor(first)


def _forward(model: Callable[..., Any], images: Tensor) -> Callable[[], Any]:
    def run() -> Any:
        with torch.inference_mode():
            return model(images)

    return run


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Compilers and exporters talk a lot; what matters of it is raised."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    sink = io.StringIO()
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(sink),
            contextlib.redirect_stderr(sink),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
