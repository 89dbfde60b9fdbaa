"""`codtdq export --to onnx`: 4-bit weights that ONNX Runtime and OpenVINO run."""

import json
import re

import numpy as np
import pytest
import torch
from checkpoints import IMAGE, tiny

import codtdq
from codtdq.cli import main
from codtdq.exporting.onnx_file import export_onnx
from codtdq.exporting.onnx_twins import float_twin
from codtdq.models.registry import ModelInfo

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")
CLOSE = 2e-3  # of logits of size 1: runtimes sum in their own order, gelu is their own


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """(model, its twin with float activations, what was exported)."""
    model = codtdq.quantize(tiny(), "cod-tdq-plus", calibration=[IMAGE] * 2)
    model.info = ModelInfo(name="tiny", description="", input_size=6, size_multiple=1)
    path = tmp_path_factory.mktemp("onnx") / "net.onnx"
    return model, float_twin(model)[0], export_onnx(model, path)


def test_onnxruntime_computes_the_weights_under_float_activations(small):
    _, twin, done = small
    session = onnxruntime.InferenceSession(str(done.path), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"image": IMAGE.numpy()})
    with torch.no_grad():
        wanted = twin(IMAGE).numpy()
    assert np.abs(found - wanted).max() < CLOSE


def test_openvino_takes_the_same_file(small):
    openvino = pytest.importorskip("openvino")
    _, twin, done = small
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(done.path), "CPU", settings)
    with torch.no_grad():
        wanted = twin(IMAGE).numpy()
    assert np.abs(compiled([IMAGE.numpy()])[0] - wanted).max() < CLOSE


def test_the_file_holds_codes_of_four_bits_and_what_a_user_needs(small):
    model, twin, done = small
    document = onnx.load(str(done.path))
    kinds = {one.name: one.data_type for one in document.graph.initializer}
    codes = [kind for name, kind in kinds.items() if name.endswith(".codes")]
    assert len(codes) == done.packed >= 4 and onnx.TensorProto.INT4 in codes
    assert set(codes) <= {onnx.TensorProto.INT4, onnx.TensorProto.INT8}  # sensitive ones have 8
    told = {one.key: one.value for one in document.metadata_props}
    assert told["model"] == "tiny" and told["contract"] == "portable"
    assert told["postprocess"] == "sigmoid" and len(told["mean"].split()) == 3
    assert not any(node.metadata_props or node.name for node in document.graph.node)
    constants = [node.attribute for node in document.graph.node if node.op_type == "Constant"]
    values = [tuple(one.SerializeToString() for one in value) for value in constants]
    assert len(values) == len(set(values))  # equal ones are written once
    # nothing of the model was changed on the way
    assert type(model.fc1).__name__ == "QuantLinear" and type(twin.fc1) is torch.nn.Linear
    assert torch.equal(twin.fc1.weight, model.fc1.weight)


def test_deviations_are_measured(small):
    _, _, done = small
    assert done.deviation.images == 4
    assert done.deviation.from_float < 1e-3
    assert done.deviation.from_quantized >= done.deviation.from_float


@pytest.mark.slow
@pytest.mark.parametrize(
    # a sixth of escnet-small is less than its codes and float parts together: 1.70 of 1.77 MB
    ("name", "smaller"),
    [("cfrn-small", 6), ("escnet-small", 5), ("vit-cod", 6)],
)
def test_networks_run_in_onnxruntime_and_are_small(tmp_path, capsys, name, smaller):
    out = tmp_path / "net.onnx"
    words = ["export", name, "--method", "cod-tdq", "--to", "onnx", "--contract", "portable"]
    assert main([*words, "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["bytes"] == out.stat().st_size < told["float_bytes"] / smaller
    assert told["deviation"]["from_float"] < 1e-3 and told["packed"] == told["operators"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cfrn", "escnet", "escnet-v2"])
def test_files_of_full_networks_are_a_sixth_of_fp32(tmp_path, capsys, name):
    out = tmp_path / "net.onnx"
    words = ["export", name, "--untrained", "--method", "cod-tdq", "--to", "onnx"]
    assert main([*words, "--out", str(out)]) == 0
    told = capsys.readouterr().out
    smaller = float(re.search(r"([\d.]+)x smaller than FP32", told).group(1))
    size = sum(one.numel() for one in codtdq.create_model(name, pretrained=False).parameters()) * 4
    assert smaller >= 6 and out.stat().st_size <= size / 6
    assert f"{out.stat().st_size / 2**20:.2f} MiB" in told


def test_several_sizes_are_refused_in_one_line(tmp_path, capsys):
    words = ["export", "cfrn-small", "--to", "onnx", "--out", str(tmp_path / "x.onnx")]
    assert main([*words, "--size", "160", "160", "--size", "96", "96"]) == 2
    assert "an ONNX file has one size" in capsys.readouterr().err
