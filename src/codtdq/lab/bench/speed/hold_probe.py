"""Started alone by `hold_check`: how fast one product of each library is, and with which kernels.

The libraries to probe are the arguments. The last line of the output is JSON; oneDNN may write
lines of its own before it.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

SIDE = 512
SECONDS = 0.4


def main() -> None:
    """Print the speed (10^9 operations per second) and the kernels of each library."""
    probes = {"torch": _torch, "onnxruntime": _onnxruntime, "openvino": _openvino}
    found = {}
    for name in sys.argv[1:]:
        try:
            found[name] = probes[name]()
        except Exception as error:
            found[name] = {"failed": " ".join(str(error).split())[-160:]}
    sys.stdout.write("\n" + json.dumps(found) + "\n")


def _speed(run: Callable[[], object]) -> float:
    """Best of many calls, in processor time."""
    run()
    best, end = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        begin = time.process_time()
        run()
        best = min(best, time.process_time() - begin)
    return 2 * SIDE**3 / best / 1e9


def _torch() -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    a, b = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    torch.conv2d(torch.randn(2, 64, 32, 32), torch.randn(64, 64, 3, 3))  # wakes oneDNN
    return {"gops": _speed(lambda: a @ b), "kernels": [torch.backends.cpu.get_cpu_capability()]}


def _onnxruntime() -> dict[str, Any]:
    import numpy
    import onnxruntime
    from onnx import TensorProto, helper

    weight = numpy.random.default_rng(0).integers(-64, 64, (SIDE, SIDE), dtype=numpy.int8)
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [SIDE, SIDE])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [SIDE, SIDE])],
        [helper.make_tensor("w", TensorProto.INT8, [SIDE, SIDE], weight.tobytes(), raw=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feed = {"x": numpy.full((SIDE, SIDE), 3, numpy.uint8)}
    return {"gops": _speed(lambda: session.run(None, feed)), "kernels": []}


def _openvino() -> dict[str, Any]:
    import numpy
    import openvino
    from openvino import opset13 as ops

    x = ops.parameter([SIDE, SIDE], openvino.Type.f32)
    low, high = (ops.constant(numpy.float32(value)) for value in (-1.28, 1.27))
    codes = numpy.random.default_rng(0).integers(-127, 128, (SIDE, SIDE), dtype=numpy.int8)
    scale = ops.constant(numpy.float32(0.01))
    weight = ops.multiply(ops.convert(ops.constant(codes), "f32"), scale)
    y = ops.matmul(ops.fake_quantize(x, low, high, low, high, 256), weight, False, True)
    settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    model = openvino.Core().compile_model(openvino.Model([y], [x]), "CPU", settings)
    request, image = model.create_infer_request(), numpy.ones((SIDE, SIDE), numpy.float32)
    kernels = set()
    for operator in model.get_runtime_model().get_ops():
        info = operator.get_rt_info()
        if "primitiveType" in info and "gemm" in info["primitiveType"].astype(str):
            kernels.add(info["primitiveType"].astype(str))
    speed = _speed(lambda: request.infer([image], share_inputs=True))
    return {"gops": speed, "kernels": sorted(kernels)}


if __name__ == "__main__":
    main()
