"""Deformable convolutions, which stay float: the engine computes what torch computes."""

import copy

import pytest
import torch
from engine_cases import SETS, distance, instruction_set, needs_engine

import codtdq
from codtdq.engine import cpu as native
from codtdq.engine import use_backend
from codtdq.engine.float_operators import DeformExecutor, float_operators
from codtdq.models.deform import DeformConv2d
from small_nets import simulate

pytestmark = needs_engine


def case(channels=19, outputs=7, height=11, width=6, batch=2, reach=3.0):
    torch.manual_seed(channels)
    module = DeformConv2d(channels, outputs).eval()
    torch.nn.init.normal_(module.bias)
    x = torch.randn(batch, channels, height, width)
    return module, x, reach * torch.randn(batch, 18, height, width)


def run(module, *inputs):
    with torch.no_grad():
        return module(*inputs)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("channels", [1, 19, 64])
@pytest.mark.parametrize("height", [3, 11])
def test_it_equals_the_module_in_any_layout(name, channels, height):
    module, x, offsets = case(channels, height=height)  # one short block, or several
    expected = run(copy.deepcopy(module).double(), x.double(), offsets.double())
    with instruction_set(name):
        executor = DeformExecutor(module)
        last = torch.channels_last
        for given in (x, x.contiguous(memory_format=last)):
            for moved in (offsets, offsets.contiguous(memory_format=last)):
                assert distance(run(executor, given, moved), expected) < 2e-5


def test_points_outside_and_nowhere_read_zeros():
    module, x, offsets = case(reach=0.0)
    offsets[:, 0] = 1e30  # dy of the first point
    offsets[:, 2] = -torch.inf
    offsets[:, 4] = torch.nan
    cut = copy.deepcopy(module)
    with torch.no_grad():
        cut.weight.view(7, 19, 9)[:, :, :3] = 0
    expected = run(cut, x, torch.zeros_like(offsets))
    assert distance(run(DeformExecutor(module), x, offsets), expected) < 2e-6


@pytest.mark.parametrize("outputs", [1, 16, 70])
def test_every_number_of_threads_gives_the_same_bits(outputs):
    module, x, offsets = case(32, outputs, 40, 41)
    executor, before = DeformExecutor(module), torch.get_num_threads()
    found = []
    for threads in (1, 2, 3, 4, 7):
        torch.set_num_threads(threads)
        found.append(run(executor, x, offsets))
    torch.set_num_threads(before)
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_only_what_needs_torch_goes_to_torch():
    module, x, offsets = case()
    executor = DeformExecutor(module)
    assert executor(x.double(), offsets.double()) is None
    assert executor(x.clone().requires_grad_(), offsets) is None
    assert executor(x, offsets) is not None
    with native.disabled():
        assert executor(x, offsets) is None


def test_a_backend_takes_them_and_gives_them_back():
    model = simulate(codtdq.create_model("escnet-small").eval(), "cod-tdq-guarded")
    names = tuple(float_operators(model))
    assert names and all(model.get_submodule(name).executor is None for name in names)
    record = use_backend(model, "cpu")
    assert record.float_operators == names and not set(names) & set(record.native)
    assert all(model.get_submodule(name).executor is not None for name in names)
    assert record.to_dict()["float_operators"] == list(names)
    use_backend(model, "reference")
    assert all(model.get_submodule(name).executor is None for name in names)
