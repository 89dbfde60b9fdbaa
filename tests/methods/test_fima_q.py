"""FIMA-Q: the searched start, the Fisher loss, and the reconstruction that it drives."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import codtdq
from codtdq.errors import ConfigError
from codtdq.methods import apply_method, method_info
from codtdq.methods.rivals import fima_q
from codtdq.methods.rivals.fima_fisher import (
    DivergenceLoss,
    FisherLoss,
    RowMeans,
    by_channel,
    divergence,
    output_logits,
)
from codtdq.methods.rivals.fima_init import (
    Windows,
    candidate_grids,
    collect_windows,
    fold_norms,
    search_site,
    tensor_search,
)
from codtdq.methods.rivals.fima_q import FimaQConfig
from codtdq.methods.workbench import Workbench
from codtdq.numerics.affine import code_limits, fake_shifted
from small_nets import images, small_net

LIMITS = code_limits(4, False)


def batches(count=4, size=2):
    return [images(size, seed=10 + i) for i in range(count)]


def bench_of(model=None, **changes):
    model = small_net() if model is None else model
    return Workbench(model.eval().requires_grad_(False), FimaQConfig(**changes), batches())


def error(model, reference, x):
    with torch.no_grad():
        return float((model(x) - reference(x)).square().mean())


class TestCandidates:
    def test_128_grids_from_the_inner_range_to_the_full_one(self):
        rows = torch.linspace(-1, 3, 401).view(1, -1)
        step, zero = candidate_grids(rows, 4)
        assert step.shape == zero.shape == (1, 128)
        assert sorted(set(zero.flatten().tolist())) == list(range(16))
        assert step.min() == pytest.approx(0.8 * 4 / 15, rel=1e-3)
        assert step.max() == pytest.approx(4 / 15, rel=1e-5)
        assert len({round(s, 5) for s in step.flatten().tolist()}) == 8

    def test_search_is_the_best_of_all(self):
        rows = torch.randn(3, 200, generator=torch.Generator().manual_seed(0)) + 0.5
        step, zero = tensor_search(rows, 4)
        chosen = (fake_shifted(rows, step, zero, *LIMITS) - rows).square().mean(1)
        steps, zeros = candidate_grids(rows, 4)
        for p in range(128):
            grid = steps[:, p : p + 1], zeros[:, p : p + 1]
            other = (fake_shifted(rows, *grid, *LIMITS) - rows).square().mean(1)
            assert bool((chosen <= other).all())

    def test_eight_bits_are_much_finer(self):
        rows = torch.randn(4, 500, generator=torch.Generator().manual_seed(0)) - 1
        losses = {}
        for bits in (4, 8):
            step, zero = tensor_search(rows, bits)
            hat = fake_shifted(rows, step, zero, *code_limits(bits, False))
            losses[bits] = float((hat - rows).square().mean())
        assert losses[8] < losses[4] / 50

    def test_constant_and_one_sided_rows(self):
        rows = torch.stack([torch.zeros(50), torch.full((50,), 5.0), torch.linspace(4, 5, 50)])
        step, zero = tensor_search(rows, 4)
        hat = fake_shifted(rows, step, zero, *LIMITS)
        assert bool(hat.isfinite().all())
        assert bool(((hat - rows).abs() <= 0.2).all())  # zero is in the range: 5 / 15 wide levels


class TestStart:
    def test_windows_reproduce_every_operator(self):
        """Groups, padding, stride and token order: sampled products are values of the output."""
        bench = bench_of()
        seen = {}
        for site in bench.sites:
            site.module.register_forward_hook(
                lambda m, a, y, name=site.name: seen.setdefault(name, []).append(y)
            )
        for name, windows in collect_windows(bench, 8).items():
            site = bench.site(name)
            x = windows.stacked(name)
            w = site.float_weight.flatten(1).unflatten(0, (len(x), -1))
            y = (x @ w.transpose(1, 2)).transpose(0, 1).flatten(1)
            if site.module.bias is not None:
                y = y + site.module.bias
            outputs = torch.cat(
                [
                    o.flatten(0, 1)
                    if o.shape[-1] == y.shape[1] and o.ndim == 3
                    else o.transpose(0, 1).flatten(1).T
                    for o in seen[name]
                ]
            )
            assert (y[:8, None] - outputs).abs().amax(2).amin(1).max() < 1e-4, name

    def test_rounds_by_output_error_help(self):
        bench = bench_of()
        kept = collect_windows(bench, 8)
        for name in ("mlp.fc2", "depthwise", "mix"):
            site, losses = bench.site(name), []
            x = kept[name].stacked(name)
            y = x @ site.float_weight.flatten(1).unflatten(0, (len(x), -1)).transpose(1, 2)
            for rounds in (0, 3):
                inputs, weight = search_site(site, kept[name], rounds)
                w = weight.dequantize().flatten(1).unflatten(0, (len(x), -1))
                losses.append(float((inputs(x) @ w.transpose(1, 2) - y).square().mean()))
            assert losses[1] < losses[0]

    def test_fold_keeps_the_function_and_levels_the_channels(self):
        model = small_net()
        with torch.no_grad():
            model.norm1.weight[:4] *= 20  # outlier channels
        reference = copy.deepcopy(model)
        bench = bench_of(model)
        ratios = fold_norms(bench, 8)
        assert set(ratios) == {"norm1", "norm2"} and ratios["norm1"] > 5
        x = images(3, seed=99)
        with torch.no_grad():
            assert torch.allclose(bench.model(x), reference(x), rtol=1e-4, atol=1e-4)
        spread = collect_windows(bench, 8)["attn.qkv"].stacked("attn.qkv")[0].std(0)
        assert spread.max() / spread.min() < 5

    def test_folded_grid_has_the_codes_of_the_channel_grids(self):
        """x' on (s~, z~) is x on (s, z), channel by channel, for an integer z~."""
        g = torch.Generator().manual_seed(0)
        x = torch.randn(100, 6, generator=g) * torch.tensor([1, 2, 3, 0.5, 9, 1])
        step, zero = (v.squeeze(1) for v in tensor_search(x.T.contiguous(), 4))
        mean_step, mean_zero = step.mean(), zero.mean().round()
        ratio, shift = step / mean_step, -step * (zero - mean_zero)
        folded = (x - shift) / ratio
        a = fake_shifted(x, step, zero, *LIMITS)
        b = fake_shifted(folded, mean_step, mean_zero, *LIMITS) * ratio + shift
        assert torch.allclose(a, b, atol=1e-5)

    def test_exact_extremes_are_candidates(self):
        windows = Windows(low=-2.0, high=6.0, parts=[torch.zeros(1, 4, 48)])
        site = bench_of().site("attn.proj")
        inputs, _ = search_site(site, windows, 0)
        assert bool(inputs.step.isfinite().all())


class TestFisherLoss:
    def rows(self, n=30, seed=0):
        g = torch.Generator().manual_seed(seed)
        return torch.rand(n, generator=g), torch.rand(n, generator=g)

    def outputs(self, seed=0):
        g = torch.Generator().manual_seed(seed)
        return torch.randn(4, 5, 6, generator=g), torch.randn(4, 5, 6, generator=g)

    @pytest.mark.parametrize("pooled", [False, True])
    def test_starts_at_two_after_every_refresh(self, pooled):
        loss = FisherLoss(pooled=pooled)
        for seed in range(3):
            loss.refresh(*self.rows(6 if pooled else 30, seed))
            assert float(loss(*self.outputs(seed))) == 2.0
            z_hat, z = self.outputs(seed)
            half = loss(z + 0.5 * (z_hat - z), z)  # both parts are quadratic
            assert float(half) == pytest.approx(0.5, rel=1e-5)

    def test_formulas(self):
        loss = FisherLoss()
        rows = [self.rows(seed=s) for s in range(3)]
        for pair in rows:
            loss.refresh(*pair)
        z_hat, z = self.outputs()
        low_rank, diagonal = loss.parts(z_hat, z)
        gradients = torch.stack([g for g, _ in rows]).double()
        deltas = torch.stack([d for _, d in rows]).double()
        expected_r, expected_d = [], []
        for one in (z_hat - z).flatten(1).double():
            a = one.abs() @ gradients.T
            expected_r.append(a @ torch.linalg.inv(deltas @ deltas.T) @ a)
            expected_d.append((one.square() * gradients.mean(0)).mean())
        assert float(low_rank) == pytest.approx(float(sum(expected_r) / 4), rel=1e-3)
        assert float(diagonal) == pytest.approx(float(sum(expected_d) / 4), rel=1e-5)

    def test_rank_one_needs_no_inversion(self, monkeypatch):
        monkeypatch.setattr(torch.linalg, "inv", lambda *a: pytest.fail("inverted"))
        loss = FisherLoss()
        gradient, delta = self.rows()
        loss.refresh(gradient, delta)
        z_hat, z = self.outputs()
        a = (z_hat - z).abs().flatten(1) @ gradient
        expected = float((a.square() / delta.square().sum()).mean())
        assert float(loss.parts(z_hat, z)[0]) == pytest.approx(expected, rel=1e-5)

    def test_equal_rows_are_regularised(self):
        loss = FisherLoss()
        pair = self.rows()
        for _ in range(4):
            loss.refresh(*pair)
        z_hat, z = self.outputs()
        value = loss(z_hat.requires_grad_(), z)
        (slope,) = torch.autograd.grad(value, z_hat)
        assert float(value.detach()) == pytest.approx(2.0) and bool(slope.isfinite().all())

    def test_output_without_influence_or_error(self):
        loss = FisherLoss()
        loss.refresh(torch.zeros(30), torch.zeros(30))
        z_hat, z = self.outputs()
        assert float(loss(z_hat, z)) == 2.0
        loss.refresh(torch.zeros(30), torch.zeros(30))
        assert float(loss(z, z)) == 0.0

    def test_rows_are_bounded(self):
        means = RowMeans(values=100)
        for _ in range(3):
            means.add(torch.ones(2, 7, 20, 20), -2 * torch.ones(2, 7, 20, 20))
        gradient, delta = means.rows()
        assert means.pooled
        assert torch.equal(gradient, torch.ones(7)) and torch.equal(delta, torch.full((7,), 2.0))

    def test_outputs_of_two_shapes_meet_in_their_channels(self):
        means = RowMeans(values=10_000)
        means.add(torch.ones(1, 3, 4, 4), torch.ones(1, 3, 4, 4))
        assert not means.pooled
        means.add(3 * torch.ones(1, 3, 8, 8), torch.ones(1, 3, 8, 8))
        assert means.pooled and torch.equal(means.rows()[0], torch.full((3,), 2.0))

    def test_channels(self):
        assert by_channel(torch.zeros(2, 3, 4, 5)).shape == (2, 3)
        assert by_channel(torch.zeros(2, 9, 5)).shape == (2, 5)
        assert by_channel(torch.zeros(2, 5)).shape == (2, 5)


class TestDivergence:
    def test_bernoulli(self):
        p, q = torch.tensor(0.3), torch.tensor(0.6)
        value = divergence(20 * q.logit().view(1, 1, 1, 1), 20 * p.logit().view(1, 1, 1, 1))
        expected = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
        assert float(value) == pytest.approx(float(expected), rel=1e-4)

    def test_classes(self):
        a, b = torch.randn(2, 5, 3, 3), torch.randn(2, 5, 3, 3)
        p, q = (b / 20).softmax(1), (a / 20).softmax(1)
        expected = (p * (p / q).log()).sum(1).mean()
        assert float(divergence(a, b)) == pytest.approx(float(expected), rel=1e-3)

    def test_gradient_is_linear_in_the_error(self):
        """g ~ F delta: half the error, half the gradient. A squared gradient would be a quarter."""
        target = torch.randn(1, 1, 6, 6)
        slopes = []
        for size in (0.02, 0.01):
            logits = (target + size).requires_grad_()
            (slope,) = torch.autograd.grad(divergence(logits, target), logits)
            slopes.append(slope)
        assert torch.allclose(slopes[0], 2 * slopes[1], rtol=0.02)

    def test_head_loss_starts_at_two(self):
        loss = DivergenceLoss()
        target = torch.randn(2, 1, 4, 4)
        assert float(loss(target + 1, target)) == 2.0
        assert float(loss(target + 0.1, target)) < 0.1

    def test_declared_logits(self):
        model = nn.Identity()
        x = torch.zeros(1)
        assert output_logits(model, [x, x + 1]) is x
        model.info = type("Info", (), {"mask_logits": staticmethod(lambda out: out[1])})
        assert float(output_logits(model, [x, x + 1])) == 1.0


TINY = {"steps": 100, "rank": 2, "fisher_images": 4}


@pytest.fixture(scope="module")
def runs():
    """One small reconstruction, watched."""
    watched = {}
    original = fima_q.FisherReconstruction.run

    def run(self):
        original(self)
        watched["losses"], watched["reports"] = self.first_losses, self._engine.reports

    fima_q.FisherReconstruction.run = run
    try:
        model = small_net()
        watched["float"] = model
        watched["start"] = apply_method(model, "fima-q-init", batches())
        watched["final"] = apply_method(model, "fima-q", batches(), changes=TINY)
    finally:
        fima_q.FisherReconstruction.run = original
    return watched


class TestReconstruction:
    def test_loss_is_two_at_every_refresh(self, runs):
        reports = runs["reports"]
        # rank 2: two refreshes per block, except for the head, which learns by KL itself
        assert runs["losses"] == [2.0] * (2 * len(reports) - 1)

    def test_rounding_hardens_and_block_losses_fall(self, runs):
        reports = runs["reports"]
        kept = [r for r in reports if r.kept]
        assert len(kept) >= len(reports) / 2
        for report in kept:
            assert report.after < report.before
        assert max(r.undecided for r in reports) < 0.2  # of the smallest blocks
        count = {
            "stem": 1296,
            "depthwise": 432,
            "attn": 9216,
            "mlp": 18432,
            "mix": 6912,
            "head": 48,
        }
        undecided = sum(r.undecided * count[r.name] for r in reports)
        assert undecided / sum(count.values()) < 0.01

    def test_beats_its_start(self, runs):
        x = torch.cat(batches())
        after, before = (error(runs[k], runs["float"], x) for k in ("final", "start"))
        assert after < before

    def test_record(self, runs):
        record = runs["final"].quant_record
        assert record.steps == 100 * len(runs["reports"])
        assert record.notes["fisher"] == {"rank": 2, "images": 4, "without_gradient": []}
        assert record.bits["activation"] < 4.2 and runs["start"].quant_record.steps == 0
        assert method_info("fima-q").gradients and not method_info("fima-q-init").gradients

    def test_rank_that_does_not_divide_the_steps(self):
        seen = []
        original = FisherLoss.refresh

        class Counting(FisherLoss):
            def refresh(self, *rows):
                seen.append(self)
                original(self, *rows)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fima_q, "FisherLoss", Counting)
            changes = {"steps": 7, "rank": 3, "fisher_images": 1, "init_rounds": 0}
            apply_method(small_net(), "fima-q", batches(1), changes=changes)
        assert max(seen.count(loss) for loss in seen) == 3

    def test_saved_and_loaded(self, runs, tmp_path):
        codtdq.save(runs["final"], tmp_path / "q")
        loaded = codtdq.load(tmp_path / "q", model=small_net(seed=3), backend="reference")
        x = images(3, seed=5)
        with torch.no_grad():
            assert torch.equal(loaded(x), runs["final"](x))

    def test_resumes(self, runs, tmp_path):
        changes = {**TINY, "steps": 5, "rank": 1}
        first = apply_method(small_net(), "fima-q", batches(), changes=changes, state_dir=tmp_path)
        done = sorted(tmp_path.rglob("*.safetensors"))
        done[-1].unlink()
        again = apply_method(small_net(), "fima-q", batches(), changes=changes, state_dir=tmp_path)
        x = images(3, seed=5)
        with torch.no_grad():
            assert torch.equal(first(x), again(x))

    def test_eight_bits(self):
        model = small_net()
        changes = {"weight_bits": 8, "act_bits": 8, "steps": 20}
        x = torch.cat(batches())
        with torch.no_grad():
            signal = float(model(x).square().mean())
        for name in ("fima-q", "fima-q-init"):
            quantized = apply_method(model, name, batches(), changes=changes)
            assert error(quantized, model, x) < signal / 100  # 20 dB

    def test_one_side_only(self):
        model, x = small_net(), torch.cat(batches())
        losses = {}
        for side in ("weight_bits", "act_bits"):
            changes = {side: None, "steps": 5}
            losses[side] = error(
                apply_method(model, "fima-q", batches(), changes=changes), model, x
            )
        both = error(apply_method(model, "fima-q-init", batches()), model, x)
        assert 0 < losses["weight_bits"] < both and 0 < losses["act_bits"] < both

    def test_in_place_readers_and_unused_outputs(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 1, 1)
                self.side = nn.Conv2d(8, 1, 1)

            def forward(self, x):
                x = self.a(x)
                x = F.relu_(x)
                return F.interpolate(self.b(x), scale_factor=2), self.side(x)

        with torch.random.fork_rng():
            torch.manual_seed(0)
            net = Net().eval()
        changes = {"steps": 5}
        quantized = apply_method(net, "fima-q", batches(), changes=changes)
        assert quantized.quant_record.notes["fisher"]["without_gradient"] == ["side"]

    def test_bad_numbers(self):
        with pytest.raises(ConfigError, match="rank is 0"):
            FimaQConfig(rank=0)
