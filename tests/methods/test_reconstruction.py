"""Block-wise reconstruction: blocks, caches, learned rounding, budgets, resuming."""

import copy
import dataclasses

import pytest
import torch
from torch import nn

from codtdq.errors import CheckpointError, ConfigError
from codtdq.methods.collect import collect_inputs
from codtdq.methods.registry import QuantConfig
from codtdq.methods.rivals.block_learning import Budget, beta_at
from codtdq.methods.rivals.blocks import find_blocks
from codtdq.methods.rivals.learning import DroppingInput, DropPool, FixedInput, LearnedStep, lsq
from codtdq.methods.rivals.reconstruction import BUDGETS, Reconstruction
from codtdq.methods.rivals.soft_rounding import SoftRounding
from codtdq.methods.workbench import Workbench
from codtdq.numerics.affine import code_limits
from codtdq.numerics.straight_through import mixed
from codtdq.operators import quant_operators
from codtdq.schemes.inputs import DynamicToken, FloatInput, Rescaled, StaticUniform
from codtdq.schemes.weights import UniformWeight
from small_nets import images, small_net

SHORT = dataclasses.replace(BUDGETS["fast"], images=8, steps=30)


def bench_of(model=None, **options):
    model = copy.deepcopy(model or small_net()).eval().requires_grad_(False)
    return Workbench(model, QuantConfig(), [images(4), images(4, seed=1)], **options)


def install_all(bench):
    stats = collect_inputs(bench)
    for site in bench.sites:
        seen = stats[site.name]
        grid = StaticUniform.spanning(
            seen.low.amin(0, True), seen.high.amax(0, True), site.act_bits
        )
        bench.install(
            site, inputs=grid, weight=UniformWeight.minmax(site.float_weight, 4, symmetric=False)
        )


def reconstructed(budget=SHORT, model=None, state_dir=None, **options):
    bench = bench_of(model, state_dir=state_dir)
    engine = Reconstruction(bench, budget=budget)
    install_all(bench)
    engine.run(**options)
    return engine


@pytest.fixture(scope="module")
def engine():
    return reconstructed(dataclasses.replace(SHORT, steps=100))


class Strange(nn.Module):
    """Shares an operator, calls one twice, mixes in a per-image guide and a constant table."""

    class Guided(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x, guide, table, scale=1):
            return self.a(x) * guide + self.b(x + table) * scale

    class Sharer(nn.Module):
        def __init__(self, shared):
            super().__init__()
            self.shared, self.own = shared, nn.Linear(8, 8)

        def forward(self, x):
            return self.own(torch.relu_(self.shared(x)))

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(8, 8)

        def forward(self, x):
            return x, self.one(x)

    def __init__(self):
        super().__init__()
        self.pair, self.guided, self.twice = self.Pair(), self.Guided(), nn.Linear(8, 8)
        self.sharer = self.Sharer(nn.Linear(8, 8))
        self.table = nn.Parameter(torch.randn(5, 8))
        self.tokens_first = nn.Linear(8, 8)

    def forward(self, x):
        x = x.flatten(1)[:, :40].view(-1, 5, 8)
        _, x = self.pair(x)
        x = self.guided(x, x[:, :1], self.table, scale=2)
        x = self.twice(x) + self.twice(x[:, :2]).mean(1, keepdim=True)
        x = self.sharer(x) + self.sharer.shared(x)
        return self.tokens_first(x.transpose(0, 1)).transpose(0, 1)


def test_blocks_of_the_small_net():
    blocks = find_blocks(bench_of())
    assert [(b.name, len(b.sites)) for b in blocks] == [
        ("stem", 1),
        ("depthwise", 1),
        ("attn", 2),
        ("mlp", 2),
        ("mix", 1),
        ("head", 1),
    ]
    assert all(b.joinable and b.calls == 1 for b in blocks)
    opened = find_blocks(bench_of(), max_sites=1)
    assert [b.name for b in opened][2:6] == ["attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"]


def test_blocks_of_a_strange_model():
    bench = bench_of(Strange())
    blocks = {b.name: b for b in find_blocks(bench)}
    names = [site.name for block in blocks.values() for site in block.sites]
    assert sorted(names) == sorted(site.name for site in bench.sites)  # each in exactly one
    assert "pair" not in blocks and "pair.one" in blocks  # two outputs
    assert blocks["guided"].shared == (False, False, True)
    assert blocks["twice"].calls == 2
    assert "sharer" not in blocks and blocks["sharer.shared"].calls == 2  # used outside as well
    assert not blocks["tokens_first"].joinable


@pytest.mark.parametrize("memo", [0, 1 << 20])
def test_a_block_sees_what_the_models_give(memo):
    bench = bench_of(Strange())
    engine = Reconstruction(bench, budget=SHORT, memo_bytes=memo)
    install_all(bench)
    seen = {}

    def start(block, data):
        joined = range(data.images) if block.joinable else [0]
        (quant, _), (plain, _), target = data.batch(0, joined)
        seen[block.name] = (quant[0], plain[0], target)

    engine.budget = dataclasses.replace(SHORT, steps=0)
    engine.run(on_start=start)
    batch = torch.cat(engine.items)
    for model, place in ((bench.model, 0), (engine.float_model, 1)):
        for name in ("guided", "sharer.own"):
            found = []
            handle = model.get_submodule(name).register_forward_pre_hook(
                lambda m, args, found=found: found.append(args[0].clone())
            )
            model(batch)
            handle.remove()
            torch.testing.assert_close(seen[name][place], found[0])
    assert len(seen) == len(engine.blocks)


def test_the_cache_keeps_to_its_limit():
    bench = bench_of()
    small = Reconstruction(bench, budget=dataclasses.replace(SHORT, steps=2), cache_bytes=40_000)
    install_all(bench)
    reports = small.run()
    assert all(1 <= report.images < 8 for report in reports if report.name != "head")
    notes = bench.notes["reconstruction"]
    assert (notes["images_asked"], notes["images_given"]) == (8, 8)
    assert notes["images"] == min(report.images for report in reports) < 8
    assert notes["blocks_with_fewer_images"] == sum(report.images < 8 for report in reports) > 0
    assert notes["cache_bytes"] == 40_000


def test_notes_tell_how_the_network_was_cut(engine):
    notes = engine.bench.notes["reconstruction"]
    assert notes["blocks_found"] == len(engine.blocks) == len(engine.reports)
    assert notes["largest_block"] == max(len(block.sites) for block in engine.blocks) > 1
    assert notes["blocks_with_fewer_images"] == 0 and notes["images"] == notes["images_asked"]
    fine = bench_of()
    single = Reconstruction(fine, budget=dataclasses.replace(SHORT, steps=1), max_sites=1)
    install_all(fine)
    single.run()
    assert fine.notes["reconstruction"]["largest_block"] == 1
    assert fine.notes["reconstruction"]["max_sites"] == 1


def test_the_loss_of_blocks_falls_and_rounding_hardens(engine):
    assert sum(r.kept for r in engine.reports) >= 5
    assert sum(r.after for r in engine.reports) < 0.9 * sum(r.before for r in engine.reports)
    assert all(r.undecided < 0.05 for r in engine.reports)
    assert engine.bench.steps == 100 * len(engine.blocks)
    notes = engine.bench.notes["reconstruction"]
    assert notes["steps"] == 100 and notes["images"] == 8 and notes["blocks"] == 6


def test_nothing_learned_or_dropping_remains(engine):
    model = engine.bench.model
    assert not any(
        isinstance(m, DroppingInput | SoftRounding | LearnedStep) for m in model.modules()
    )
    assert not [p for p in model.parameters() if p.requires_grad]
    for sim in quant_operators(model).values():
        assert type(sim.input_scheme) is StaticUniform
        assert not sim.weight.requires_grad
        torch.testing.assert_close(sim.weight, sim.weight_scheme.dequantize())
    assert torch.equal(model(images(2, seed=9)), model(images(2, seed=9)))


def test_the_whole_network_gets_closer(engine):
    bench = bench_of()
    install_all(bench)
    x = images(32, seed=5)
    truth = engine.float_model(x)
    assert (engine.bench.model(x) - truth).square().mean() < (
        bench.model(x) - truth
    ).square().mean()


def test_a_block_that_got_worse_stays_as_installed():
    def upside_down(name, y, target, step):  # learning makes the block worse in its own eyes
        sign = -1 if step < SHORT.steps else 1
        return sign * (y - target).square().mean()

    engine = reconstructed(loss=upside_down)
    bench = bench_of()
    install_all(bench)
    assert not any(r.kept for r in engine.reports)
    assert engine.bench.notes["reconstruction"]["not_kept"] == [b.name for b in engine.blocks]
    assert torch.equal(engine.bench.model(images()), bench.model(images()))


def test_hooks_for_other_losses():
    calls, started = [], []

    def loss(name, y, target, step):
        calls.append((name, step))
        assert y.shape == target.shape and len(engine.images) == y.shape[0]
        return (y - target).abs().mean()

    bench = bench_of()
    engine = Reconstruction(bench, budget=dataclasses.replace(SHORT, steps=3))
    install_all(bench)

    def start(block, data):
        started.append(block.name)

        def change(args, kwargs, output):
            quantized = engine.quantized_output(block, args, kwargs)
            assert not torch.equal(quantized, output)
            leaf = quantized.detach().requires_grad_()
            started.append(leaf)
            return leaf

        with torch.enable_grad(), engine.replacing(block, change) as model:
            model(images()).sum().backward()
        assert started.pop().grad is not None

    engine.run(loss=loss, on_start=start)
    assert started == [b.name for b in engine.blocks]
    assert {("attn", 0), ("attn", 2), ("head", 1)} <= set(calls)


def test_rescaled_inputs_are_learned_in_their_own_domain():
    bench = bench_of()
    engine = Reconstruction(bench, budget=SHORT)
    install_all(bench)
    scale = torch.linspace(0.5, 2, 48)
    site = bench.site("mlp.fc1")
    weight = engine.float_model.mlp.fc1.weight * scale
    inner = site.module.input_scheme
    bench.install(site, inputs=Rescaled(inner, scale=scale), weight=UniformWeight.minmax(weight, 4))
    report = next(r for r in engine.run(weights={site.name: weight}) if r.name == "mlp")
    assert report.kept and report.after < report.before
    assert site.module.input_scheme.kind == "rescaled"
    assert torch.equal(site.module.input_scheme.scale, scale)


def test_float_parts_stay_float():
    bench = bench_of()
    engine = Reconstruction(bench, budget=SHORT)
    for site in bench.sites:
        bench.install(site)
    assert engine.run() == []
    torch.testing.assert_close(bench.model(images()), engine.float_model(images()))
    assert all(
        isinstance(s.input_scheme, FloatInput) for s in quant_operators(bench.model).values()
    )


class Stop(Exception):
    pass


def test_resuming_gives_the_same_result(tmp_path):
    budget = dataclasses.replace(SHORT, steps=10)
    whole = reconstructed(budget)

    def stop_at_mlp(block, data):
        if block.name == "mlp":
            raise Stop

    with pytest.raises(Stop):
        reconstructed(budget, state_dir=tmp_path, on_start=stop_at_mlp)
    assert len(list(tmp_path.rglob("block-*.safetensors"))) == 3
    redone = []
    again = reconstructed(
        budget, state_dir=tmp_path, on_start=lambda block, data: redone.append(block.name)
    )
    assert redone == ["mlp", "mix", "head"]
    assert again.reports == whole.reports and again.bench.steps == whole.bench.steps
    state = whole.bench.model.state_dict()
    assert all(torch.equal(v, state[k]) for k, v in again.bench.model.state_dict().items())
    assert torch.equal(again.bench.model(images()), whole.bench.model(images()))


def test_other_settings_do_not_resume(tmp_path):
    budget = dataclasses.replace(SHORT, steps=2)
    reconstructed(budget, state_dir=tmp_path)
    redone = []
    reconstructed(
        dataclasses.replace(budget, steps=3),
        state_dir=tmp_path,
        on_start=lambda block, data: redone.append(block.name),
    )
    assert len(redone) == 6


def test_a_damaged_state_is_named(tmp_path):
    budget = dataclasses.replace(SHORT, steps=2)
    reconstructed(budget, state_dir=tmp_path)
    path = next(tmp_path.rglob("block-0002.safetensors"))
    path.write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="block-0002"):
        reconstructed(budget, state_dir=tmp_path)


def test_the_engine_must_come_before_installing():
    bench = bench_of()
    install_all(bench)
    with pytest.raises(ConfigError, match="before installing"):
        Reconstruction(bench)


def test_soft_rounding_starts_at_the_weight_and_ends_on_codes():
    weight = torch.randn(6, 10, generator=torch.Generator().manual_seed(0))
    store = UniformWeight.minmax(weight, 4, symmetric=False)
    soft = SoftRounding(weight, store)
    inside = (soft.floors >= 0) & (soft.floors < 15)  # the zero-point was rounded: ends may be cut
    assert inside.float().mean() > 0.8
    torch.testing.assert_close(soft()[inside], weight[inside], atol=2e-4, rtol=1e-3)
    assert torch.equal(soft.hardened().dequantize(), store.dequantize())  # h >= 1/2 is to nearest
    with torch.no_grad():
        soft.logits.fill_(5.0)
    raised = soft.hardened()
    assert torch.equal(raised.codes(), (soft.floors + 1).clamp(0, 15)) and soft.undecided() == 0


@pytest.mark.parametrize("penalty", [None, (0.3, 20.0), (0.3, 2.5)], ids=["none", "start", "late"])
def test_soft_rounding_has_the_gradient_of_the_plain_expression(penalty):
    weight = torch.randn(6, 10, generator=torch.Generator().manual_seed(0))
    soft = SoftRounding(weight, UniformWeight.minmax(weight * 0.8, 4, symmetric=False))
    pull = torch.linspace(-1, 1, 60).view(6, 10)
    with torch.no_grad():
        soft.logits.view(-1)[:4] = torch.tensor([-5.0, 5.0, 0.0, 2.0])  # decided and undecided
    (soft(penalty) * pull).sum().backward()

    logits = soft.logits.detach().clone().requires_grad_()
    up = (torch.sigmoid(logits) * 1.2 - 0.1).clamp(0, 1)
    values = ((soft.floors + up).clamp(0, 15) - soft.zero) * soft.step
    value = (values * pull).sum()
    if penalty is not None:
        value = value + penalty[0] * (1 - (2 * up - 1).abs().pow(penalty[1])).sum()
    value.backward()
    assert torch.equal(soft(), values)
    assert not logits.grad.view(-1)[:2].any() and logits.grad.view(-1)[2:].any()
    torch.testing.assert_close(soft.logits.grad, logits.grad)


def test_beta_falls_after_the_warm_up():
    budget = Budget(images=1, steps=10, batch=1, rounding_rate=1, step_rate=1)
    assert beta_at(0.19, budget) is None
    assert beta_at(0.2, budget) == pytest.approx(20.0) and beta_at(1.0, budget) == pytest.approx(
        2.0
    )
    assert beta_at(0.6, budget) == pytest.approx(11.0)


def plain_lsq(x, step, zero, low, high, keep):
    codes = torch.clamp(x / step + (torch.round(x / step) - x / step).detach() + zero, low, high)
    x_hat = (codes - zero) * step
    return x_hat if keep is None else torch.where(keep > 0, x_hat, x)


@pytest.mark.parametrize("dropping", [False, True], ids=["all", "dropping"])
@pytest.mark.parametrize("size", [1, 5])
def test_lsq_has_the_gradients_of_the_plain_expression(size, dropping):
    x = torch.randn(2, 7, 5, dtype=torch.float64)
    step = torch.full((size,), 0.2, dtype=torch.float64)
    zero = torch.full((size,), 6.0, dtype=torch.float64)
    keep = (torch.rand(2, 7, 5) < 0.5).double() if dropping else None
    results = []
    for function in (lsq, plain_lsq):
        a, s = x.clone().requires_grad_(), step.clone().requires_grad_()
        y = function(a, s, zero, *code_limits(4, False), keep)
        (y * torch.linspace(0, 1, 70, dtype=torch.float64).view_as(y)).sum().backward()
        results.append((y.detach(), a.grad, s.grad))
    assert torch.equal(results[0][0], results[1][0])
    for one, other in zip(*results):
        torch.testing.assert_close(one, other)


def test_dropping_takes_half_of_each():
    pool = DropPool(0.5, torch.Generator().manual_seed(0))
    ones, zeros = torch.ones(100, 100), torch.zeros(100, 100)
    drawn = mixed(ones, zeros, pool.keep(zeros))
    assert 0.45 < float(drawn.mean()) < 0.55 and set(drawn.unique().tolist()) == {0.0, 1.0}
    assert not torch.equal(drawn, mixed(ones, zeros, pool.keep(zeros)))
    assert DropPool(1.0, torch.Generator()).keep(ones) is None and mixed(ones, zeros, None) is ones


def test_schemes_without_anything_to_learn_pass_gradients_on():
    scale = torch.tensor([2.0, 4.0])
    fixed = FixedInput(Rescaled(DynamicToken(4), scale=scale))
    x = torch.randn(1, 3, 2, requires_grad=True)
    y = fixed(x)
    torch.testing.assert_close(y, fixed.fixed(x))
    y.sum().backward()
    torch.testing.assert_close(x.grad, (1 / scale).expand(1, 3, 2))
    torch.testing.assert_close(fixed.plain(x), x / scale)
    assert fixed.frozen() is fixed.fixed
