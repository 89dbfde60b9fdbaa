"""SegFormer of transformers behind a registered name: built, loaded, quantized, packed, native."""

import copy
import sys
from pathlib import Path

import pytest
import torch

import codtdq
from codtdq.cli import main
from codtdq.data import open_dataset
from codtdq.engine import backend_of, use_backend
from codtdq.engine.cpu import executors as cpu
from codtdq.engine.cpu import library as native_library
from codtdq.errors import UnsupportedError
from codtdq.evaluation.calibration import CalibrationImages
from codtdq.evaluation.predict import predict_batch
from codtdq.methods import apply_method, list_methods
from codtdq.models import build_model, model_info
from codtdq.models.weights import shipped_weights
from codtdq.operators import quant_operators
from codtdq.planning.presets import list_presets
from small_nets import simulate

NAME = "segformer-small"
library = pytest.importorskip(
    "transformers.models.segformer.modeling_segformer", reason="install codtdq[test]"
)
if not hasattr(library, "SegformerStage"):
    pytest.skip("install codtdq[transformers]: this transformers is older", allow_module_level=True)


@pytest.fixture(scope="module")
def trained():
    return codtdq.create_model(NAME)


@pytest.fixture(scope="module")
def image():
    return torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def test_it_returns_bare_logits_at_a_quarter_of_the_side(trained, image):
    with torch.no_grad():
        logits = trained(image)
    assert isinstance(logits, torch.Tensor) and logits.shape == (2, 1, 16, 16)
    assert model_info(NAME).mask_logits(logits) is logits


def test_shipped_weights_are_small_described_and_not_fresh(trained):
    weights = shipped_weights(f"{NAME}.safetensors")
    assert weights.stat().st_size < 6 * 2**20
    card = weights.with_suffix(".md").read_text()
    parameters = sum(p.numel() for p in trained.parameters())
    assert f"{parameters:,}" in card and "camosynth" in card
    torch.manual_seed(0)
    fresh = build_model(NAME).state_dict()
    same = [key for key, v in trained.state_dict().items() if torch.equal(v, fresh[key])]
    assert not same


def test_the_skeleton_has_the_same_parameters_without_memory(trained):
    empty = build_model(NAME, empty=True)
    assert all(p.is_meta for p in empty.parameters())
    assert not any(b.is_meta for b in empty.buffers())
    shapes = {name: p.shape for name, p in trained.named_parameters()}
    assert {name: p.shape for name, p in empty.named_parameters()} == shapes


def test_every_linear_and_convolution_is_planned_in_its_role(trained):
    sites = {site.name: site for site in codtdq.plan(trained, "cod-tdq").quantized}
    layers = (torch.nn.Linear, torch.nn.Conv2d)
    assert set(sites) == {n for n, m in trained.named_modules() if isinstance(m, layers)}
    roles = {
        "patch_embeddings.proj": "first",
        "blocks.0.attention.q_proj": "attention",
        "blocks.0.attention.sequence_reduction.sequence_reduction": "attention",
        "blocks.0.mlp.fc1": "mlp",
        "blocks.0.mlp.dwconv.dwconv": "depthwise",
    }
    stage = "network.segformer.stages.0"
    assert {name: sites[f"{stage}.{name}"].role for name in roles} == roles
    assert sites["network.decode_head.classifier"].role == "conv"
    assert [site.role for site in sites.values()].count("first") == 1


@pytest.mark.parametrize("preset", list_presets())
def test_every_preset_quantizes_it(trained, image, preset):
    config = codtdq.preset(preset, model=trained)
    calibration = [image] if config.needs_calibration else None
    quantized = simulate(trained, config, calibration=calibration)
    with torch.no_grad():
        logits, exact = quantized(image), trained(image)
    assert logits.shape == exact.shape and logits.isfinite().all()
    assert torch.equal(logits, exact) == (preset == "fp32")


@pytest.mark.parametrize("preset", ["cod-tdq", "cod-tdq-guarded"])
def test_a_packed_file_runs_without_the_float_model(trained, image, preset, tmp_path):
    config = codtdq.preset(preset, model=trained)
    quantized = simulate(copy.deepcopy(trained), config)
    packed = codtdq.save(quantized, tmp_path / "packed")
    floats = sum(4 * p.numel() for p in trained.parameters())
    assert sum(f.stat().st_size for f in Path(packed).rglob("*")) < floats / 4
    restored = codtdq.load(packed, backend="reference")
    with torch.no_grad():
        assert torch.equal(restored(image), quantized(image))


@pytest.mark.skipif(not native_library.path().is_file(), reason="no native engine was built")
def test_a_packed_file_runs_natively(trained, tmp_path):
    """Each operator on the input that it has: a code that flips at a tie moves all that follow."""
    quantized = simulate(trained, codtdq.preset("cod-tdq", model=trained))
    restored = codtdq.load(codtdq.save(quantized, tmp_path / "packed"), backend="cpu")
    record = backend_of(restored)
    assert record.name == "cpu" and not record.fallbacks and record.fused and record.sharing
    assert set(record.native) == set(quant_operators(quantized))
    seen = {}
    for place, operator in quant_operators(quantized).items():
        operator.register_forward_hook(
            lambda module, args, y, place=place: seen.update(
                {place: (module, args[0].clone(), y.clone())}  # what follows may work in place
            )
        )
    use_backend(quantized, "reference")
    photo = open_dataset("camosynth", limit=1)[0].image
    expected, found = predict_batch(quantized, [photo])[0], predict_batch(restored, [photo])[0]
    with torch.inference_mode():
        errors = {
            place: float((cpu.executor_for(operator)(x) - y).norm() / y.norm())
            for place, (operator, x, y) in seen.items()
        }
    assert set(errors) == set(record.native)
    assert max(errors.values()) <= 1e-2, max(errors, key=errors.get)  # a code or two at a tie
    assert sorted(errors.values())[int(0.9 * len(errors))] <= 1e-5  # nearly everywhere none
    assert abs(found.astype(float) - expected.astype(float)).mean() < 0.03 * 255


@pytest.fixture(scope="module")
def calibration(trained):
    """Two images: enough to run a method, not to judge it."""
    return CalibrationImages(trained, open_dataset("camosynth/calib", limit=2))


def test_cod_tdq_plus_is_nearer_than_the_naive_setting(trained, calibration, tmp_path):
    changes = {"trials": 1, "sweeps": 0, "transforms": [], "ridges": []}  # without the slow parts
    plus = apply_method(trained, "cod-tdq-plus", calibration, seed=0, changes=changes)
    naive = simulate(trained, "w4a4")
    codtdq.save(plus, tmp_path / "plus")
    restored = codtdq.load(tmp_path / "plus", backend="reference")
    photo = next(iter(CalibrationImages(trained, open_dataset("camosynth/val", limit=1))))
    with torch.no_grad():
        exact, logits = trained(photo), plus(photo)
        errors = (logits - exact).norm(), (naive(photo) - exact).norm()
        assert errors[0] < 0.5 * errors[1], errors
        assert torch.equal(restored(photo), logits)


@pytest.mark.slow
@pytest.mark.parametrize("method", list_methods())
def test_every_method_takes_it(trained, image, calibration, method):
    quantized = apply_method(trained, method, calibration, seed=0, budget="fast")
    with torch.no_grad():
        logits = quantized(image)
    assert logits.shape == (2, 1, 16, 16) and logits.isfinite().all()


def test_without_transformers_the_error_names_the_extra(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "transformers", None)  # as if it were not installed
    with pytest.raises(UnsupportedError, match="pip install 'transformers"):
        build_model(NAME)
    assert main(["bench", "accuracy", "--models", NAME, "--out", str(tmp_path / "run")]) == 2
    message = capsys.readouterr().err
    assert "pip install 'transformers" in message and message.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_an_older_library_is_refused_by_version(monkeypatch):
    monkeypatch.delattr(library, "SegformerStage")
    with pytest.raises(UnsupportedError, match=r"needs transformers 5\.22 or newer"):
        build_model(NAME)
