"""What every method stands on: the trace, the workbench, the operators, the store."""

import pytest
import torch
from torch import nn

import codtdq
from codtdq.errors import CalibrationError, CheckpointError, ConfigError
from codtdq.methods import apply_method, list_methods, method_info, registry
from codtdq.methods.collect import ROW_VALUES, collect_inputs, initialise_in_order, observe
from codtdq.methods.ranges import percentile_grid, percentile_weight, quantile_rows
from codtdq.methods.registry import register_method
from codtdq.methods.workbench import Workbench
from codtdq.numerics.affine import EPS, code_limits, fake_shifted, grid_of
from codtdq.numerics.straight_through import fake_shifted_ste
from codtdq.operators import QuantOperator, quant_operators
from codtdq.operators.tokens import input_tokens, run_operator
from codtdq.planning import QuantConfig
from codtdq.planning.trace import trace
from codtdq.schemes.inputs import DynamicToken, Rescaled, StaticUniform
from codtdq.schemes.weights import UniformWeight, pack_unsigned, unpack_unsigned
from small_nets import simulate, small_net


def batches(count=3, size=2):
    g = torch.Generator().manual_seed(1)
    return [torch.randn(size, 3, 8, 8, generator=g) for _ in range(count)]


@pytest.fixture
def bench():
    return Workbench(small_net().eval().requires_grad_(False), QuantConfig(), batches())


@pytest.fixture
def plain():
    """A method that does the least: static ranges, plain weights."""
    list_methods()
    name = "plain-for-tests"

    @register_method(
        name,
        title="Plain",
        source="tests",
        evidence="this project",
        ranges="static",
        granularity="per tensor",
    )
    def build(bench):
        stats = collect_inputs(bench)
        for site in bench.sites:
            low, high = stats[site.name].low.amin().view(1), stats[site.name].high.amax().view(1)
            inputs = weight = None
            if site.act_bits:
                inputs = StaticUniform.spanning(low, high, site.act_bits)
            if site.weight_bits:
                weight = percentile_weight(site.float_weight, site.weight_bits)
            bench.install(site, inputs=inputs, weight=weight)

    yield name
    registry._METHODS.pop(name)


class TestTrace:
    def test_norms_know_their_readers(self):
        graph = trace(small_net(), torch.randn(1, 3, 8, 8))
        assert graph.inputs["attn.qkv"].kind == "norm"
        assert graph.inputs["attn.qkv"].name == "norm1"
        assert graph.norms["norm1"].consumers == ["attn.qkv"] and graph.norms["norm1"].exclusive
        assert graph.inputs["mlp.fc2"].kind == "gelu"
        assert graph.inputs["attn.proj"].kind == "attention"
        assert graph.inputs["stem"].kind == "image"
        assert graph.inputs["depthwise"].name == "stem"
        assert not graph.norms["gn"].exclusive  # a table is added to it
        assert graph.order[0] == "stem" and graph.order[-1] == "head"

    def test_shared_inputs_and_other_uses(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.LayerNorm(8), nn.LayerNorm(8)
                self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

            def forward(self, x):
                y = self.a(x)
                z = self.q(y) + self.k(y.reshape(-1, 8)).view_as(y)
                w = self.b(z)
                return self.v(w) + w

        graph = trace(Net(), torch.randn(2, 3, 8))
        assert graph.sharing("q") == ["q", "k"] and graph.norms["a"].exclusive
        assert graph.sharing("v") == ["v"]
        assert not graph.norms["b"].exclusive  # the residual reads it too

    def test_padding_between_norm_and_operator_is_seen(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm, self.fc = nn.LayerNorm(4), nn.Linear(4, 4)

            def forward(self, x):
                return self.fc(nn.functional.pad(self.norm(x), (0, 0, 0, 2)).roll(1, 1))

        graph = trace(Net(), torch.randn(1, 3, 4))
        assert graph.norms["norm"].padded == ["fc"] and graph.inputs["fc"].padded

    @pytest.mark.parametrize("how", [{"value": 1.0}, {"mode": "reflect"}])
    def test_other_padding_is_another_use(self, how):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm, self.fc = nn.LayerNorm(4), nn.Linear(4, 4)

            def forward(self, x):
                y = self.norm(x).transpose(1, 2)
                return self.fc(nn.functional.pad(y, (1, 1), **how).transpose(1, 2))

        assert not trace(Net(), torch.randn(1, 3, 4)).norms["norm"].exclusive

    def test_a_norm_that_is_the_output_is_not_exclusive(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm, self.fc = nn.LayerNorm(4), nn.Linear(4, 4)

            def forward(self, x):
                y = self.norm(x)
                return self.fc(y), y.reshape(-1)

        assert not trace(Net(), torch.randn(1, 3, 4)).norms["norm"].exclusive

    def test_a_reused_operator_has_several_inputs(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm, self.fc = nn.LayerNorm(4), nn.Linear(4, 4)

            def forward(self, x):
                return self.fc(self.fc(self.norm(x)))

        graph = trace(Net(), torch.randn(1, 4))
        assert graph.inputs["fc"].kind == "several" and graph.calls["fc"] == 2
        assert not graph.norms["norm"].exclusive

    def test_tracing_leaves_no_hook_and_the_mode(self):
        net = small_net().train()
        trace(net, torch.randn(1, 3, 8, 8))
        assert net.training
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


class TestGrids:
    @pytest.mark.parametrize("symmetric", [True, False])
    def test_zero_is_always_a_level(self, symmetric):
        low, high = torch.tensor([0.3, -2.0, -1.0, 0.0]), torch.tensor([2.0, -0.5, 3.0, 0.0])
        step, zero = grid_of(low, high, 4, symmetric)
        limits = code_limits(4, symmetric)
        assert torch.equal(fake_shifted(torch.zeros(4), step, zero, *limits), torch.zeros(4))
        assert float(step[3]) == pytest.approx(EPS)  # an empty range

    def test_straight_through_has_values_of_the_plain_one(self):
        x = torch.linspace(-2, 3, 41, requires_grad=True)
        step, zero = torch.tensor(0.25, requires_grad=True), torch.tensor(5.0)
        y = fake_shifted_ste(x, step, zero, 0, 15)
        assert torch.equal(y.detach(), fake_shifted(x.detach(), step.detach(), zero, 0, 15))
        y.sum().backward()
        inside = (y.detach() > -1.25 + 1e-6) & (y.detach() < 2.5 - 1e-6)
        assert bool((x.grad[inside] == 1).all()) and step.grad is not None
        assert float(x.grad[0]) == 0.0  # clipped values get none

    def test_percentile_keeps_the_smallest_error(self):
        rows = torch.randn(3, 4000, generator=torch.Generator().manual_seed(0))
        rows[0, 0] = 400.0
        step, zero = percentile_grid(rows, 4, percentiles=(0.99, 1.0))
        error = (fake_shifted(rows, step, zero, 0, 15) - rows).square().mean(1)
        for p in (0.99, 1.0):
            other = grid_of(quantile_rows(rows, 1 - p), quantile_rows(rows, p), 4, False)
            assert bool(
                ((fake_shifted(rows, *other, 0, 15) - rows).square().mean(1) >= error - 1e-7).all()
            )

    @pytest.mark.parametrize(("bits", "columns"), [(4, 7), (4, 8), (8, 5), (3, 3)])
    def test_packing_round_trip(self, bits, columns):
        codes = torch.randint(0, 2**bits, (5, columns), dtype=torch.uint8)
        packed = pack_unsigned(codes, bits)
        assert torch.equal(unpack_unsigned(packed, columns, bits), codes.float())
        assert packed.shape[1] == (-(-columns // 2) if bits <= 4 else columns)

    @pytest.mark.parametrize("symmetric", [True, False])
    def test_weight_store_is_the_rounded_weight(self, symmetric):
        weight = torch.randn(6, 3, 3, 3)
        store = UniformWeight.minmax(weight, 4, symmetric=symmetric)
        assert store.dequantize().shape == weight.shape
        worst = (store.dequantize() - weight).abs().flatten(1).amax(1)
        assert bool((worst <= 0.51 * store.step.flatten()).all())
        per_row = 4 + (32 + (0 if symmetric else 8)) / 27 + 4 / 27  # codes fill whole bytes
        assert store.bits() == pytest.approx(per_row)


class TestWorkbench:
    def test_sites_follow_the_first_layer_rule(self, bench):
        bits = {site.name: site.act_bits for site in bench.sites}
        assert bits["stem"] == 8 and bits["mlp.fc1"] == 4
        assert {site.kind for site in bench.sites} == {"linear", "conv", "depthwise"}

    def test_statistics_are_exact_and_bounded(self, bench):
        seen = {}

        def see(site, x, y):
            seen.setdefault(site.name, []).append(input_tokens(site.module, x))

        observe(bench, bench.sites, see)
        for name, stats in collect_inputs(bench).items():
            tokens = torch.cat(seen[name])
            assert torch.equal(stats.low, tokens.amin((0, 1)))
            assert torch.equal(stats.image_high, tokens.amax(1))
            assert stats.rows.numel() <= ROW_VALUES
            known = {tuple(row.tolist()) for row in tokens.flatten(0, 1)}
            assert all(tuple(row.tolist()) in known for row in stats.rows)

    def test_images_are_limited(self, bench):
        assert sum(batch.shape[0] for batch in bench.batches(3)) == 3
        assert bench.joint_batch(5).shape[0] == 5 and bench.joint_batch().shape[0] == 6

    def test_in_order_initialisation_sees_quantized_inputs(self, bench):
        seen = {}

        def start(site, x):
            seen[site.name] = x.clone()
            bench.install(site, inputs=DynamicToken(2), weight=None)

        batch = bench.joint_batch(2)
        float_inputs = {}
        observe(bench, bench.sites, lambda s, x, y: float_inputs.setdefault(s.name, x), images=2)
        initialise_in_order(bench, bench.sites, start, batch)
        assert list(seen) == [site.name for site in bench.sites]
        assert torch.equal(seen["stem"], float_inputs["stem"])
        assert not torch.allclose(seen["head"], float_inputs["head"])

    def test_candidates_run_with_the_operators_own_geometry(self, bench):
        def see(site, x, y):
            again = run_operator(site.module, input_tokens(site.module, x), site.float_weight, x)
            if getattr(site.module, "padding_mode", "zeros") == "zeros":
                assert torch.allclose(again, y, atol=1e-5), site.name

        observe(bench, bench.sites, see)

    def test_missing_calibration_is_said(self):
        bench = Workbench(small_net(), QuantConfig(), None)
        with pytest.raises(CalibrationError, match="needs calibration data"):
            _ = bench.sites
        with pytest.raises(CalibrationError, match="no batches"):
            Workbench(small_net(), QuantConfig(), []).first_batch()


class TestApply:
    def test_float_widths_give_the_float_function(self, plain):
        net, x = small_net().eval(), batches(1)[0]
        off = apply_method(net, plain, batches(), changes={"weight_bits": None, "act_bits": None})
        assert len(quant_operators(off)) == 8
        assert torch.allclose(off(x), net(x), atol=1e-5)

    def test_quantized_twice_is_refused(self, plain):
        quantized = apply_method(small_net(), plain, batches())
        with pytest.raises(ConfigError, match="quantized already"):
            apply_method(quantized, plain, batches())

    def test_save_and_load(self, plain, tmp_path):
        quantized, x = apply_method(small_net(), plain, batches()), batches(1)[0]
        codtdq.save(quantized, tmp_path / "m")
        again = codtdq.load(tmp_path / "m", model=small_net(seed=5))
        assert torch.equal(again(x), quantized(x))
        assert again.quant_record == quantized.quant_record
        assert isinstance(again.mlp.fc1, QuantOperator)
        with pytest.raises(CheckpointError, match="not a registered model"):
            codtdq.load(tmp_path / "m")
        with pytest.raises(CheckpointError, match="holds a"):
            codtdq.load(tmp_path / "m", model=nn.Linear(2, 2))

    def test_a_preset_is_a_method(self, tmp_path):
        net, x = small_net().eval(), batches(1)[0]
        quantized = apply_method(net, "cod-tdq", batches())
        assert torch.equal(quantized(x), simulate(net, "cod-tdq")(x))
        codtdq.save(quantized, tmp_path / "m")
        assert torch.equal(
            codtdq.load(tmp_path / "m", model=small_net(3), backend="reference")(x), quantized(x)
        )

    def test_bits_are_measured(self, plain):
        record = apply_method(small_net(), plain, batches()).quant_record
        assert 4.0 < record.bits["weight"] < 6.0
        assert 4.0 < record.bits["activation"] < 4.3  # the first layer has 8
        assert record.calibration_images == 6

    def test_unknown_names_and_fields(self, plain):
        with pytest.raises(ConfigError, match="did you mean 'plain-for-tests'"):
            method_info("plain-for-test")
        with pytest.raises(ConfigError, match="did you mean 'act_bits'"):
            apply_method(small_net(), plain, batches(), changes={"act_bit": 3})
        with pytest.raises(ConfigError, match="act_bits is 9"):
            apply_method(small_net(), plain, batches(), changes={"act_bits": 9})
        with pytest.raises(ConfigError, match="budget is 'slow'"):
            apply_method(small_net(), plain, batches(), budget="slow")

    def test_rescaling_at_the_operator(self):
        x = torch.randn(2, 5, 4)
        scale, shift = torch.rand(4) + 0.5, torch.randn(4)
        scheme = Rescaled(
            StaticUniform(8, step=torch.tensor(0.1), zero=torch.tensor(128.0)),
            scale=scale,
            shift=shift,
        )
        assert torch.allclose(scheme(x), scheme.reference(x), atol=0.051)
        assert torch.allclose(scheme.reference(x), (x - shift) / scale)
