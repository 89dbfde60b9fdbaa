"""`codtdq export --to onnx --contract exact`: codes of activations and whole sums, anywhere."""

import numpy as np
import pytest
import torch
from checkpoints import IMAGE, tiny
from torch import nn

import codtdq
from codtdq.cli import main
from codtdq.exporting.onnx_file import export_onnx
from codtdq.exporting.onnx_twins import exact_twin
from codtdq.models.registry import ModelInfo

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")
METHODS = ("w4a4", "cod-tdq", "cod-tdq-guarded", "dstg-only", "cod-tdq-plus")
SIDE = 24


class Operators(nn.Module):
    """Operators of every kind that read the image itself: nothing float lies between."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Conv2d(3, 8, 3, padding=1)
        self.strided = nn.Conv2d(3, 8, 2, 2, padding_mode="reflect", padding=1)
        self.deep = nn.Conv2d(3, 6, 3, padding=1, groups=3)
        self.point = nn.Conv2d(3, 8, 1, bias=False)
        self.rows = nn.Linear(3 * SIDE, 8)
        self.all = nn.Linear(3 * SIDE * SIDE, 8)
        with torch.no_grad():  # weights at the end of their range: sums that float32 cannot hold
            self.all.weight.copy_(0.01 * torch.sign(self.all.weight))

    def forward(self, x):
        maps = [self.dense(x), self.strided(x), self.deep(x), self.point(x)]
        rows = self.rows(x.permute(0, 2, 3, 1).flatten(2))
        parts = [one.flatten(1) for one in (*maps, rows, self.all(x.flatten(1)))]
        return torch.cat(parts, 1)[:, None, None]  # [B, 1, 1, n]


def session_of(path):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module", params=METHODS)
def operators(request, tmp_path_factory):
    """(model, an image, what was exported)."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        image = torch.randn(1, 3, SIDE, SIDE)
        changes = {} if request.param == "cod-tdq-plus" else {"first_layer": "quantize"}
        config = codtdq.config(request.param, **changes)
        model = codtdq.quantize(Operators(), config, calibration=[image] * 2)
    model.info = ModelInfo(name="operators", description="", input_size=SIDE, size_multiple=1)
    path = tmp_path_factory.mktemp("exact") / "net.onnx"
    return model, image, export_onnx(model, path, contract="exact")


def test_onnxruntime_computes_the_bits_of_every_operator(operators):
    model, image, done = operators
    (found,) = session_of(done.path).run(None, {"image": image.numpy()})
    with torch.no_grad():
        wanted = model(image).numpy()
    assert np.array_equal(found, wanted)
    assert done.contract == "exact" and done.packed == done.operators == 6
    cuts = exact_twin(model)[0].all.cuts
    assert cuts or model.all.weight_scheme.lower().multiplier is None


def test_the_file_has_codes_and_plain_operators(operators):
    document = onnx.load(str(operators[2].path))
    kinds = {one.name: one.data_type for one in document.graph.initializer}
    codes = {name for name in kinds if name.endswith("whole_values.codes")}
    assert len(codes) == 6 and onnx.TensorProto.INT4 in {kinds[name] for name in codes}
    assert not [name for name in kinds if name.endswith((".weight", ".whole_values"))]
    rest = sum(len(one.raw_data) for one in document.graph.initializer if one.name not in codes)
    assert rest < 0.6 * 4 * 8 * 3 * SIDE * SIDE  # no weight travels in float
    assert {node.domain for node in document.graph.node} == {""} and not document.functions
    told = {one.key: one.value for one in document.metadata_props}
    assert told["contract"] == "exact"


def test_openvino_takes_the_same_file(operators):
    openvino = pytest.importorskip("openvino")
    model, image, done = operators
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(done.path), "CPU", settings)
    with torch.no_grad():
        wanted = model(image).numpy()
    gap = np.abs(compiled([image.numpy()])[0] - wanted)
    # it has no float64 and rewrites divisions: a step may round otherwise, and a few codes with it
    assert gap.mean() < 1e-2 * np.abs(wanted).mean() and (gap > 1e-4).mean() < 0.05


def test_masks_of_a_network_are_those_of_the_model(tmp_path):
    model = codtdq.quantize(tiny(), "cod-tdq", calibration=[IMAGE] * 2)
    model.info = ModelInfo(name="tiny", description="", input_size=6, size_multiple=1)
    done = export_onnx(model, tmp_path / "net.onnx", contract="exact")
    assert done.deviation.from_quantized < 3e-3 and done.deviation.from_float is None
    assert str(done.deviation).endswith("to the model's own")


def test_a_scheme_without_an_exact_form_is_named_in_one_line(tmp_path, capsys):
    words = ["export", "cfrn-small", "--method", "cod-tdq-literal", "--to", "onnx"]
    assert main([*words, "--contract", "exact", "--out", str(tmp_path / "x.onnx")]) != 0
    error = capsys.readouterr().err
    assert "projected-range" in error and "no exact form" in error and "portable" in error
    assert error.count("\n") == 1 and not (tmp_path / "x.onnx").exists()
    words = ["export", "cfrn-small", "--to", "program", "--contract", "exact"]
    assert main([*words, "--out", str(tmp_path / "x.codtdq")]) == 2
    assert "add --to onnx" in capsys.readouterr().err
