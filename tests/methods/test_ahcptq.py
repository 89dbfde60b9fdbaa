"""AHCPTQ: hybrid grids, channel groups, and the whole method."""

import pytest
import torch

import codtdq
from codtdq.methods import apply_method
from codtdq.methods.rivals.channel_groups import GroupedUniform, LearnedGroups, grouped, k_means
from codtdq.methods.rivals.hluq import HybridLogUniform, LearnedHybrid
from codtdq.methods.rivals.learning import DroppingInput
from codtdq.operators import quant_operators
from small_nets import images, small_net

CALIBRATION = [images(4), images(4, seed=1)]


def sqnr(model, other, x):
    truth, found = model(x), other(x)
    return 10 * torch.log10(truth.square().sum() / (found - truth).square().sum()).item()


@pytest.fixture(scope="module")
def done():
    return apply_method(small_net(), "ahcptq", CALIBRATION)


def hybrid(bits=4, low=-0.17, high=3.0, rho=0.1, gamma=0.5):
    return HybridLogUniform.spanning(
        torch.tensor([low]), torch.tensor([high]), bits, rho=rho, gamma=gamma
    )


def test_the_hybrid_grid_has_the_worked_values():
    found = hybrid()(torch.linspace(-0.4, 3.5, 200_001).view(1, -1, 1)).unique()
    assert len(found) == 16
    expected = [-0.17, -0.1675, -0.165, -0.1601, -0.1502, -0.1304, -0.0908, -0.0115, 0.147, 0.5274]
    assert found[:10].tolist() == pytest.approx(expected, abs=1e-4)
    assert float(found[-1]) == pytest.approx(2.8098, abs=1e-4)


@pytest.mark.parametrize("rho", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("gamma", [0.125, 0.25, 0.5])
def test_every_hybrid_grid_uses_its_codes_and_keeps_its_levels(rho, gamma):
    grid = hybrid(rho=rho, gamma=gamma)
    values = grid(torch.linspace(-0.4, 5, 200_001).view(1, -1, 1)).unique()
    assert len(values) == 16 and grid.log_levels == 16 * gamma
    torch.testing.assert_close(grid(values.view(1, -1, 1)).flatten(), values)


def test_the_learned_hybrid_grid_has_gradients_and_freezes():
    start = hybrid()
    learned = LearnedHybrid(start)
    x = torch.tensor([-0.5, -0.1, 0.1, 0.6, 2.0, 4.0]).view(1, -1, 1).requires_grad_()
    y = learned(x)
    torch.testing.assert_close(y, start(x))
    y.sum().backward()
    assert x.grad.flatten().tolist() == [0, 1, 1, 1, 1, 0]  # nothing outside the range
    eps = 1e-4  # codes held fixed: the derivative of the levels themselves
    moved = HybridLogUniform(4, 8, low=start.low, threshold=start.threshold + eps, step=start.step)(
        x
    )
    assert float(learned.threshold.grad) == pytest.approx(
        float((moved - y).detach().sum()) / eps, rel=1e-2
    )
    assert float(learned.step.grad) == pytest.approx(1 + 5 + 7)
    with torch.no_grad():
        learned.step.mul_(1.1)
    torch.testing.assert_close(learned.frozen()(x), learned(x))


def test_k_means_finds_clusters_and_leaves_none_empty():
    centres = torch.tensor([[0.0, 0], [5, 0], [0, 5], [5, 5]])
    truth = torch.arange(40) % 4
    points = centres[truth] + 0.1 * torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    group = k_means(points, 4)
    assert len({(int(t), int(g)) for t, g in zip(truth, group)}) == 4
    assert len(k_means(torch.zeros(9, 2), 4).unique()) == 4


def test_steps_and_zero_points_weigh_the_same():
    # zero-points differ by one code everywhere, steps come in two sizes
    step = torch.tensor([0.01, 0.01, 0.05, 0.05] * 4)
    zero = torch.tensor([7.0, 8.0] * 8)
    _, _, group = grouped(step, zero, 4, 4)
    assert len({(float(s), float(z), int(g)) for s, z, g in zip(step, zero, group)}) == 4
    steps, zeros, group = grouped(step, torch.full((16,), 7.0), 2, 4)
    assert sorted(steps.tolist()) == pytest.approx([0.01, 0.05]) and zeros.tolist() == [7.0, 7.0]


def test_a_group_spans_its_channels():
    # two channels far apart on each side of zero, in one group: nothing of either is clipped
    step, zero = torch.tensor([0.1, 0.2, 0.1, 0.2]), torch.tensor([0.0, 15.0, 0.0, 15.0])
    steps, zeros, group = grouped(step, zero, 1, 4)
    assert steps.tolist() == pytest.approx([(1.5 + 3.0) / 15]) and zeros.tolist() == [10.0]
    assert group.tolist() == [0, 0, 0, 0]


def test_groups_shrink_in_stages():
    generator = torch.Generator().manual_seed(0)
    learned = LearnedGroups(torch.rand(48, generator=generator), torch.arange(48.0) % 16, 4)
    counts, changes = [], []
    for share in (0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 0.9):
        changes.append(learned.advance(share))
        counts.append(learned.step.numel())
    assert counts == [48, 48, 32, 32, 16, 8, 4, 4]
    assert changes == [False, False, True, False, True, True, True, False]
    frozen = learned.frozen()
    assert isinstance(frozen, GroupedUniform) and len(frozen.group.unique()) == 4
    x = torch.randn(2, 5, 48, generator=generator)
    torch.testing.assert_close(frozen(x), learned(x))
    unused = LearnedGroups(torch.rand(48, generator=generator), torch.zeros(48), 4)
    assert len(unused.frozen().step) == 4  # also without a single step


def test_inputs_get_their_grids_by_what_made_them(done):
    kinds = {name: sim.input_scheme.kind for name, sim in quant_operators(done).items()}
    assert kinds == {
        "stem": "static-uniform",
        "depthwise": "static-uniform",
        "attn.qkv": "grouped-uniform",
        "attn.proj": "static-uniform",
        "mlp.fc1": "grouped-uniform",
        "mlp.fc2": "hybrid-log-uniform",
        "mix": "static-uniform",
        "head": "static-uniform",
    }
    for name in ("attn.qkv", "mlp.fc1"):
        grid = done.get_submodule(name).input_scheme
        assert grid.step.shape == (4,) and len(grid.group.unique()) == 4
    assert done.quant_record.bits["activation"] == pytest.approx(4.0, abs=0.3)
    assert not any(isinstance(m, DroppingInput) for m in done.modules())


def test_it_is_close_and_learned_something(done):
    kept = done.quant_record.notes["reconstruction"]["kept"]
    assert kept >= 4 and done.quant_record.steps == 600
    assert sqnr(small_net(), done, images(32, seed=7)) > 8


def test_save_and_load(done, tmp_path):
    codtdq.save(done, tmp_path)
    assert torch.equal(codtdq.load(tmp_path, model=small_net())(images()), done(images()))


def test_images_do_not_see_each_other(done):
    x = images(4, seed=2)
    torch.testing.assert_close(done(x)[:1], done(x[:1]), atol=1e-5, rtol=1e-4)


def test_off_and_wide():
    float_model = small_net()
    off = apply_method(
        float_model, "ahcptq", CALIBRATION, changes={"weight_bits": None, "act_bits": None}
    )
    assert torch.equal(off(images()), float_model(images()))
    wide = apply_method(
        float_model, "ahcptq", CALIBRATION, changes={"weight_bits": 8, "act_bits": 8}
    )
    assert sqnr(float_model, wide, images(8, seed=4)) > 20
