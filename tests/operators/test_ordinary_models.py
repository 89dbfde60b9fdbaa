"""Habits of real models that a careless converter gets silently wrong."""

import copy
import os
from pathlib import Path

import pytest
import torch
from torch import nn

import codtdq
from codtdq.errors import CalibrationError, CheckpointError, ConfigError
from codtdq.operators import QuantLinear, listening
from small_nets import simulate


class Listed(nn.Module):
    """Calls its layer through a plain list, as some decoders do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 32)
        self.order = [self.layer]

    def forward(self, x):
        return self.order[0](x)


def test_other_references_to_a_layer_see_the_quantized_one(tmp_path):
    model = simulate(Listed(), "cod-tdq")
    assert model.order[0] is model.layer and isinstance(model.order[0], QuantLinear)
    x = torch.randn(3, 32)
    path = codtdq.save(model, tmp_path / "m")
    assert torch.equal(codtdq.load(path, model=Listed(), backend="reference")(x), model(x))


def test_forward_hooks_go_on_working():
    layer = nn.Linear(8, 8)
    layer.register_forward_hook(lambda module, args, out: out * 100)
    quantized = simulate(nn.Sequential(layer), "w8a8")
    x = torch.randn(2, 8)
    assert torch.allclose(quantized(x), layer(x), atol=3.0) and quantized(x).abs().max() > 5


def test_a_replaced_forward_is_left_alone():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].forward = lambda x: x + 1
    plan = codtdq.plan(model, "cod-tdq")
    assert "replaced" in plan.site("1").reason
    quantized = simulate(model, "w8a8")
    assert not isinstance(quantized[1], QuantLinear)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.mix = nn.Linear(16, 16)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.table.weight

    def forward(self, index):
        return self.head(self.mix(self.table(index)))


def test_tied_weights_of_the_caller_are_not_touched(tmp_path):
    model = Tied()
    before = copy.deepcopy(model.state_dict())
    quantized = simulate(model, "cod-tdq")
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    totals = codtdq.plan(model, "cod-tdq").totals()
    assert totals["parameters"] == sum(p.numel() for p in model.parameters())
    index = torch.arange(9)
    path = codtdq.save(quantized, tmp_path / "m")
    assert torch.equal(
        codtdq.load(path, model=Tied(), backend="reference")(index), quantized(index)
    )


def test_the_fused_encoder_layer_does_not_bypass_quantization():
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    quantized = simulate(layer, "cod-tdq")
    calls = []
    listener = listening({"one": quantized.linear1}, lambda *heard: calls.append(heard))
    with torch.no_grad(), listener:
        out = quantized(torch.randn(2, 5, 32))
    assert len(calls) == 1 and out.isfinite().all()


def test_load_state_dict_renews_the_cached_weight():
    one = simulate(nn.Linear(32, 8), "cod-tdq")
    two = simulate(nn.Linear(32, 8), "cod-tdq")
    two.load_state_dict(one.state_dict())
    x = torch.randn(4, 32)
    assert torch.equal(one(x), two(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_casting_a_model_keeps_scales_exact(dtype):
    module = nn.Sequential(nn.Linear(64, 8))
    config = codtdq.preset("per-tensor")
    model = simulate(module, config, calibration=[torch.full((1, 64), 1e6)])
    cast = copy.deepcopy(model).to(dtype)
    assert cast[0].weight_scheme.scale.dtype is torch.float32
    assert torch.equal(cast[0].input_scheme.radius, model[0].input_scheme.radius)
    assert cast[0].weight.dtype is dtype  # what code that casts its input to it expects
    x = torch.randn(3, 64).to(dtype)
    assert cast(x).dtype is dtype and cast(x).isfinite().all()
    assert torch.equal(cast(x), model(x.float()).to(dtype))
    assert cast.to(torch.float32)[0].weight.dtype is torch.float32


def test_a_model_in_bf16_keeps_its_visible_weight_dtype():
    model = simulate(nn.Sequential(nn.Conv2d(3, 8, 3)).bfloat16(), "cod-tdq")
    x = torch.randn(1, 3, 8, 8)
    assert model(x.to(model[0].weight.dtype)).dtype is torch.bfloat16


def test_convolutions_keep_the_memory_layout_of_their_input():
    conv = simulate(nn.Conv2d(8, 4, 3, padding=1), "cod-tdq")
    x = torch.randn(2, 8, 6, 6)
    assert conv(x).view(2, -1).shape == (2, 144)
    channels_last = conv(x.to(memory_format=torch.channels_last))
    assert channels_last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(conv(x), channels_last)


def test_operators_take_their_input_by_name():
    for module, x in (
        (nn.Linear(8, 4), torch.randn(2, 8)),
        (nn.Conv1d(8, 4, 3), torch.randn(2, 8, 5)),
    ):
        quantized = simulate(module, "cod-tdq")
        assert torch.equal(quantized(input=x), quantized(x))
    with codtdq.CalibrationContext(seq := nn.Sequential(nn.Linear(8, 4))) as stats:
        seq[0](input=torch.randn(2, 8))
        seq[0](input=torch.randn(0, 8))
    assert stats.channels["0"].rows == 2


def test_frozen_parts_of_a_model_in_training_stay_frozen():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).train()
    model[1].eval()
    simulate(model, "per-tensor", calibration=[torch.randn(2, 3, 8, 8)])
    assert model.training and not model[1].training


def test_loading_into_the_wrong_thing_changes_nothing(tmp_path):
    model = simulate(nn.Sequential(nn.Linear(32, 8)), "cod-tdq")
    path = codtdq.save(model, tmp_path / "m")
    with pytest.raises(CheckpointError, match="quantized already"):
        codtdq.load(path, model=model, backend="reference")
    other = nn.Sequential(nn.Linear(32, 9))
    before = other[0].weight.clone()
    with pytest.raises(CheckpointError, match="not an operator"):
        codtdq.load(path, model=other, backend="reference")
    assert type(other[0]) is nn.Linear and torch.equal(other[0].weight, before)


def test_a_skeleton_without_data_can_be_loaded_into(tmp_path):
    model = simulate(nn.Sequential(nn.Linear(32, 8)), "cod-tdq")
    path = codtdq.save(model, tmp_path / "m")
    with torch.device("meta"):
        skeleton = nn.Sequential(nn.Linear(32, 8))
    x = torch.randn(2, 32)
    assert torch.equal(codtdq.load(path, model=skeleton, backend="reference")(x), model(x))


def test_a_single_operator_can_be_saved_and_loaded(tmp_path):
    layer = simulate(nn.Linear(32, 8), "cod-tdq")
    path = codtdq.save(layer, tmp_path / "m")
    x = torch.randn(2, 32)
    assert torch.equal(codtdq.load(path, model=nn.Linear(32, 8), backend="reference")(x), layer(x))


def test_names_with_a_hash_sign_survive(tmp_path):
    def build():
        model = nn.Module()
        model.add_module("a#b", nn.Linear(8, 8))
        model.register_buffer("i#narrow", torch.arange(100))
        model.forward_ = None
        return model

    path = codtdq.save(simulate(build(), "cod-tdq"), tmp_path / "m")
    restored = codtdq.load(path, model=build(), backend="reference")
    assert torch.equal(restored.get_buffer("i#narrow"), torch.arange(100))


def test_a_crash_between_the_two_files_leaves_a_whole_checkpoint(tmp_path, monkeypatch):
    first = simulate(nn.Sequential(nn.Linear(32, 8)), "cod-tdq")
    second = simulate(nn.Sequential(nn.Linear(32, 8)), "cod-tdq")
    path, x, replace, unlink = tmp_path / "m", torch.randn(2, 32), os.replace, Path.unlink
    # the name of the tensors, the name of the header, the removal of the old tensors
    for crash_at, survivor in ((1, first), (2, first), (3, second)):
        codtdq.save(first, path)
        count = 0

        def step(stop=crash_at):
            nonlocal count
            count += 1
            if count == stop:
                raise OSError("power cut")

        def crashing(source, target, step=step):
            step()
            replace(source, target)

        def removing(file, missing_ok=False, step=step):
            if file.suffix == ".safetensors":
                step()
            unlink(file, missing_ok)

        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", crashing)
            patched.setattr(Path, "unlink", removing)
            with pytest.raises(CheckpointError, match="power cut"):
                codtdq.save(second, path)
        assert count == crash_at
        restored = codtdq.load(path, model=nn.Sequential(nn.Linear(32, 8)), backend="reference")
        assert torch.equal(restored(x), survivor(x)), crash_at


@pytest.mark.parametrize(
    "call",
    [
        lambda m: codtdq.plan(None, "cod-tdq"),
        lambda m: codtdq.plan(m, 5),
        lambda m: codtdq.plan(m, "cod-tdq").site("nothing"),
        lambda m: codtdq.preset(5),
        lambda m: codtdq.preset("cod-tdq").with_overrides(5),
        lambda m: codtdq.preset("cod-tdq", skip_patterns=[1]),
        lambda m: codtdq.preset("cod-tdq", act_group_rules={1: 2}),
        lambda m: codtdq.preset("cod-tdq", act_group_rules={"*": "x"}),
        lambda m: codtdq.preset("cod-tdq", layer_overrides={"0": 3}),
        lambda m: codtdq.preset("cod-tdq").replace(name=3),
        lambda m: codtdq.quantize_activation(torch.tensor(1.0)),
        lambda m: codtdq.quantize_activation([1.0]),
        lambda m: codtdq.quantize_activation(torch.ones(2, 2), layout="first"),
        lambda m: codtdq.plan(nn.LazyLinear(3), "cod-tdq"),
    ],
)
def test_misuse_is_a_one_line_config_error(call):
    with pytest.raises(ConfigError) as error:
        call(nn.Sequential(nn.Linear(8, 8)))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("batches", [5, torch.randn(2, 8), [torch.randn(2, 9)], [None]])
def test_unusable_calibration_is_a_one_line_error(batches):
    with pytest.raises(CalibrationError) as error:
        simulate(nn.Sequential(nn.Linear(8, 8)), "per-tensor", calibration=batches)
    assert "\n" not in str(error.value)


def test_unsaveable_state_is_a_one_line_error(tmp_path):
    model = nn.Sequential(nn.Linear(8, 8))
    model.register_buffer("waves", torch.zeros(3, dtype=torch.complex64))
    quantized = simulate(model, "cod-tdq")
    with pytest.raises(CheckpointError, match="waves"):
        codtdq.save(quantized, tmp_path / "m")
    (tmp_path / "file").write_text("x")
    plain = simulate(nn.Sequential(nn.Linear(8, 8)), "cod-tdq")
    with pytest.raises(CheckpointError, match="cannot write"):
        codtdq.save(plain, tmp_path / "file" / "below")
