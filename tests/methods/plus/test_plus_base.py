"""The paper's method in terms of the config of cod-tdq-plus: the ground of the ablation."""

import pytest
import torch

import codtdq
from codtdq.errors import ConfigError
from codtdq.methods import apply_method
from codtdq.operators import quant_operators
from codtdq.schemes.pixel_groups import PixelGroups
from codtdq.schemes.projected import ProjectedRange
from codtdq.schemes.token_groups import TokenGroups
from small_nets import images, simulate, small_net

BATCHES = [images(4, seed=100 + i) for i in range(2)]
OFF = {
    "token_zero": "none",
    "pixel_zero": "none",
    "pixel_groups": False,
    "trials": 1,
    "equalize": False,
    "transforms": [],
    "weight_group_size": None,
    "search": False,
    "ridges": [],
    "compensate": False,
    "sweeps": 0,
    "correct_bias": False,
    "base": "cod-tdq",
    "everywhere": False,
    "scales": "float",  # as the paper has them
}


def quantize(**changes):
    return apply_method(small_net(), "cod-tdq-plus", BATCHES, changes=OFF | changes)


def inputs_of(model):
    return [op.input_scheme for op in quant_operators(model).values()]


def test_activations_are_those_of_the_preset():
    found = quant_operators(quantize())
    preset = simulate(small_net(), codtdq.config("cod-tdq", scales="float"))
    compared = 0
    for name, operator in found.items():
        if operator.role == "first":
            continue  # the image has static bits of its own
        site = preset.get_submodule(name).site
        assert isinstance(operator.input_scheme, ProjectedRange)
        assert operator.input_scheme.spec == site.activation, name
        tokens = torch.randn(2, 9, site.inputs, generator=torch.Generator().manual_seed(0))
        expected = codtdq.numerics.quantize(tokens, site.activation).x_hat
        assert torch.equal(operator.input_scheme(tokens), expected)
        compared += 1
    assert compared >= 4


def test_weights_have_one_scale_per_output_that_just_covers():
    model, floating = quantize(), small_net()
    for name, operator in quant_operators(model).items():
        store, weight = operator.weight_scheme, floating.get_submodule(name).weight
        assert store.scales.shape == (weight.shape[0], 1)
        step = store._scales().reshape(-1, *[1] * (weight.ndim - 1))
        # half a step of rounding, and what the three mantissa bits of the scale cut off
        assert ((store.dequantize() - weight).abs() <= step.abs() * 1.05).all(), name


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"trials": 4}, TokenGroups),
        ({"token_zero": "inside"}, TokenGroups),
        ({"pixel_groups": True}, PixelGroups),
    ],
)
def test_an_ingredient_replaces_the_ranges_where_it_applies(changes, kind):
    assert any(type(inputs) is kind for inputs in inputs_of(quantize(**changes)))


def test_saved_models_come_back_bit_for_bit(tmp_path):
    model, x = quantize(), images(2, seed=5)
    codtdq.save(model, tmp_path / "q")
    again = codtdq.load(tmp_path / "q", model=small_net(), backend="reference")
    with torch.no_grad():
        assert torch.equal(again(x), model(x))


def test_widths_are_those_of_the_method():
    assert {q.spec.bits for q in inputs_of(quantize(act_bits=8)) if hasattr(q, "spec")} == {8}


@pytest.mark.parametrize("base", ["fp32", "unheard-of"])
def test_other_bases_are_refused_by_name(base):
    with pytest.raises(ConfigError, match=base):
        quantize(base=base)
