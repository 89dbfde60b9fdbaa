"""OpenVINO on the exported network: by default, in FP32, and in int8 by NNCF.

Each runs from the files that one would ship: `save_model` with its default, which stores FP16
weights, and FP32 ones where FP32 is asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from codtdq.errors import UnsupportedError
from codtdq.lab.bench.speed.competitors.network import Calibration, Network
from codtdq.lab.bench.speed.competitors.runtime import Runtime
from codtdq.lab.bench.speed.competitors.trial import try_openvino

_HINT = "INFERENCE_PRECISION_HINT"


def default(network: Network, threads: int) -> Runtime:
    """Let it choose: bf16 where the processor has instructions for it, f32 elsewhere."""
    path = _stored(network, "default", fp16=True)
    return _compiled(network, path, threads, "", "{between}, its default")


def f32(network: Network, threads: int) -> Runtime:
    """FP32 throughout."""
    return _compiled(network, _stored(network, "f32", fp16=False), threads, "f32", "{between}")


def int8(network: Network, threads: int) -> Runtime:
    """Post-training quantization by NNCF; what stays float computes in FP32."""
    return _quantized(network, threads, "f32")


def int8_bf16(network: Network, threads: int) -> Runtime:
    """Run the same int8 network with bfloat16 between, where the machine has it."""
    import openvino

    offered = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if "BF16" not in offered:
        raise UnsupportedError(f"OpenVINO has no bf16 on this machine, only {', '.join(offered)}")
    return _quantized(network, threads, "bf16")


def _quantized(network: Network, threads: int, between: str) -> Runtime:
    path = network.once("NNCF int8 network", lambda: _quantize(network))
    import nncf

    note = f"NNCF {nncf.__version__} on {network.calibration.source}"
    return _compiled(network, path, threads, between, "int8, {between} between", note)


def _quantize(network: Network) -> Path:
    import nncf
    import openvino

    # NNCF runs the float network in this process
    _try(network, _stored(network, "f32", fp16=False), 1, "f32")
    batches = _batches(network.calibration, len(network.images))
    quantized = nncf.quantize(
        openvino.Core().read_model(str(network.onnx())),
        nncf.Dataset(batches),
        # mixed: asymmetric activations, which cost nothing on a CPU and lose less than symmetric
        preset=nncf.QuantizationPreset.MIXED,
        model_type=nncf.ModelType.TRANSFORMER,
        target_device=nncf.TargetDevice.CPU,
        subset_size=len(batches),
    )
    path = network.folder / "openvino-int8.xml"
    openvino.save_model(quantized, str(path))
    return path


def _batches(calibration: Calibration, size: int) -> list[Any]:
    """Return the batches of the size that the exported network takes."""
    found = [batch.numpy() for batch in calibration.batches if len(batch) == size]
    if not found:
        raise UnsupportedError(f"no calibration batch has {size} images")
    return found


def _stored(network: Network, name: str, *, fp16: bool) -> Path:
    def written() -> Path:
        import openvino

        path = network.folder / f"openvino-{name}.xml"
        model = openvino.Core().read_model(str(network.onnx()))
        openvino.save_model(model, str(path), compress_to_fp16=fp16)
        return path

    return network.once(f"OpenVINO file ({name})", written)


def _try(network: Network, path: Path, threads: int, between: str) -> None:
    """Run a file once in a process of its own, for any number of threads."""
    name = f"OpenVINO trial ({path.stem}, {between or 'default'})"
    network.once(name, lambda: try_openvino(path, threads, between))


def _compiled(
    network: Network, path: Path, threads: int, between: str, precision: str, note: str = ""
) -> Runtime:
    """Compile a file; between: what it computes in where it is float, "" for its own choice."""
    import openvino

    _try(network, path, threads, between)
    asked: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    if between:
        asked[_HINT] = between
    model = openvino.Core().compile_model(str(path), "CPU", asked)
    request = model.create_infer_request()
    chosen = model.get_property(_HINT).get_type_name()

    def prepare(images: Tensor) -> Any:
        return [images.numpy()]

    def forward(images: Any) -> Any:
        return list(request.infer(images, share_inputs=True).values())

    return Runtime(
        prepare,
        forward,
        f"openvino {openvino.__version__.partition('-')[0]}",
        precision.format(between=chosen),
        files=(path, path.with_suffix(".bin")),
        note=note,
    )
