"""use_backend captures programs, and knows when they do not serve."""

import copy
import pickle
import threading

import pytest
import torch
from program_cases import tensors
from torch import nn

import codtdq
from codtdq.engine import cpu
from codtdq.engine.program.capture import SHAPES, SWITCH, captured_of
from codtdq.models.swin import WindowAttention
from codtdq.operators.quantized import quant_operators

pytestmark = pytest.mark.skipif(cpu.unavailable_reason() is not None, reason="no native engine")


class Net(nn.Module):
    def __init__(self, branch=False):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.linear, self.branch = nn.Linear(32, 16), branch

    def forward(self, x, scale=1.0):
        y = torch.relu(self.norm(self.conv(x)))
        if self.branch and y.sum() > 1e9:
            y = -y
        return self.linear(y.permute(0, 2, 3, 1)) * scale, y.mean()


@pytest.fixture
def model():
    torch.manual_seed(0)
    return codtdq.quantize(Net().eval(), "cod-tdq")


X = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def run(model, x=X, **settings):
    with torch.no_grad():
        return model(x, **settings)


def count(model):
    return len(captured_of(model).programs)


def test_a_call_is_captured_and_recorded(model):
    assert codtdq.backend_of(model).programs == ()
    found = run(model)
    record = codtdq.backend_of(model)
    assert record.uncaptured is None and "2x3x16x16" in record.programs[0]
    assert record.to_dict()["captured"] == list(record.programs)
    assert isinstance(found, tuple) and found[1].shape == ()
    first = [one.clone() for one in found]
    found[0].zero_()  # results are the caller's
    assert all(torch.equal(a, b) for a, b in zip(run(model), first))
    codtdq.use_backend(model, "cpu", capture=False)
    eager = run(model)
    assert captured_of(model) is None
    assert codtdq.backend_of(model).uncaptured == "not asked for"
    assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in zip(eager, first))


def test_shapes_have_programs_of_their_own(model):
    for side in range(8, 8 + SHAPES + 2):
        assert run(model, torch.randn(1, 3, side, side))[0].shape == (1, side, side, 16)
    assert count(model) == SHAPES


def test_strided_inputs_are_read_right(model):
    wanted = run(model)[0]
    assert torch.equal(run(model, X.contiguous(memory_format=torch.channels_last))[0], wanted)


@pytest.mark.parametrize("who", ["hook", "pre-hook", "listener", "training", "gradient", "setting"])
def test_who_needs_the_inside_gets_the_operators(model, who):
    seen = []
    if who == "hook":
        model.linear.register_forward_hook(lambda *given: seen.append(1))
    elif who == "pre-hook":
        model.linear.register_forward_pre_hook(lambda *given: seen.append(1))
    elif who == "listener":
        next(iter(quant_operators(model).values())).listener = lambda *given: seen.append(1)
    elif who == "training":
        model.norm.train()
    if who == "gradient":
        x = X.clone().requires_grad_()
        model(x)[0].sum().backward()
        assert x.grad is not None
    elif who == "setting":
        assert torch.allclose(run(model, scale=2.0)[0], 2 * run(model)[0])
        return
    else:
        run(model)
    assert not captured_of(model).programs
    assert seen or who in ("training", "gradient")


def test_changed_weights_are_seen(model):
    before = run(model)[0]
    with torch.no_grad():
        model.linear.bias.add_(1.0)
    after = run(model)
    assert torch.allclose(after[0], before + 1, atol=1e-5)
    with torch.no_grad():
        model.norm.bias.add_(1.0)
    assert not torch.allclose(run(model)[1], after[1], atol=1e-2)
    after = run(model)
    model.norm = nn.Identity()
    assert not torch.allclose(run(model)[1], after[1], atol=1e-2)


def test_a_model_that_decides_by_values_stays_eager():
    model = codtdq.quantize(Net(branch=True).eval(), "cod-tdq")
    assert run(model)[0].shape == (2, 16, 16, 16)
    assert "depends on values" in codtdq.backend_of(model).uncaptured


def test_copies_capture_for_themselves(model):
    wanted = run(model)[0]
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert captured_of(twin)._model is twin
        assert torch.equal(run(twin)[0], wanted)
        assert count(twin) == 1


def test_threads_share_a_model(model):
    wanted, failed = run(model)[0], []

    def work(seed):
        own = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(seed))
        for _ in range(20):
            if not torch.equal(run(model)[0], wanted) or not torch.equal(
                run(model, own)[0], run(model, own)[0]
            ):
                failed.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and count(model) == 1


def test_the_environment_turns_it_off(monkeypatch):
    monkeypatch.setenv(SWITCH, "0")
    model = codtdq.quantize(Net().eval(), "cod-tdq")
    assert captured_of(model) is None and SWITCH in codtdq.backend_of(model).uncaptured


def test_compile_gives_the_program(model):
    program = codtdq.compile(model, X)
    assert all(torch.equal(a, b) for a, b in zip(tensors(program(X)), tensors(run(model))))
    spent = program.profile(X, runs=2)
    assert set(spent) == set(program.kinds) and all(one > 0 for one in spent.values())
    with pytest.raises(codtdq.CodtdqError, match="this program takes"):
        program(X[:1])
    with pytest.raises(codtdq.CodtdqError, match="training mode"):
        codtdq.compile(Net().train(), X)
    codtdq.use_backend(model, "reference")
    with pytest.raises(codtdq.CodtdqError, match="simulated"):
        codtdq.compile(model, X)


def test_strides_of_axes_of_length_one_may_change():
    """Torch marks a pooled map of a channels-last one as such, in place."""

    class Pooled(nn.Module):
        def forward(self, x):
            x = (2 * x).contiguous(memory_format=torch.channels_last)
            pooled = nn.functional.adaptive_avg_pool2d(x, 1)
            return x + pooled.expand_as(x)

    x = torch.randn(2, 5, 6, 7)
    model = Pooled().eval()
    torch.testing.assert_close(codtdq.compile(model, x)(x), model(x), rtol=1e-5, atol=1e-6)


def test_other_new_strides_are_refused():
    class Turned(nn.Module):
        def forward(self, x):
            return (x + 1).as_strided_((6, 5), (1, 6))

    with pytest.raises(codtdq.CodtdqError, match="as_strided_"):
        codtdq.compile(Turned().eval(), torch.randn(5, 6))


def test_a_captured_network_holds_no_table_twice():
    """Beside the constants of the program, attention keeps no position bias for its own calls."""
    model = codtdq.create_model("cfrn-small")
    size = model.info.input_size
    model = codtdq.quantize(model, "w4a4", backend="cpu")
    run(model, torch.zeros(1, 3, size, size))
    constants = {one.data_ptr() for one in captured_of(model).programs[0].constants}
    layers = [module for module in model.modules() if isinstance(module, WindowAttention)]
    kept = [one._kept_bias[1] for one in layers]
    assert len(layers) == 10
    assert all(one is None or one.data_ptr() in constants for one in kept)
