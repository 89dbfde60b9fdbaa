import dataclasses
import json

import pytest
import torch

import codtdq
from codtdq.errors import ConfigError
from codtdq.planning.cod_tdq_config import KINDS, CodTdqConfig
from small_nets import images, simulate, small_net

# For every field: a config in which it matters, and the change that must show.
CHANGES = {
    "name": ({}, "other"),
    "weight_bits": ({}, 3),
    "weight_group_size": ({}, 16),
    "weight_percentile": ({}, 0.9),
    "act_bits": ({}, 3),
    "act_modes": ({}, dict.fromkeys(KINDS, "per_tensor")),
    "act_group_size": ({}, 16),
    "scales": ({}, "float"),
    "act_percentile": ({}, 0.8),
    "act_range": ({"preset": "w4a4"}, "static"),
    "static_reduce": ({"preset": "w4a4", "act_range": "static"}, "mean"),
    "tau": ({}, 0.2),
    "zero_ratio": ({}, 0.6),
    "projection": ({}, "guarded"),
    "literal": ({}, True),
    "dcrp_roles": ({}, ("attention",)),
    "dcrp_modes": ({}, ("per_tensor",)),
    "dcrp_kinds": ({}, ("linear",)),
    "weight_scale_dtype": ({}, "fp16"),
    "first_layer": ({}, "float"),
    "role_patterns": ({"dcrp_roles": ("attention",)}, {"mlp.*": "attention"}),
    "skip_patterns": ({}, ("mlp.*",)),
    "w8_patterns": ({}, ("*.fc?",)),
    "keep_a8_patterns": ({}, ("attn.*",)),
    "weight_group_rules": ({}, {"mlp.fc1": 16}),
    "weight_percentile_rules": ({}, {"mlp.*": 0.9}),
    "act_group_rules": ({}, {"mlp.fc2": 8}),
    "layer_overrides": ({}, {"mlp.fc1": {"weight_bits": 8, "act_mode": "per_tensor"}}),
    "fp32_ln": ({"cast": torch.bfloat16}, True),
    "fp32_gn": ({"cast": torch.bfloat16}, True),
    "fold_norms": ({}, True),
    "io_correction": ({}, "affine"),
    "compute_dtype": ({}, "fp16"),
    "float_storage": ({}, "fp32"),
}


def outputs(config, dtype):
    batches = [images(2, seed=s) * (s + 1) for s in range(3)]
    model = simulate(small_net(), config, calibration=batches).to(dtype)
    with torch.no_grad():
        return model(images().to(dtype)).float()


def test_every_field_is_covered():
    assert set(CHANGES) == set(CodTdqConfig.field_names())


@pytest.mark.parametrize("field", CHANGES)
def test_changing_a_field_changes_something(field):
    start, value = CHANGES[field]
    start = dict(start)
    dtype = start.pop("cast", torch.float32)
    before = codtdq.preset(start.pop("preset", "cod-tdq"), **start)
    after = before.replace(**{field: value})
    if field == "name":
        assert "config        other" in str(codtdq.plan(small_net(), after))
        assert "config        other" not in str(codtdq.plan(small_net(), before))
        return
    if field == "fold_norms":  # the paper's settings keep float weights as they are
        with pytest.raises(ConfigError, match="set fold_norms=False"):
            outputs(after, dtype)
        return
    assert not torch.equal(outputs(before, dtype), outputs(after, dtype))


@pytest.mark.parametrize("field", CHANGES)
def test_json_round_trip_keeps_every_field(field, tmp_path):
    start, value = CHANGES[field]
    start = {k: v for k, v in start.items() if k != "cast"}
    config = codtdq.preset(start.pop("preset", "cod-tdq"), **start).replace(**{field: value})
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_dict()))
    assert codtdq.CodTdqConfig.from_json(path) == config
    assert hash(config.replace(layer_overrides={})) is not None


@pytest.mark.parametrize("name", codtdq.list_presets())
def test_presets_round_trip(name):
    config = codtdq.preset(name)
    assert codtdq.CodTdqConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert config.name == name


def test_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        codtdq.CodTdqConfig().tau = 2.0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"zero_ration": 0.2}, "did you mean 'zero_ratio'"),
        ({"weight_bits": 9}, "2 to 8"),
        ({"act_bits": "4"}, "2 to 8"),
        ({"tau": -1.0}, "positive"),
        ({"tau": "1"}, "positive"),
        ({"tau": float("nan")}, "positive"),
        ({"zero_ratio": "0.2"}, "a number"),
        ({"dcrp_modes": ["per_group"]}, "accepted: per_tensor"),
        ({"zero_ratio": 1.0}, r"\(0, 1\)"),
        ({"act_percentile": 0.0}, r"\(0, 1\]"),
        ({"projection": "max"}, "accepted: min, guarded"),
        ({"act_modes": {"linear": "per_tensor"}}, "lacks"),
        ({"act_modes": {"liner": "per_tensor"}}, "act_modes key"),
        ({"act_range": "static"}, "per_token_group"),
        ({"skip_patterns": "mlp"}, "a list of strings"),
        ({"literal": True, "projection": "guarded"}, "literal"),
        ({"first_layer": "keep"}, "accepted: quantize"),
        ({"layer_overrides": {"a": {"weight_bit": 4}}}, "did you mean 'weight_bits'"),
        ({"dcrp_roles": ["atention"]}, "accepted: attention"),
        ({"act_group_size": 0}, "at least 1"),
        ({"literal": 1}, "true, false"),
    ],
)
def test_bad_configs_are_one_line_errors(data, message):
    with pytest.raises(ConfigError, match=message) as error:
        codtdq.CodTdqConfig.from_dict(data)
    assert "\n" not in str(error.value)


def test_unknown_preset_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'cod-tdq"):
        codtdq.preset("cod-tqd")


@pytest.mark.parametrize("text", ["", "{", "[1]"])
def test_broken_config_files_are_one_line_errors(tmp_path, text):
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"c\.json"):
        codtdq.CodTdqConfig.from_json(path)
    with pytest.raises(ConfigError, match="cannot read"):
        codtdq.CodTdqConfig.from_json(tmp_path / "none.json")
