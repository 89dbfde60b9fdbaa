"""One way from model to mask: what holds for every method, whatever its schemes are."""

import copy
import dataclasses
import json
import math
import re

import numpy as np
import pytest
import torch
from torch import nn

import codtdq
from codtdq.errors import CalibrationError, ConfigError
from codtdq.evaluation import layer_losses
from codtdq.evaluation.batching import batch_size_for
from codtdq.methods import list_methods, quantize_model
from codtdq.methods.registry import config_for, config_from, find_method
from codtdq.methods.rivals.block_learning import BUDGETS
from codtdq.operators import quant_operators
from codtdq.operators.record import record_of
from codtdq.planning import CodTdqConfig, QuantConfig
from codtdq.planning.planner import WITH_ACT_GROUPS
from codtdq.schemes.multiplied import MultipliedWeight
from codtdq.schemes.symmetric import SymmetricWeight
from small_nets import images, simulate, small_net

QUICK = {"fima-q": "fima-q-init", "ptq4sam": "ptq4sam-s", "pq-sam": "pq-sam-init"}
METHODS = [name for name in list_methods() if name not in QUICK]  # their starts stand for them
FAST = {"sweeps": 1, "ridges": (), "images": 4}


def batches():
    return [images(2, seed=seed) for seed in (3, 4)]


def settings(name, **changes):
    config = config_for(name)
    quick = {key: value for key, value in FAST.items() if key in config.field_names()}
    return config.replace(**quick, **changes)


def quantized(name, **changes):
    return quantize_model(small_net(), settings(name, **changes), batches())


@pytest.fixture(scope="module")
def made():
    return {name: quantized(name) for name in METHODS}


@pytest.mark.parametrize("name", METHODS)
def test_batch_mates_do_not_change_a_result(made, name):
    """Fails where a range is found over a batch and evaluation batches all the same."""
    model = made[name]
    size = batch_size_for(model)
    if size == 1:
        shared = [op for op in quant_operators(model).values() if op.input_scheme.shares_batch]
        assert shared, "a batch of 1 needs a reason"
        return
    # a float sum in another order may turn a tie over; a shared range changes every image
    assert any(_alone_as_together(model, seed) for seed in (5, 7, 9))


def _alone_as_together(model, seed):
    x = torch.cat([images(1, seed=seed), 40 * images(1, seed=6)]).double()
    model = copy.deepcopy(model).double()
    with torch.no_grad():
        together, alone = model(x)[:1], model(x[:1])
    return torch.allclose(together, alone, atol=1e-4 * float(alone.abs().max()))


def test_a_shared_range_under_plus_is_evaluated_alone():
    """The ablation "cod-tdq by the same code" has shared ranges inside a method of its own."""
    config = settings(
        "cod-tdq-plus",
        base="w4a4",
        everywhere=False,
        trials=1,
        token_zero="none",
        pixel_groups=False,
        equalize=False,
        transforms=(),
    )
    assert batch_size_for(quantize_model(small_net(), config, batches())) == 1


@pytest.mark.parametrize("name", METHODS)
def test_what_quantize_returns_is_what_load_returns(made, name, tmp_path):
    path = codtdq.save(made[name], tmp_path / "net")
    x = images(2, seed=7)
    for backend in ("reference", "auto"):
        codtdq.use_backend(made[name], backend)
        again = codtdq.load(path, model=small_net(seed=9), backend=backend)
        with torch.no_grad():
            assert torch.equal(made[name](x), again(x)), backend
    codtdq.use_backend(made[name], "reference")
    assert record_of(again).to_dict() == record_of(made[name]).to_dict()
    assert str(record_of(again).plan) == str(record_of(made[name]).plan)


def test_load_never_changes_what_it_is_given(made, tmp_path):
    path = codtdq.save(made["cod-tdq"], tmp_path / "net")
    skeleton = small_net(seed=9)
    before = {name: tensor.clone() for name, tensor in skeleton.state_dict().items()}
    codtdq.load(path, model=skeleton)
    assert all(type(m) is not type(None) for m in skeleton.modules())
    assert not quant_operators(skeleton)
    after = skeleton.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_default_is_one_and_the_same():
    from codtdq.api import DEFAULT
    from codtdq.cli.common import DEFAULT_METHOD

    assert DEFAULT == DEFAULT_METHOD == "cod-tdq-plus"
    with pytest.raises(CalibrationError, match=r"cod-tdq-plus needs calibration.*'cod-tdq'"):
        codtdq.quantize(small_net())
    done = codtdq.quantize(small_net(), settings("cod-tdq-plus"), calibration=batches())
    assert record_of(done).name == "cod-tdq-plus"


@pytest.mark.parametrize("name", METHODS)
def test_every_config_survives_json(name, tmp_path):
    config = settings(name, skip_patterns=["head"], layer_overrides={"mix": {"act_bits": 8}})
    again = config_from(json.loads(json.dumps(config.to_dict())))
    assert again == config and type(again) is type(config)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config.to_dict()))
    assert codtdq.config(file) == config


def test_an_unknown_field_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'skip_patterns'"):
        config_from({"name": "repq-vit", "skip_pattern": []})


RULES = {
    "skip": ({"skip_patterns": ["mix"]}, "mix", (None, None)),
    "w8": ({"w8_patterns": ["mix"]}, "mix", (8, 4)),
    "a8": ({"keep_a8_patterns": ["mix"]}, "mix", (4, 8)),
    "override": ({"layer_overrides": {"mix": {"weight_bits": 8, "act_bits": 8}}}, "mix", (8, 8)),
    "first-float": ({"first_layer": "float"}, "stem", (None, None)),
    "first-w8a8": ({"first_layer": "w8a8"}, "stem", (8, 8)),
    "first-4": ({"first_layer": "quantize"}, "stem", (4, 4)),
}
FOUR = [
    name
    for name in METHODS
    if find_method(name).config.weight_bits == 4 == find_method(name).config.act_bits
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", FOUR)
def test_rules_decide_for_every_method(name, rule):
    changes, operator, (weight, act) = RULES[rule]
    done = quantized(name, **changes)
    found = quant_operators(done).get(operator)
    site = record_of(done).plan.site(operator)
    assert (site.weight_bits, site.act_bits) == (weight, act)
    if weight is None:
        assert found is None and type(done.get_submodule(operator)) in (
            nn.Linear,
            nn.Conv2d,
            nn.Conv1d,
        )
        return
    assert found is not None
    levels = found.weight[0].unique().numel()
    assert levels > 2**4 or weight < 8 or found.weight[0].numel() <= 16
    with torch.no_grad():
        assert torch.isfinite(done(images(1))).all()


# the plain field, a rule and an override, from weakest to strongest; by operator what they come to
GROUPS = {
    "weight_group_size": 16,
    "weight_group_rules": {"mlp.*": 12},
    "layer_overrides": {"mix": {"weight_group_size": 8}},
}
GROUP_OF = {"attn.qkv": 16, "attn.proj": 16, "mlp.fc1": 12, "mlp.fc2": 12, "mix": 8}
# they choose scales by the error of the output, not of the weight
BY_OUTPUT = ("ptq4vit", "noisyquant-ptq4vit", "fima-q", "cod-tdq-plus")


@pytest.fixture(scope="module")
def few_steps():
    """Reconstruction that is over soon: what is asked here does not depend on how well it goes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BUDGETS, "fast", dataclasses.replace(BUDGETS["fast"], steps=2))
        yield {"steps": 2, "fast_steps": 2}


def scales_of(scheme):
    """What a group has: a scale, or a whole multiplier of its output's."""
    if isinstance(scheme, MultipliedWeight):
        return scheme.multipliers()
    if isinstance(scheme, SymmetricWeight) and scheme.multiplier is not None:
        return scheme.packed_weight().multiplier
    found = [getattr(scheme, name, None) for name in ("scale", "step", "scales")]
    return next(scales for scales in found if scales is not None)


@pytest.mark.parametrize("name", [name for name in list_methods() if name != "fp32"])
def test_group_sizes_of_weights_work_for_every_method(name, few_steps, tmp_path):
    known = config_for(name).field_names()
    quick = {key: value for key, value in few_steps.items() if key in known}
    finer = quantized(name, **GROUPS, **quick)
    operators = quant_operators(finer)
    for operator, group in GROUP_OF.items():
        scheme = operators[operator].weight_scheme
        settings = scheme.settings()
        assert settings.get("group", settings.get("group_size")) == group
        assert scales_of(scheme).numel() == math.prod(scheme.shape) / group
        assert record_of(finer).plan.site(operator).weight.group_size == group
    if not name.startswith(BY_OUTPUT):
        plain = quantized(name, weight_group_size=None, **quick)
        floats = quantized(name, weight_bits=None, **quick)  # rescaled, where a method does that
        exact = floats.get_submodule("mix").weight
        errors = [
            (quant_operators(model)["mix"].weight - exact).square().sum()
            for model in (plain, finer)
        ]
        assert errors[1] < errors[0]
    again = codtdq.load(codtdq.save(finer, tmp_path / "net"), model=small_net(seed=9))
    codtdq.use_backend(again, "reference")
    with torch.no_grad():
        assert torch.equal(again(images(2)), finer(images(2)))


@pytest.mark.parametrize("name", FOUR)
def test_group_sizes_of_activations_are_taken_or_refused(name):
    config = find_method(name).config
    for changes in (
        {"act_group_size": 8},
        {"act_group_rules": {"mlp.*": 8}},
        {"layer_overrides": {"mlp.fc1": {"act_group_size": 8}}},
    ):
        if not config.has_act_groups:
            refusal = rf"{name} has one activation range per {re.escape(config.range_per)}: .*act_g"
            with pytest.raises(ConfigError, match=refusal):
                quantized(name, **changes)
            continue
        plain, finer = quantized(name), quantized(name, **changes)
        site, other = (record_of(m).plan.site("mlp.fc1") for m in (plain, finer))
        assert other.activation.group_size == 8
        assert other.effective_act_bits > site.effective_act_bits


def test_the_refusal_names_every_method_with_groups_of_channels():
    for name in METHODS:
        config = find_method(name).config
        grouped = config.act_groups and not isinstance(config, CodTdqConfig)
        assert grouped == any(name in (m, "quartz-rounded") for m in WITH_ACT_GROUPS[1:])
    assert WITH_ACT_GROUPS[0] == "cod-tdq"


@pytest.mark.parametrize("name", ["cod-tdq", "cod-tdq-plus", "repq-vit", "ptq4vit-mse"])
def test_weights_are_clipped_for_every_method(name):
    free, clipped = (
        quant_operators(quantized(name, weight_percentile_rules=rules))["mix"].weight
        for rules in ({}, {"mix": 0.5})
    )
    assert clipped.abs().max() < 0.8 * free.abs().max()


@pytest.mark.parametrize("name", ["cod-tdq", "cod-tdq-plus", "repq-vit", "smoothquant"])
def test_norms_stay_in_float32_for_every_method(name):
    done = quantized(name, fp32_ln=True, fp32_gn=True)
    assert any(type(m).__name__ == "Fp32LayerNorm" for m in done.modules())


@pytest.mark.parametrize("name", ["cod-tdq", "cod-tdq-plus", "repq-vit"])
def test_float_parameters_can_be_stored_in_blocks_by_every_method(name, tmp_path):
    done = quantized(name, float_storage="block8")
    path = codtdq.save(done, tmp_path / "net")
    assert json.loads((path / "codtdq.json").read_text())["floats"]
    x = images(1)
    again = codtdq.load(path, model=small_net(seed=9), backend="reference")
    with torch.no_grad():
        assert torch.equal(again(x), done(x))


def test_zero_mass_has_one_meaning():
    """Exact zeros of the input are no lost evidence, whichever scheme quantizes it."""
    net = nn.Sequential(nn.Linear(64, 4))
    x = torch.randn(1, 5, 64).relu()  # half of it is zero to begin with
    found = {}
    for name in ("dstg-only", "smoothquant"):
        model = quantize_model(net, config_for(name), [x])
        operator = model[0]
        lost = ((x != 0) & (operator.input_scheme(x) == 0)).sum() / (x != 0).sum()
        found[name] = layer_losses(model, [x])[0].zero_mass
        if name == "dstg-only":
            assert found[name] == pytest.approx(float(lost))
    assert found["smoothquant"] < 0.45  # counting the exact zeros gives more than half


def test_a_plan_prints_itself():
    plan = codtdq.plan(small_net(), "cod-tdq")
    assert (
        repr(plan) == str(plan) and "attn.qkv" in repr(plan) and "bits per quantized" in repr(plan)
    )
    rival = codtdq.plan(small_net(), "repq-vit")
    assert "W4" in repr(rival) and rival.site("mix").act_bits == 4


def test_any_config_of_the_base_class_is_named():
    class Mine(QuantConfig):
        pass

    with pytest.raises(ConfigError, match="belongs to no method"):
        codtdq.quantize(small_net(), Mine(name="mine"), calibration=batches())
    custom = CodTdqConfig(name="mine", zero_ratio=0.4)
    assert record_of(simulate(small_net(), custom)).name == "mine"


def test_results_do_not_depend_on_the_caller_s_grad_mode(made):
    x = images(1)
    with torch.no_grad():
        quiet = made["cod-tdq"](x)
    assert np.array_equal(made["cod-tdq"](x).detach().numpy(), quiet.numpy())


def test_operators_that_share_a_buffer_are_restored(tmp_path):
    """Readers of one norm share the vector by which their input is rescaled: it is stored once."""
    model = codtdq.create_model("cfrn-small")
    size = model.info.input_size
    batch = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0))
    done = quantize_model(model, config_for("smoothquant"), [batch])
    path = codtdq.save(done, tmp_path / "net")
    assert json.loads((path / "codtdq.json").read_text())["aliases"]
    again = codtdq.load(path, backend="reference")
    with torch.no_grad():
        found, expected = (model.info.mask_logits(net(batch)) for net in (again, done))
    assert torch.equal(found, expected)
