"""ONNX Runtime on the exported network, in FP32 and with int8 linear layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from codtdq.lab.bench.speed.competitors.network import Network, with_data
from codtdq.lab.bench.speed.competitors.onnx_files import quantize_int8
from codtdq.lab.bench.speed.competitors.runtime import Runtime


def fp32(network: Network, threads: int) -> Runtime:
    """Run the exported network as it is."""
    return _session(network.onnx(), threads, "f32")


def int8(network: Network, threads: int) -> Runtime:
    """Quantize linear layers dynamically: nothing to calibrate."""
    path = network.once(
        "int8 ONNX file", lambda: quantize_int8(network.onnx(), network.folder / "int8.onnx")
    )
    note = "linear layers, dynamic, per channel, reduce_range"
    return _session(path, threads, "int8 linear, f32 else", note)


def _session(path: Path, threads: int, precision: str, note: str = "") -> Runtime:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # its idle threads must not spin while another candidate is timed
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def prepare(images: Tensor) -> Any:
        return {name: images.numpy()}

    return Runtime(
        prepare,
        lambda feed: session.run(None, feed),
        f"onnxruntime {onnxruntime.__version__}",
        precision,
        files=with_data(path),
        note=note,
    )
