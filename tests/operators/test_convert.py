import copy

import pytest
import torch
from torch import nn

import codtdq
from codtdq.errors import CalibrationError, ConfigError
from codtdq.operators.calibration import MAX_PAIRS, MAX_ROWS, PairReservoir
from small_nets import images, simulate, small_net


@pytest.mark.parametrize("name", codtdq.list_presets())
def test_every_preset_runs_and_leaves_the_float_model_alone(name):
    model = small_net()
    before = copy.deepcopy(model.state_dict())
    out = model(images())
    quantized = simulate(model, name, calibration=[images(2, seed=1)])
    assert quantized(images()).shape == out.shape
    assert not quantized.training
    assert torch.equal(model(images()), out)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    if name == "fp32":
        assert torch.equal(quantized(images()), out)


def test_module_names_are_kept():
    model = small_net()
    names = [name for name, _ in model.named_modules()]
    found = [name for name, _ in simulate(model, "cod-tdq").named_modules()]
    schemes = ("input_scheme", "weight_scheme")
    assert [name for name in found if not name.endswith(schemes)] == names


def test_inplace_changes_the_model_itself():
    model = small_net()
    assert simulate(model, "cod-tdq", inplace=True) is model
    with pytest.raises(ConfigError, match="quantized already"):
        simulate(model, "cod-tdq")


def test_errors_shrink_in_the_expected_order():
    model, x = small_net(), images(8)
    with torch.no_grad():
        exact = model(x)

        def error(name):
            return (simulate(model, name)(x) - exact).norm().item()

        assert error("w8a8") < error("w4a8") < error("w4a4")
        assert error("cod-tdq-guarded") <= error("cod-tdq-literal")
        assert error("dstg-only") < error("w4a4")


def test_static_radii_are_the_maximum_over_the_calibration_batches():
    model = nn.Sequential(nn.Linear(8, 8))
    batches = [torch.randn(4, 8) * s for s in (1.0, 3.0, 2.0)]
    quantized = simulate(model, "per-tensor", calibration=batches)
    assert quantized[0].input_scheme.radius.item() == max(b.abs().max().item() for b in batches)
    mean = codtdq.preset("per-tensor", static_reduce="mean")
    quantized = simulate(model, mean, calibration=batches)
    expected = sum(b.abs().max().item() for b in batches) / 3
    assert quantized[0].input_scheme.radius.item() == pytest.approx(expected)
    big = torch.full((1, 8), 100.0)
    assert quantized[0].input_scheme(big[None]).max() < 10  # fixed, not dynamic


def test_static_per_channel_radii():
    modes = dict.fromkeys(("linear", "conv", "depthwise", "first"), "per_channel")
    config = codtdq.preset("per-tensor", act_modes=modes)
    model = small_net()
    quantized = simulate(model, config, calibration=[images()])
    assert quantized.mix.input_scheme.radius.shape == (48,)
    assert quantized.stem.input_scheme.radius.shape == (3,)
    channel = images().abs().amax((0, 2, 3))
    assert torch.equal(quantized.stem.input_scheme.radius, channel)


def test_fixed_offline_control_freezes_the_projected_radius():
    model = nn.Sequential(nn.Linear(64, 8))
    batches = [torch.nn.functional.gelu(torch.randn(16, 64) * 2) for _ in range(2)]
    fixed = simulate(model, "dcrp-only-fixed", calibration=batches)
    online = simulate(model, "dcrp-only")
    radii = [online[0].input_scheme.explain(b[None]).radius.item() for b in batches]
    assert fixed[0].input_scheme.radius.item() == pytest.approx(sum(radii) / 2)
    assert fixed[0].input_scheme.radius.item() < batches[0].abs().max()  # the projection took part


def test_missing_calibration_is_an_error():
    with pytest.raises(CalibrationError, match="calibration=batches"):
        simulate(small_net(), "per-tensor")
    with pytest.raises(CalibrationError, match="no batches"):
        simulate(small_net(), "per-tensor", calibration=[])


def test_an_operator_that_calibration_never_reaches_stays_float_and_says_so(tmp_path):
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.a(x)

    x = torch.randn(2, 4)
    quantized = simulate(Unused(), "per-tensor", calibration=[x])
    assert quantized.quant_record.plan.site("b").reason == "no calibration batch reached it"
    assert quantized.quant_record.plan.site("a").static
    restored = codtdq.load(
        codtdq.save(quantized, tmp_path / "m"), model=Unused(), backend="reference"
    )
    assert torch.equal(restored(x), quantized(x))
    with pytest.raises(CalibrationError, match="reached no operator"):
        simulate(Unused(), "per-tensor", calibration=[x[:0]])


def test_nan_weights_and_nan_calibration_are_errors():
    model = small_net()
    with torch.no_grad():
        model.mlp.fc1.weight[0, 0] = float("nan")
    with pytest.raises(ConfigError, match=r"mlp\.fc1\.weight holds NaN"):
        simulate(model, "cod-tdq")
    with pytest.raises(CalibrationError, match="NaN"):
        simulate(small_net(), "per-tensor", calibration=[images() * float("nan")])


@pytest.mark.parametrize("mode", ["bias", "affine"])
def test_io_correction_lowers_the_output_error_of_each_linear(mode):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 48, bias=mode == "bias"))
    x = torch.randn(400, 64).exp()  # skewed inputs bias the outputs
    plain = simulate(model, codtdq.preset("w4a4", float_storage="fp32"))
    config = codtdq.preset("w4a4", float_storage="fp32", io_correction=mode)
    corrected = simulate(model, config, calibration=[x])
    with torch.no_grad():
        y = model(x)
        assert (corrected(x) - y).norm() < (plain(x) - y).norm()
        assert (corrected(x) - y).mean(0).norm() < 0.3 * (plain(x) - y).mean(0).norm()


def test_calibration_statistics_equal_direct_ones():
    model, x = small_net(), images(3)
    seen = {}
    model.mlp.fc2.register_forward_pre_hook(lambda m, a: seen.update(x=a[0].detach()))
    with codtdq.CalibrationContext(model, conv=True, pairs=True) as stats:
        model(x)
        rows = seen["x"].reshape(-1, seen["x"].shape[-1])
    got = stats.channels["mlp.fc2"]
    assert torch.equal(got.absmax, rows.abs().amax(0))
    assert torch.allclose(got.mean_abs, rows.abs().mean(0))
    assert torch.allclose(got.rms, rows.square().mean(0).sqrt())
    assert "stem" in stats.channels and stats.channels["stem"].absmax.shape == (3,)
    kept_x, kept_y = stats.pairs["mlp.fc2"].rows()
    assert kept_x.shape == (min(len(rows), MAX_PAIRS), rows.shape[1])
    assert torch.allclose(
        kept_y,
        torch.nn.functional.linear(kept_x, model.mlp.fc2.weight, model.mlp.fc2.bias),
        atol=1e-5,
    )
    assert "stem" not in stats.pairs
    model(x)  # hooks are gone
    assert stats.channels["mlp.fc2"].rows == len(rows)
    with codtdq.CalibrationContext(model) as linear_only:
        model(x)
    assert "stem" not in linear_only.channels and "mlp.fc1" in linear_only.channels


def test_rows_are_bounded_whatever_the_data():
    layer = nn.Sequential(nn.Linear(2, 2))
    with codtdq.CalibrationContext(layer, pairs=True) as stats:
        for _ in range(3):
            layer(torch.randn(20_000, 2))
    assert stats.channels["0"].rows == 3 * MAX_ROWS
    assert stats.pairs["0"].rows()[0].shape == (MAX_PAIRS, 2)
    assert stats.pairs["0"].x.shape == (MAX_PAIRS, 2)


def test_the_pair_sample_is_uniform():
    reservoir = PairReservoir()
    x = torch.arange(20_000.0).reshape(-1, 1)
    reservoir.update(x, x)
    kept, _ = reservoir.rows()
    assert kept.unique().numel() == MAX_PAIRS
    assert abs(kept.mean().item() / 20_000 - 0.5) < 0.08


def test_batches_may_be_tensors_tuples_or_dicts():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x, scale):
            return self.a(x * scale)

    x = torch.randn(2, 4)
    batches = [(x, 2.0), {"x": x, "scale": 3.0}]
    quantized = simulate(Two(), "per-tensor", calibration=batches)
    assert quantized.a.input_scheme.radius.item() == pytest.approx(3 * x.abs().max().item())


def test_calibration_restores_training_mode_and_empty_batches_run():
    model = small_net().train()
    quantized = simulate(model, "per-tensor", calibration=[images()])
    assert model.training
    assert quantized(images()[:0]).shape[0] == 0


def test_norms_and_biases_are_rounded_to_their_stored_form_only_when_asked():
    model = small_net()
    exact = simulate(model, codtdq.preset("cod-tdq", float_storage="fp32"))
    blocks = simulate(model, "cod-tdq")
    assert torch.equal(exact.mlp.fc1.bias, model.mlp.fc1.bias)
    error = (blocks.mlp.fc1.bias - model.mlp.fc1.bias).abs().max()
    assert 0 < error < 1e-3
    kept = simulate(model, codtdq.preset("cod-tdq", skip_patterns=["mlp.fc1"]))
    assert torch.equal(kept.mlp.fc1.bias, model.mlp.fc1.bias)
    assert torch.equal(kept.mlp.fc1.weight, model.mlp.fc1.weight)


def test_vectors_stay_exact_where_only_tables_go_into_blocks(tmp_path):
    model = small_net()
    model.table = nn.Parameter(images(1, seed=5)[0, 0])
    config = codtdq.preset("cod-tdq", float_storage="tables8")
    quantized = simulate(model, config)
    assert torch.equal(quantized.mlp.fc1.bias, model.mlp.fc1.bias)
    assert 0 < (quantized.table - model.table).abs().max() < 0.05
    codtdq.save(quantized, tmp_path / "q")
    again = codtdq.load(tmp_path / "q", model=model, backend="reference")
    assert torch.equal(again.table, quantized.table)
    assert torch.equal(again.mlp.fc1.bias, model.mlp.fc1.bias)
    assert "FP32, tables in 8-bit blocks" in str(codtdq.plan(model, config))
