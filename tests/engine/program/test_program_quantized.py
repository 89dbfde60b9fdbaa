"""Quantized operators in programs: the bits of the eager executors, at any number of threads."""

import pytest
import torch
from program_cases import distance, tensors
from torch import nn

import codtdq
from codtdq.engine import cpu
from codtdq.engine.cpu import library
from codtdq.engine.program.program import Program
from codtdq.operators.quantized import quant_operators

pytestmark = pytest.mark.skipif(cpu.unavailable_reason() is not None, reason="no native engine")
METHODS = ("cod-tdq", "cod-tdq-guarded", "cod-tdq-plus")


class Net(nn.Module):
    """Linear, convolutions of all kinds, and what engines fuse behind them."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32))
        self.act = nn.ReLU()
        self.deep = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.grouped = nn.Conv2d(32, 64, 3, padding=1, groups=2)
        self.point = nn.Conv2d(64, 32, 1)
        self.norm = nn.LayerNorm(32)
        self.q, self.k = nn.Linear(32, 32), nn.Linear(32, 32)
        self.wide, self.gelu, self.narrow = nn.Linear(32, 96), nn.GELU(), nn.Linear(96, 32)

    def forward(self, image):
        x = self.act(self.stem(image))
        x = self.point(self.grouped(x + self.deep(x)))
        tokens = self.norm(x.flatten(2).transpose(1, 2))
        tokens = tokens + self.q(tokens) * torch.sigmoid(self.k(tokens))
        tokens = tokens + self.narrow(self.gelu(self.wide(tokens)))
        return {"tokens": tokens, "maps": x}


@pytest.fixture(scope="module", params=METHODS)
def model(request):
    torch.manual_seed(0)
    images = [torch.randn(1, 3, 32, 32) for _ in range(2)]
    quantized = codtdq.quantize(Net().eval(), request.param, calibration=images)
    codtdq.use_backend(quantized, "cpu", example=images[0], capture=False)
    return quantized


def inputs_of(model, x):
    """What every operator reads and gives, eagerly."""
    seen = {}

    def keep(name):
        def hook(module, inputs, output):
            seen[name] = (inputs[0].clone(), output.clone())

        return hook

    hooks = [one.register_forward_hook(keep(n)) for n, one in quant_operators(model).items()]
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    return seen


@pytest.mark.parametrize("batch", [1, 3])
def test_operators_give_the_same_bits(model, batch):
    x = torch.randn(batch, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    seen = inputs_of(model, x)
    assert len(seen) == len(codtdq.backend_of(model).native) == 8
    for name, (given, wanted) in seen.items():
        program = Program(model.get_submodule(name), (given,))
        assert any(kind.startswith(("carrier", "chain")) for kind in program.kinds)
        assert torch.equal(program(given), wanted), name


@pytest.mark.parametrize("batch", [1, 2])
def test_the_whole_network_agrees(model, batch):
    x = torch.randn(batch, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        wanted = model(x)
    found = Program(model, (x,))(x)
    # a rounding of the float interior may move a code, rarely
    assert distance(found, wanted) < 0.1
    for a, b in zip(tensors(found), tensors(wanted)):
        assert (a - b).abs().mean() < 2e-3 * b.abs().mean()


def test_threads_do_not_matter(model):
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(3))
    program, threads, found = Program(model, (x,)), torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(tensors(program(x)))
    finally:
        torch.set_num_threads(threads)
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], others))


def test_readers_of_one_value_share_carriers(model):
    x = torch.randn(1, 3, 32, 32)
    kinds = Program(model, (x,), passes=()).kinds
    carried = sum(kind.startswith("carry") for kind in kinds)
    products = sum(kind.startswith("carrier") for kind in kinds)
    assert products == 9  # a grouped convolution is one product per group
    assert carried in (7, 8)  # q and k read the same tokens; cod-tdq-plus may transform them


@pytest.mark.slow
@pytest.mark.parametrize("method", ("cod-tdq", "cod-tdq-plus"))
@pytest.mark.parametrize("name", ["cfrn-small", "escnet-small"])
def test_registered_models_are_captured(name, method):
    images = [torch.randn(1, 3, 64, 64)]
    quantized = codtdq.quantize(codtdq.create_model(name), method, calibration=images)
    with torch.inference_mode():
        quantized(images[0])
    record = codtdq.backend_of(quantized)
    assert record.uncaptured is None and len(record.programs) == 1


def test_other_sets_need_another_program(model):
    x = torch.randn(1, 3, 32, 32)
    used, others = library.instruction_set(), library.available_sets()
    if len(others) < 2:
        pytest.skip("one instruction set only")
    program = Program(model, (x,))
    try:
        library.select(next(one for one in others if one != used))
        with pytest.raises(codtdq.CodtdqError, match="compile it again"):
            program(x)
    finally:
        library.select(used)
