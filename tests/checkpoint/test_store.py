import json
import pickle
from pathlib import Path

import pytest
import torch
from altering import edit_meta, put, rewrite, weights_of
from safetensors.torch import load_file
from torch import nn

import codtdq
from codtdq.checkpoint import FORMAT_VERSION
from codtdq.checkpoint.files import sha256, weights_name
from codtdq.errors import CheckpointError
from small_nets import SmallNet, images, simulate, small_net


def saved(tmp_path, name="cod-tdq", **changes):
    model = simulate(small_net(), codtdq.preset(name, **changes), calibration=[images(2, seed=3)])
    return model, codtdq.save(model, tmp_path / "ckpt")


@pytest.mark.parametrize("name", codtdq.list_presets())
def test_outputs_are_bit_identical_after_loading(tmp_path, name):
    model, path = saved(tmp_path, name)
    restored = codtdq.load(path, model=small_net(seed=9), backend="reference")
    x = images(3, seed=5)
    with torch.no_grad():
        assert torch.equal(restored(x), model(x))
        slim = codtdq.load(path, model=small_net(seed=9), backend="reference", cache_weights=False)
        assert torch.equal(slim(x), model(x))
    state, again = model.state_dict(), restored.state_dict()
    assert state.keys() == again.keys()
    assert all(torch.equal(state[k], again[k]) and state[k].dtype == again[k].dtype for k in state)


class Tables(nn.Module):
    """Two layers with the same large tables, and others that only look alike."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(16, 16)
        pairs = torch.arange(1 << 14).view(128, 128) % 100
        buffers = {
            "index": pairs,
            "index_again": pairs.clone(),
            "index_other": pairs.flip(0),
            "index_long": pairs.view(-1),
            "index_narrow": pairs.int(),
            "mask": torch.where(pairs > 50, -100.0, 0.0),
            "mask_again": torch.where(pairs > 50, -100.0, 0.0),
            "mask_other": torch.where(pairs > 50, -99.0, 0.0),
            "mean": torch.zeros(100),
            "mean_again": torch.zeros(100),
        }
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)

    def forward(self, x):
        return self.net(x)


def test_equal_tables_share_memory_once_loaded(tmp_path):
    """And are saved as before: what is shared is memory, neither values nor names."""
    model = simulate(Tables(), codtdq.preset("cod-tdq"), calibration=[torch.randn(2, 16)])
    path = codtdq.save(model, tmp_path / "ckpt")
    restored = codtdq.load(path, model=Tables(), backend="reference")
    state, again = model.state_dict(), restored.state_dict()
    assert state.keys() == again.keys()
    assert all(torch.equal(state[k], again[k]) and state[k].dtype == again[k].dtype for k in state)
    places = {name: tensor.data_ptr() for name, tensor in again.items()}
    alike = {(a, b) for a in places for b in places if a < b and places[a] == places[b]}
    assert alike == {("index", "index_again"), ("mask", "mask_again")}
    same = codtdq.save(restored, tmp_path / "again")
    assert weights_of(same).name == weights_of(path).name
    header = json.loads((same / "codtdq.json").read_text())
    assert header == json.loads((path / "codtdq.json").read_text())


@pytest.mark.parametrize(
    "changes",
    [
        {"weight_bits": 2},
        {"weight_bits": 8, "weight_group_size": 16},
        {"weight_group_size": 20},
        {"io_correction": "affine"},
        {"fp32_ln": True, "fp32_gn": True, "compute_dtype": "fp16"},
        {"skip_patterns": ["mlp.*"], "keep_a8_patterns": ["attn.*"], "w8_patterns": ["mix"]},
        {"float_storage": "fp32"},
    ],
    ids=str,
)
def test_every_kind_of_config_survives(tmp_path, changes):
    model, path = saved(tmp_path, **changes)
    restored = codtdq.load(path, model=small_net(seed=9), backend="reference")
    x = images(3, seed=5)
    assert torch.equal(restored(x), model(x))
    assert str(restored.quant_record.plan) == str(model.quant_record.plan)
    twice = codtdq.save(restored, tmp_path / "again")
    assert torch.equal(codtdq.load(twice, model=small_net(), backend="reference")(x), model(x))


class Wide(nn.Module):
    """About 95 % of the parameters are Linear and Conv weights; the rest is a table and norms."""

    def __init__(self, dim=384):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(12))
        self.conv = nn.Conv2d(64, 64, 3)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(12))
        self.table = nn.Parameter(torch.randn(200, dim))

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms):
            x = x + layer(norm(x))
        return x + self.table.mean(0)


def test_the_directory_is_a_seventh_of_fp32(tmp_path):
    torch.manual_seed(0)
    model = Wide()
    total = sum(p.numel() for p in model.parameters())
    weights = sum(m.weight.numel() for m in [*model.layers, model.conv])
    assert 0.94 < weights / total < 0.955
    path = codtdq.save(simulate(model, "cod-tdq"), tmp_path / "wide")
    stored = sum(f.stat().st_size for f in path.iterdir())
    assert 4 * total / stored >= 7.2
    promised = codtdq.plan(model, "cod-tdq").totals()["packed_bytes"]
    assert stored == pytest.approx(promised, rel=0.02)


def test_index_tables_and_masks_are_stored_compactly(tmp_path):
    _, path = saved(tmp_path)
    entries = load_file(str(weights_of(path)))
    assert entries["index#narrow"].dtype is torch.uint8
    assert entries["mask#palette.codes"].dtype is torch.uint8
    restored = codtdq.load(path, model=small_net(), backend="reference")
    assert restored.index.dtype is torch.int64
    assert torch.equal(restored.mask, small_net().mask)


def test_tied_modules_are_stored_once(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(32, 32)
            self.b = self.a

        def forward(self, x):
            return self.b(self.a(x))

    model = simulate(Tied(), "cod-tdq")
    path = codtdq.save(model, tmp_path / "tied")
    assert not any(k.startswith("b.") for k in load_file(str(weights_of(path))))
    x = torch.randn(3, 32)
    assert torch.equal(codtdq.load(path, model=Tied(), backend="reference")(x), model(x))


def test_a_changed_parameter_is_saved_as_it_is_now(tmp_path):
    model, _ = saved(tmp_path)
    with torch.no_grad():
        model.norm1.weight.add_(0.1234567)
    path = codtdq.save(model, tmp_path / "changed")
    assert torch.equal(
        codtdq.load(path, model=small_net(), backend="reference").norm1.weight, model.norm1.weight
    )


@pytest.mark.parametrize("groups", [2, 4, 8])
def test_static_channel_radii_of_grouped_convolutions_survive(tmp_path, groups):
    model = nn.Sequential(nn.Conv2d(8, 16, 3, groups=groups))
    modes = dict.fromkeys(("linear", "conv", "depthwise", "first"), "per_channel")
    x = torch.randn(2, 8, 5, 5)
    config = codtdq.preset("per-tensor", act_modes=modes)
    quantized = simulate(model, config, calibration=[x])
    path = codtdq.save(quantized, tmp_path / "m")
    skeleton = nn.Sequential(nn.Conv2d(8, 16, 3, groups=groups))
    assert torch.equal(codtdq.load(path, model=skeleton, backend="reference")(x), quantized(x))


def test_only_two_files_and_no_leftovers(tmp_path):
    _, path = saved(tmp_path)
    assert {f.stat().st_mode & 0o777 for f in path.iterdir()} == {0o644}
    meta = json.loads((path / "codtdq.json").read_text())
    weights = weights_of(path)
    assert sorted(f.name for f in path.iterdir()) == ["codtdq.json", weights.name]
    assert meta["format"] == FORMAT_VERSION and meta["sha256"] == sha256(weights)
    assert weights.name == weights_name(meta["sha256"])
    assert meta["config"]["name"] == "cod-tdq" and meta["architecture"].endswith("SmallNet")


def test_a_failed_save_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    model, path = saved(tmp_path)
    before = {f.name: f.read_bytes() for f in path.iterdir()}
    monkeypatch.setattr("safetensors.torch.save", _explode)
    with pytest.raises(CheckpointError, match="disk full"):
        codtdq.save(model, path)
    assert {f.name: f.read_bytes() for f in path.iterdir()} == before


def _explode(*args, **kwargs):
    raise OSError("disk full")


def truncate(path: Path):
    data = weights_of(path).read_bytes()
    weights_of(path).write_bytes(data[: len(data) // 2])


DAMAGES = {
    "truncated": (truncate, "truncated or was changed"),
    "truncated-rehashed": (lambda p: put(p, weights_of(p).read_bytes()[:500]), "cannot be read"),
    "hash": (
        lambda p: edit_meta(p, sha256="0" * 64, weights=weights_name("0" * 64)),
        "has no model-0000",
    ),
    "other-name": (lambda p: edit_meta(p, weights="../x.safetensors"), "not its sha256's file"),
    "seal": (
        lambda p: (p / "codtdq.json").write_text(
            (p / "codtdq.json").read_text().replace('"bits":4', '"bits":5', 1)
        ),
        "header_sha256",
    ),
    "architecture": (lambda p: edit_meta(p, architecture="other.Net"), r"holds a 'other\.Net'"),
    "newer": (lambda p: edit_meta(p, format=99), "upgrade codtdq"),
    "no-version": (lambda p: edit_meta(p, format=...), "no format version"),
    "no-plan": (lambda p: edit_meta(p, plan=...), "lacks plan"),
    "bad-config": (lambda p: edit_meta(p, config={"tauu": 1}), "did you mean 'tau'"),
    "bad-plan": (lambda p: edit_meta(p, plan={"sites": [{}]}), "damaged"),
    "missing-key": (
        lambda p: rewrite(p, lambda e: e.pop("mix.weight_scheme.scale")),
        "mix.weight_scheme: scale is missing",
    ),
    "extra-key": (lambda p: rewrite(p, lambda e: e.update(x=torch.ones(1))), "1 unexpected"),
    "shape": (
        lambda p: rewrite(p, lambda e: e.update({"mlp.fc1.weight_scheme.scale": torch.ones(2, 1)})),
        "has shape",
    ),
    "blocks": (
        lambda p: rewrite(p, lambda e: e.update({"floats#codes": torch.zeros(3).byte()})),
        "do not fit",
    ),
    "pickle": (lambda p: put(p, pickle.dumps({"a": 1})), "is a pickle"),
    "no-weights": (lambda p: weights_of(p).unlink(), "has no model-"),
    "no-json": (lambda p: (p / "codtdq.json").unlink(), "no codtdq checkpoint"),
    "broken-json": (lambda p: (p / "codtdq.json").write_text("{"), "is damaged"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES.keys())
def test_damage_is_a_one_line_error(tmp_path, damage, message):
    _, path = saved(tmp_path)
    damage(path)
    with pytest.raises(CheckpointError, match=message) as error:
        codtdq.load(path, model=small_net(), backend="reference")
    assert "\n" not in str(error.value)


def test_a_pickle_file_is_refused_as_a_checkpoint(tmp_path):
    torch.save(small_net().state_dict(), tmp_path / "model.pth")
    with pytest.raises(CheckpointError, match="is a pickle"):
        codtdq.load(tmp_path / "model.pth", model=small_net(), backend="reference")


def test_another_shape_of_the_same_class_is_refused(tmp_path):
    _, path = saved(tmp_path)
    with pytest.raises(CheckpointError, match="is not an operator"):
        codtdq.load(path, model=SmallNet(dim=24), backend="reference")


def test_an_unregistered_architecture_needs_a_skeleton(tmp_path):
    _, path = saved(tmp_path)
    with pytest.raises(CheckpointError, match="model=skeleton"):
        codtdq.load(path)


def test_a_float_model_cannot_be_saved(tmp_path):
    with pytest.raises(codtdq.CodtdqError, match="not quantized"):
        codtdq.save(small_net(), tmp_path / "x")
    assert not (tmp_path / "x").exists()
