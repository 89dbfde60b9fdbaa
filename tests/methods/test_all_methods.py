"""What every method must keep, whoever wrote it: asked of all that `list_methods()` knows."""

import ast
import copy
import dataclasses
import inspect
import re

import pytest
import torch

import codtdq
from codtdq.methods import apply_method, list_methods, method_info
from codtdq.methods.registry import (
    FROM_ABSTRACT,
    FROM_CODE,
    FROM_PAPER,
    OWN,
    SECOND_HAND,
    find_method,
)
from codtdq.methods.rivals import reconstruction
from codtdq.operators import quant_operators
from codtdq.planning import CodTdqConfig
from small_nets import images, small_net

ALL = list_methods()
OWN_FILES = [name for name in ALL if not isinstance(find_method(name).config, CodTdqConfig)]
BATCHES = [images(2, seed=100 + i) for i in range(4)]
# Numbers that cost time, and what is enough here; a method has those fields that it needs.
LITTLE = {"steps": 3, "fast_steps": 3, "rank": 1, "fisher_images": 2, "init_rounds": 1, "rounds": 1}
OFF = {"weight_bits": None, "act_bits": None}
YEAR = re.compile(r"\b20[12]\d\b")


def changes_of(name, **more):
    """Cheap settings of a method, and `more` on top."""
    config = find_method(name).config
    if config is None:
        return more
    fields = {field.name for field in dataclasses.fields(config)}
    return {k: v for k, v in LITTLE.items() if k in fields} | more


def quantize(name, model, *, seed=0, **more):
    return apply_method(model, name, BATCHES, seed=seed, changes=changes_of(name, **more))


def run(model, x):
    with torch.no_grad():
        return model(x)


@pytest.fixture(scope="module", autouse=True)
def few_steps():
    """Methods that reconstruct without a field for it: three steps are enough here."""
    with pytest.MonkeyPatch.context() as patch:
        few = dataclasses.replace(reconstruction.BUDGETS["fast"], images=4, steps=3)
        patch.setitem(reconstruction.BUDGETS, "fast", few)
        yield


@pytest.fixture(scope="module")
def made():
    """Each method's model, quantized once; the float model as it was before and after."""
    kept = {}

    def get(name):
        if name not in kept:
            model = small_net()
            before = copy.deepcopy(model.state_dict())
            kept[name] = quantize(name, model), model, before
        return kept[name]

    return get


def test_there_are_methods_of_both_kinds():
    assert len(OWN_FILES) > 1 and "cod-tdq" in ALL and "fima-q" in OWN_FILES


@pytest.mark.parametrize("name", [*OWN_FILES, "fp32"])
def test_quantizers_off_is_the_float_function(name):
    model, x = small_net(), images(3, seed=7)
    off = OFF if name in OWN_FILES else {}
    y, reference = run(quantize(name, model, **off), x), run(model, x)
    assert (y - reference).abs().max() <= 1e-4 * reference.abs().max()


OWN_WIDTHS = {
    "attn.qkv": {"act_bits": None},
    "attn.proj": {"weight_bits": None},
    "mlp.fc1": {"weight_bits": 3, "act_bits": 5},
    "mlp.fc2": {"weight_bits": None, "act_bits": None},
    "head": {"weight_bits": 4, "act_bits": 4},
}


@pytest.mark.parametrize("others", [{}, OFF], ids=["others four bits", "others float"])
@pytest.mark.parametrize("name", OWN_FILES)
def test_operators_have_the_widths_of_their_plan(name, others):
    changes = {"layer_overrides": OWN_WIDTHS, "skip_patterns": ["mix"], **others}
    model = quantize(name, small_net(), **changes)
    plan, operators = model.quant_record.plan, quant_operators(model)
    assert plan.site("mlp.fc1").weight_bits == 3 and "mix" not in operators
    for site in plan:
        if site.name not in operators:
            assert not site.quantized, site.name
            continue
        schemes = operators[site.name].input_scheme, operators[site.name].weight_scheme
        for scheme, bits in zip(schemes, (site.act_bits, site.weight_bits), strict=True):
            while hasattr(scheme, "inner"):
                scheme = scheme.inner
            assert (scheme.kind == "float") == (bits is None), (site.name, scheme.kind)
            assert getattr(scheme, "code_bits", bits) == bits or bits is None, site.name


@pytest.mark.parametrize("name", ALL)
def test_float_model_is_untouched(name, made):
    quantized, model, before = made(name)
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[key], before[key]) for key in before)
    assert not quant_operators(model) and not model.training and quantized is not model
    assert all(p.requires_grad for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("name", ALL)
def test_quantization_does_something_bounded(name, made):
    quantized, model, _ = made(name)
    x = images(3, seed=7)
    y, reference = run(quantized, x), run(model, x)
    assert y.shape == reference.shape and bool(y.isfinite().all())
    assert torch.equal(y, reference) == (name == "fp32")
    # four bits are coarse, but what they give is still the same mask; some ablations do break it
    alike = torch.corrcoef(torch.stack([y.flatten(), reference.flatten()]))[0, 1]
    assert alike > 0.5 or name not in OWN_FILES
    assert not quantized.training
    frozen = not any(p.requires_grad for p in quantized.parameters())
    assert frozen or name not in OWN_FILES  # what presets leave float may still be trained
    hooks = [m for m in quantized.modules() if m._forward_hooks or m._forward_pre_hooks]
    assert not hooks  # nothing of the calibration stays


@pytest.mark.parametrize("name", ALL)
def test_save_and_load(name, made, tmp_path):
    quantized = made(name)[0]
    codtdq.save(quantized, tmp_path / "model")
    x = images(3, seed=8)
    # native kernels add in another order: the reference is what has to come back bit for bit
    same = codtdq.load(tmp_path / "model", model=small_net(seed=5), backend="reference")
    assert torch.equal(run(same, x), run(quantized, x))
    found, expected = same.quant_record, quantized.quant_record
    assert (found.to_dict(), found.plan) == (expected.to_dict(), expected.plan)
    assert list(found.floats) == list(expected.floats)
    for key, stored in expected.floats.items():
        assert torch.equal(found.floats[key].decode(), stored.decode()), key


@pytest.mark.parametrize("name", OWN_FILES)
def test_batch_mates_do_not_matter(name, made):
    quantized = made(name)[0]
    x = images(4, seed=9)
    x[1] *= 5  # a range taken over the batch would show
    together = run(quantized, x)
    alone = torch.cat([run(quantized, one) for one in x.split(1)])
    # sums of another order may flip the code of a single value, no more
    wrong = ((together - alone).abs() > 1e-3 * together.abs().max()).float().mean()
    assert wrong <= 0.1


@pytest.mark.parametrize("name", ALL)
def test_declaration(name, made):
    info = method_info(name)
    assert info.name == name and info.title and info.source and info.granularity
    known = {FROM_CODE, FROM_PAPER, FROM_ABSTRACT, SECOND_HAND, OWN}
    assert info.evidence in known or (name == "fp32" and info.evidence == "-")
    assert info.ranges in {"static", "dynamic", "-"}
    assert re.match(r"\d", info.act_bits) and re.match(r"\d", info.weight_bits)
    assert 0 <= info.calibration_images <= 128
    record = made(name)[0].quant_record
    assert record.name == name and record.info == info.to_dict()
    assert (record.steps > 0) == info.reconstructs
    low = name != "fp32"
    assert (record.bits["weight"] < 16) == low and (record.bits["activation"] < 16) == low


@pytest.mark.parametrize("name", OWN_FILES)
def test_file_says_where_it_comes_from(name):
    build = find_method(name).build
    source = inspect.getsource(inspect.getmodule(build))
    text = ast.get_docstring(ast.parse(source)) or ""
    cited = YEAR.search(text) is not None or method_info(name).evidence == OWN
    assert cited, "the file's docstring names no year of its source"
    assert len(text) > 200, "the file's docstring does not describe the method"
    assert inspect.getdoc(build), "the method's function has no docstring"


@pytest.mark.parametrize("name", ALL)
def test_same_seed_same_model(name, made):
    again = quantize(name, small_net())
    x = images(3, seed=7)
    assert torch.equal(run(again, x), run(made(name)[0], x))
