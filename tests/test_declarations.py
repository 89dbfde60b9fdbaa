"""What modules declare: strict where it is written, true of every model, seen by every reader."""

import copy
import pickle

import pytest
import torch
from torch import nn

import codtdq
from codtdq.declarations import (
    COMPUTABLE,
    FUSIBLE,
    ROLES,
    Declaration,
    check_declaration,
    declaration_of,
    declare,
)
from codtdq.engine.float_operators import EXECUTORS, float_operators
from codtdq.engine.fusion import GATE, activation_of
from codtdq.errors import ConfigError, UnsupportedError
from codtdq.lab.diagnosis.tokens import token_maps
from codtdq.models import build_model, check_installed, list_models
from codtdq.operators.rescale import padding_declarations
from codtdq.planning import config
from codtdq.planning.roles import operators
from codtdq.planning.trace import trace
from small_nets import small_net


class Pair(nn.Module):
    """Two layers that nothing tells apart by type, and a norm with padding behind it."""

    def __init__(self):
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.spare = None
        self.register_buffer("pad", None)

    def forward(self, x):
        return self.b(self.a(self.norm(x)))


def roles_of(model):
    return {each.name: each.role for each in operators(model)}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"roles": {"fc1": "mpl"}}, r"roles\['fc1'\] is 'mpl' \(did you mean 'mlp'\?\); accepted"),
        ({"roles": ["fc1"]}, r"roles is \['fc1'\]; accepted: a mapping"),
        ({"roles": {1: "mlp"}}, r"roles has the entry \(1, 'mlp'\)"),
        ({"fused_as": "gated_glue"}, "fused_as is 'gated_glue' .*did you mean 'gated_gelu'"),
        ({"computed_as": "deform5x5"}, "computed_as is 'deform5x5' .*accepted: deform3x3"),
        ({"token_grid": "output"}, "token_grid is 'output'.*accepted: input"),
        ({"fold_padding": {"norm": None}}, "fold_padding has the entry"),
        ({"role": {"fc1": "mlp"}}, r"no field 'role' \(did you mean 'roles'\?\); accepted: roles"),
    ],
)
def test_a_wrong_declaration_is_an_error_that_names_it(fields, message):
    with pytest.raises(ConfigError, match=message):
        Declaration(**fields)


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        (Declaration(roles={"c": "mlp"}), "roles of Pair: it has no child 'c'; accepted: norm, a"),
        (Declaration(roles={"training": "mlp"}), "it has no child 'training'"),
        (Declaration(fold_padding={"nrom": "pad"}), "no module 'nrom' .did you mean 'norm'"),
        (Declaration(fold_padding={"norm": "fill"}), r"register_buffer\('fill', None\)"),
    ],
)
def test_names_that_a_module_lacks_are_errors(declaration, message):
    with pytest.raises(ConfigError, match=message):
        declare(Pair(), declaration)
    module = Pair()
    module.quantization = declaration
    with pytest.raises(ConfigError, match=message):
        operators(nn.Sequential(module))


def test_a_child_that_is_none_may_be_declared():
    module = Pair()
    declare(module, Declaration(roles={"a": "mlp", "spare": "mlp"}))
    assert roles_of(module) == {"a": "mlp", "b": "linear"}


def test_a_module_without_a_declaration_has_the_empty_one():
    assert declaration_of(nn.Linear(2, 2)) == Declaration()
    module = nn.Linear(2, 2)
    module.quantization = "int8"  # an attribute of a foreign library
    assert declaration_of(module) == Declaration()


def test_a_dict_in_place_of_a_declaration_is_an_error():
    module = Pair()
    module.quantization = {"a": "mlp"}
    with pytest.raises(ConfigError, match=r"quantization of Pair is a dict; write .*Declaration"):
        operators(module)


def test_declare_takes_a_module_and_a_declaration():
    with pytest.raises(ConfigError, match="Pair, dict"):
        declare(Pair(), {"a": "mlp"})
    with pytest.raises(ConfigError, match="accepted: a torch"):
        declare("model", Declaration())


def test_an_instance_goes_before_its_class_and_a_subclass_before_its_parent():
    class Declared(Pair):
        quantization = Declaration(roles={"a": "attention"})

    class Other(Declared):
        quantization = Declaration(roles={"b": "mlp"})

    assert roles_of(Declared()) == {"a": "attention", "b": "linear"}
    assert roles_of(Other()) == {"a": "linear", "b": "mlp"}
    module = Declared()
    declare(module, Declaration(roles={"a": "mlp"}))
    assert roles_of(module)["a"] == "mlp" and roles_of(Declared())["a"] == "attention"


def test_a_wrapper_does_not_answer_for_what_it_wraps():
    module = Pair()
    declare(module, Declaration(roles={"a": "mlp"}, fold_padding={"norm": "pad"}))
    assert roles_of(torch.compile(module)) == {"_orig_mod.a": "mlp", "_orig_mod.b": "linear"}


def test_a_declaration_keeps_its_own_names_and_travels_with_the_model():
    roles = {"a": "mlp"}
    module = Pair()
    declare(module, Declaration(roles=roles))
    roles["a"] = "attention"
    assert declaration_of(module).roles == {"a": "mlp"}
    assert declaration_of(copy.deepcopy(module)) == declaration_of(module)
    assert pickle.loads(pickle.dumps(module.quantization)) == module.quantization


@pytest.mark.parametrize("name", list_models())
def test_every_registered_model_has_what_it_declares(name):
    try:
        check_installed(name)
    except UnsupportedError as error:
        pytest.skip(str(error))
    model = build_model(name, empty=True)
    declared = [check_declaration(module) for module in model.modules()]
    assert any(each.roles for each in declared)


@pytest.mark.parametrize("name", ["cfrn", "escnet", "escnet-v2"])
def test_declared_children_are_there_in_some_instance(name):
    """A child that is None everywhere would be a name that means nothing."""
    seen, named = set(), set()
    for module in build_model(name, empty=True).modules():
        for child in declaration_of(module).roles:
            named.add((type(module), child))
            if getattr(module, child) is not None:
                seen.add((type(module), child))
    assert named and seen == named


def test_the_words_are_those_of_the_readers():
    assert config.ROLES == ROLES
    assert set(EXECUTORS) == set(COMPUTABLE)
    assert FUSIBLE == (GATE,)


def test_the_plan_sees_declared_roles():
    model = small_net()
    declare(model.mlp, Declaration(roles={"fc1": "attention"}))
    assert roles_of(model)["mlp.fc1"] == "attention"
    assert roles_of(small_net())["mlp.fc1"] == "mlp"


class Gate(nn.Module):
    def forward(self, x):
        a, b = x.chunk(2, dim=1)
        return nn.functional.gelu(a) * b


@pytest.mark.parametrize("declared", [False, True])
def test_trace_and_engine_see_what_may_be_fused(declared):
    model = nn.Sequential(nn.Conv2d(8, 8, 3, groups=8), Gate(), nn.Conv2d(4, 1, 1))
    if declared:
        declare(model[1], Declaration(fused_as="gated_gelu"))
    followers = trace(model, torch.randn(1, 8, 6, 6)).followers
    assert followers == ({"0": "1"} if declared else {})
    assert activation_of((model[1],)) == ("gated_gelu" if declared else "none")


@pytest.mark.parametrize("declared", [False, True])
def test_the_engine_sees_float_operators(declared):
    model = nn.Sequential(Pair())
    if declared:
        declare(model[0], Declaration(computed_as="deform3x3"))
    assert list(float_operators(model)) == (["0"] if declared else [])


@pytest.mark.parametrize("declared", [False, True])
def test_folding_sees_padding(declared):
    model = nn.Sequential(Pair())
    if declared:
        declare(model[0], Declaration(fold_padding={"norm": "pad"}))
    found = list(padding_declarations(model, "0.norm"))
    assert found == ([(model[0], "pad")] if declared else [])


class Opaque(nn.Module):
    def forward(self, x):
        return torch.fft.ifft2(torch.fft.fft2(x)).real


@pytest.mark.parametrize("declared", [False, True])
def test_the_diagnosis_sees_token_grids(declared):
    model = nn.Sequential(nn.Conv2d(3, 4, 2, stride=2), Opaque(), nn.Conv2d(4, 1, 1))
    if declared:
        declare(model[1], Declaration(token_grid="input"))
    maps = token_maps(model, torch.randn(1, 3, 8, 8))
    assert maps.unmapped == ([] if declared else ["2"])


def test_the_package_exports_the_protocol():
    assert codtdq.Declaration is Declaration and codtdq.declare is declare
