"""The whole diagnosis on a small network: isolation of ground truth, records, files, archive."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from scenes import Squares, network

from codtdq.errors import ConfigError, DataError
from codtdq.evaluation import CalibrationImages, evaluate
from codtdq.lab.diagnosis import Diagnosis, diagnose
from codtdq.lab.diagnosis.archive import read_entry
from codtdq.lab.diagnosis.survey import Labels, Survey
from small_nets import simulate

METHODS = ("w4a4", "cod-tdq", "repq-vit")
OPTIONS = {"limit": 2, "radii": (2.0, 2.0), "gamma": (0.2, 0.05)}


def run(shift=0, methods=METHODS, **options):
    model = network()
    calibration = CalibrationImages(model, Squares(3), count=3)
    data = Squares(2, shift)
    return diagnose(model, methods, data, calibration=calibration, **{**OPTIONS, **options})


@pytest.fixture(scope="module")
def found():
    return run()


def test_every_method_and_operator_has_a_record(found):
    assert [m.method for m in found.methods] == ["fp32", *METHODS]
    names = [layer.name for layer in found.method("fp32").layers]
    assert names[0] == "stem" and names[-1] == "head" and len(names) == 8
    for method in METHODS:
        record = found.method(method)
        assert [layer.order for layer in record.layers] == list(range(len(record.layers)))
        assert all(layer.calls == 2 for layer in record.layers)
        assert all(0 < layer.cosine <= 1 for layer in record.layers)
    tdq, sim = found.method("cod-tdq").layer("mlp.fc1"), found.method("repq-vit").layer("mlp.fc1")
    assert tdq.mode == "per_token_group" and tdq.group == 32 and tdq.grid == (4, 4)
    # the bound holds but for groups so small that the least multiplier is more than they may have
    assert tdq.rho0.median <= 0.2 and tdq.rho0.p95 <= 0.2 + 1e-6
    assert math.isnan(sim.step.mean) and math.isfinite(sim.rho0.mean) and sim.active == {}
    assert found.method("fp32").bits["weight"] == 32.0


def test_metrics_are_those_of_an_evaluation(found):
    model = network()
    assert found.method("fp32").metrics["S"] == evaluate(model, Squares(2)).metrics["S"]
    expected = evaluate(simulate(model, "cod-tdq"), Squares(2)).metrics["S"]
    assert found.method("cod-tdq").metrics["S"] == pytest.approx(expected, abs=1e-9)
    mean = sum(image.scores["cod-tdq"] for image in found.images) / 2
    assert mean == pytest.approx(expected, abs=1e-9)


def blind(diagnosis):
    """Everything that must not depend on masks."""
    data = diagnosis.to_dict()
    data.pop("images")
    for method in data["methods"]:
        method.pop("metrics")
        for layer in method["layers"]:
            layer.pop("boundary")
            layer.pop("elsewhere")
    return data


def test_lost_evidence_is_drawn_where_something_was_rounded(found):
    for item in found.gallery:
        assert list(item.zeroed) == list(METHODS)  # FP32 has none


def test_no_quantizer_sees_the_ground_truth(found, tmp_path):
    other = run(shift=9, archive=tmp_path / "b")
    run(archive=tmp_path / "a")
    assert blind(found) == blind(other)
    for one, two in zip(found.gallery, other.gallery):
        assert not np.array_equal(one.truth, two.truth)
        for method in ("fp32", *METHODS):
            assert np.array_equal(one.predictions[method], two.predictions[method])
    # inputs, radii, steps and codes of every operator, bit for bit
    files = sorted(p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*.safetensors"))
    assert files
    for file in files:
        ours, theirs = (read_entry(tmp_path / side / file) for side in "ab")
        assert ours[1] == theirs[1]
        for key, tensor in ours[0].items():
            assert torch.equal(tensor, theirs[0][key]), (file, key)
    boundary = [layer.boundary for layer in found.method("w4a4").layers]
    assert boundary != [layer.boundary for layer in other.method("w4a4").layers]


def test_boundary_labels_come_from_the_mask(found):
    # Object: pixels 4..15 of 32. Band: 2..17 with round corners, without 6..13. Tokens: 8 x 8.
    # Counted by hand, in 64ths: 29 36 9 0 / 36 28 16 0 / 9 16 1 0 / 0 0 0 0.
    for name in ("attn.qkv", "mlp.fc2", "head"):
        layer = found.method("cod-tdq").layer(name)
        assert layer.boundary.tokens == 2 * 6  # at least 0.2
        assert layer.elsewhere.tokens == 2 * 8  # at most 0.05; two tokens are in between


def test_survey_memory_does_not_grow():
    model = network()
    from codtdq.lab.diagnosis.boundary import BoundaryProtocol
    from codtdq.lab.diagnosis.diagnose import input_of
    from codtdq.lab.diagnosis.listening import listening
    from codtdq.lab.diagnosis.tokens import token_maps

    data = Squares(6)
    maps = token_maps(model, input_of(model, data[0]))
    survey = Survey(simulate(model, "cod-tdq"), "cod-tdq", maps)
    quantized = simulate(model, "cod-tdq")
    band = np.zeros((32, 32), bool)
    sizes = []
    with torch.inference_mode(), listening(quantized, survey.hear):
        for index in range(6):
            survey.start("image", Labels(band, maps, BoundaryProtocol()))
            quantized(input_of(model, data[index]))
            sizes.append((survey.state_bytes(), len(survey.samples)))
    assert len(set(sizes)) == 1


def test_listeners_are_taken_off_again(found):
    model = network()
    quantized = simulate(model, "cod-tdq")
    diagnose(model, {"ours": quantized}, Squares(1), limit=1)
    assert all(getattr(m, "listener", None) is None for m in quantized.modules())
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_gallery_and_samples(found):
    assert [item.name for item in found.gallery] == ["image-0", "image-1"]
    item = found.gallery[0]
    assert item.band[2, 8] == 255 and item.band[9, 9] == 0
    for method in METHODS:
        for picture in item.zeroed[method].values():
            assert picture.shape == (32, 32) and picture.dtype == np.uint8
    assert run(keep_images=1, methods=("w4a4",)).gallery[1:] == []
    assert {sample.method for sample in found.samples} == {"fp32", *METHODS}
    assert len({sample.layer for sample in found.samples}) <= 3
    for sample in found.samples:
        assert len(sample.x) == len(sample.x_hat) == len(sample.token) == len(sample.boundary)


def test_json_and_csv(found, tmp_path):
    text = found.to_json(tmp_path / "diagnosis.json")
    again = Diagnosis.from_json(tmp_path / "diagnosis.json")
    assert again.to_json() == text and "NaN" not in text and "Infinity" not in text
    assert again.method("w4a4").layer("stem").rho0 == found.method("w4a4").layer("stem").rho0
    lines = found.layers_csv(tmp_path / "layers.csv").splitlines()
    assert len(lines) == 1 + sum(len(m.layers) for m in found.methods)
    assert "boundary.rho0" in lines[0] and "active.c2" in lines[0]
    weights = found.weights_csv().splitlines()
    assert weights[0] == "method,name,role,mean,std,p99,absmax"
    assert not list(tmp_path.glob("*.tmp"))
    for wrong in ('{"format": 9}', "{}", '{"format": 1, "methods": [{}]}'):
        with pytest.raises(DataError, match="not a diagnosis"):
            Diagnosis.from_json(wrong)
    with pytest.raises(DataError, match="cannot be read"):
        Diagnosis.from_json(tmp_path / "missing.json")
    assert json.loads(text)["model"] == "small-net"


def test_weights_are_those_that_multiply(found):
    model = network()
    stem = found.method("fp32").weights[0]
    values = model.stem.weight.detach().double().flatten()
    assert stem.name == "stem" and stem.absmax == pytest.approx(values.abs().max().item())
    assert stem.std == pytest.approx(values.std(correction=0).item())
    assert stem.p99 == pytest.approx(np.quantile(values.numpy(), 0.99, method="inverted_cdf"))
    quantized = simulate(model, "w4a4")
    fc1 = next(w for w in found.method("w4a4").weights if w.name == "mlp.fc1")
    assert fc1.std == pytest.approx(quantized.mlp.fc1.weight.double().std(correction=0).item())


def test_weights_for_histograms_are_chosen_by_name(found):
    assert [s.layer for s in found.weight_samples][:2] == ["attn.qkv", "mlp.fc1"]  # the default
    chosen = run(methods=("w4a4",), limit=1, layers=["attn.*", "head"])
    places = [(sample.method, sample.layer) for sample in chosen.weight_samples]
    assert places == [(m, n) for m in ("fp32", "w4a4") for n in ("attn.qkv", "attn.proj", "head")]
    assert np.array_equal(chosen.weight_samples[1].weight, network().attn.proj.weight.detach())
    with pytest.raises(ConfigError, match="--layers nothing"):
        run(methods=("w4a4",), layers=["nothing"])


def test_archive_holds_what_the_supplement_lists(tmp_path):
    run(methods=("cod-tdq",), archive=tmp_path, limit=1)
    path = next((tmp_path / "cod-tdq" / "image-0").glob("*-mlp.fc1.safetensors"))
    tensors, facts = read_entry(path)
    assert set(tensors) == {"x", "x_hat", "radius", "step", "sigma"}
    assert facts["operator"] == "mlp.fc1" and facts["mode"] == "per_token_group"
    assert tensors["x"].shape == (16, 48) and tensors["radius"].numel() == 32
    # steps are whole multiples 1..15 of one per token
    ratio = tensors["step"] / tensors["step"].amin(-1, keepdim=True)
    assert bool((tensors["step"] > 0).all()) and float(ratio.max()) <= 15.001
    with pytest.raises(DataError, match="no file of a diagnosis archive"):
        read_entry(tmp_path / "nothing.safetensors")


def test_mistakes_are_told_before_anything_runs():
    with pytest.raises(ConfigError, match="limit is 0"):
        run(limit=0)
    with pytest.raises(ConfigError, match="w4a5"):
        run(methods=("w4a5",))
    with pytest.raises(ConfigError, match="once"):
        run(methods=("w4a4", "w4a4"))

    class Blind(Squares):
        def __getitem__(self, index):
            return dataclasses.replace(super().__getitem__(index), mask=None)

    with pytest.raises(DataError, match="no mask"):
        diagnose(network(), ["w4a4"], Blind(1))
