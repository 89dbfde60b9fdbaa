"""The float network as ONNX files: in FP32, and with int8 linear layers."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn


def export_fp32(model: nn.Module, images: Tensor, path: Path) -> Path:
    """Write the network at one input shape."""
    torch.onnx.export(model, (images,), str(path), dynamo=True)
    return path


def quantize_int8(source: Path, path: Path) -> Path:
    """Dynamic int8 for linear layers, one scale per channel, weights in 7 bits (reduce_range).

    Seven bits keep 8-bit products from saturating where the processor lacks VNNI. Convolutions
    stay float: their dynamic int8 form is slower than FP32 in ONNX Runtime.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    separate = _with_own_weights(source, path.with_name(f"{path.stem}-separate.onnx"))
    quantize_dynamic(
        str(separate),
        str(path),
        per_channel=True,
        reduce_range=True,
        weight_type=QuantType.QInt8,
        op_types_to_quantize=["MatMul", "Gemm"],
        use_external_data_format=True,
    )
    return path


def _with_own_weights(source: Path, path: Path) -> Path:
    """Give every Gemm a weight of its own: the quantizer would transpose a shared one twice."""
    import onnx

    network = onnx.load(str(source))
    graph = network.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    taken: set[str] = set()
    for node in graph.node:
        if node.op_type != "Gemm":
            continue
        for place, name in enumerate(node.input):
            if name in taken:
                copied = onnx.TensorProto()
                copied.CopyFrom(stored[name])
                copied.name = f"{name}.{node.name}"
                graph.initializer.append(copied)
                node.input[place] = copied.name
            elif name in stored:
                taken.add(name)
    del graph.value_info[:]  # shapes of weights that the quantizer is about to transpose
    onnx.save(network, str(path), save_as_external_data=True, location=f"{path.name}.data")
    return path
