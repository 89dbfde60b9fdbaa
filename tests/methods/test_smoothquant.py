"""SmoothQuant: the product stays, the magnitudes move."""

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import codtdq
from codtdq.data import open_dataset
from codtdq.errors import ConfigError
from codtdq.evaluation import CalibrationImages, evaluate
from codtdq.methods import Workbench, apply_method, method_info
from codtdq.methods.collect import collect_inputs
from codtdq.methods.rivals.smoothquant import input_weight_peak, reader_groups, smoothing_scale
from codtdq.operators import listening, quant_operators
from codtdq.planning import QuantConfig
from codtdq.schemes.inputs import DynamicToken, Rescaled, StaticUniform
from small_nets import images, small_net

FLOAT = {"weight_bits": None, "act_bits": None}


def sqnr(y, y_hat):
    return float(10 * torch.log10(y.square().sum() / (y - y_hat).square().sum()))


def listened(model, x):
    """What every operator multiplies with its weight: {name: rows [N, C]}."""
    found = {}

    def hear(name, tokens, x_hat, statistics):
        found[name] = x_hat.flatten(0, 1)

    with listening(quant_operators(model), hear), torch.no_grad():
        model(x)
    return found


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.85, 1.0])
def test_smoothing_keeps_the_function(alpha):
    model, batch = small_net(), images(4)
    done = apply_method(model, "smoothquant", [batch], changes={**FLOAT, "alpha": alpha})
    with torch.no_grad():
        y, z = model(batch), done(batch)
    assert float((y - z).abs().max()) <= 1e-4 * float(y.abs().max())
    assert not torch.equal(model.norm1.weight, done.norm1.weight)  # something was folded


@pytest.mark.parametrize("name", ["cfrn-small", "escnet-small"])
def test_smoothing_keeps_the_small_models_at_another_size(name):
    model = codtdq.create_model(name)
    batch = torch.randn(1, 3, 160, 160, generator=torch.Generator().manual_seed(0))
    done = apply_method(model, "smoothquant", [batch], changes=FLOAT)
    assert done.quant_record.notes["folded_groups"] > 20
    x = torch.randn(1, 3, 96, 96, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for a, b in zip(tree_leaves(model(x)), tree_leaves(done(x)), strict=True):
            assert float((a - b).abs().max()) <= 1e-4 * float(a.abs().max())


def test_each_layer_product_is_unchanged():
    model, batch = small_net(), images(4)
    done = apply_method(model, "smoothquant", [batch], changes=FLOAT)
    operators = quant_operators(done)
    before, after = {}, {}
    for net, found in ((model, before), (done, after)):
        for name in operators:
            net.get_submodule(name).register_forward_hook(
                lambda m, a, y, name=name, found=found: found.update({name: y})
            )
        with torch.no_grad():
            net(batch)
    for name, y in before.items():
        assert float((y - after[name]).abs().max()) <= 1e-5 * float(y.abs().max()), name


def test_alpha_zero_levels_weights_and_alpha_one_levels_activations():
    model, batch = small_net(), images(4)
    levelled = apply_method(model, "smoothquant", [batch], changes={**FLOAT, "alpha": 0.0})
    for name, operator in quant_operators(levelled).items():
        if operator.weight.shape[1] > 1:  # depthwise always has alpha = 1
            peak = operator.weight.abs().transpose(0, 1).flatten(1).amax(1)
            assert torch.allclose(peak, torch.ones_like(peak), rtol=1e-5), name
    levelled = apply_method(model, "smoothquant", [batch], changes={**FLOAT, "alpha": 1.0})
    for name, rows in listened(levelled, batch).items():
        peak = rows.abs().amax(0)
        assert torch.allclose(peak, torch.ones_like(peak), rtol=1e-4), name


def test_depthwise_takes_all_of_the_activation():
    model, batch = small_net(), images(4)
    done = apply_method(model, "smoothquant", [batch], changes=FLOAT)
    peak = listened(done, batch)["depthwise"].abs().amax(0)
    assert torch.allclose(peak, torch.ones_like(peak), rtol=1e-4)


def test_scale_formula_with_shared_readers():
    """One s for a Linear and a convolution that read one norm, from the larger of both weights."""

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.q = nn.LayerNorm(16), nn.Linear(16, 16)
            self.sr = nn.Conv2d(16, 16, 2, stride=2)

        def forward(self, x):
            y = self.norm(x)
            return self.q(y), self.sr(y.transpose(1, 2).unflatten(2, (4, 4)))

    torch.manual_seed(0)
    model, x = Shared().eval(), torch.randn(4, 16, 16)
    with torch.no_grad():
        model.sr.weight[:, 2] = 3.0  # larger than in q
    bench = Workbench(model, QuantConfig(), [x])
    ((norm, group),) = reader_groups(bench)
    assert norm == "norm" and [site.name for site in group] == ["q", "sr"]
    peak = collect_inputs(bench)["q"].absmax
    scale = smoothing_scale(peak, group, 0.75)
    assert float(scale[2]) == pytest.approx(float(peak[2]) ** 0.75 / 3.0**0.25, rel=1e-5)
    done = apply_method(model, "smoothquant", [x], changes={**FLOAT, "alpha": 0.75})
    assert torch.allclose(done.norm.weight, model.norm.weight / scale, rtol=1e-5)
    assert torch.allclose(done.q.weight, model.q.weight * scale, rtol=1e-5)
    assert torch.allclose(done.sr.weight, model.sr.weight * scale[:, None, None], rtol=1e-5)


def test_weight_peaks_of_grouped_convolutions():
    class Grouped(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(6, 9, 2, groups=3)

        def forward(self, x):
            return self.conv(x)

    model = Grouped()
    peak = input_weight_peak(Workbench(model, QuantConfig(), [torch.randn(1, 6, 4, 4)]).sites[0])
    for channel in range(6):
        group, column = divmod(channel, 2)
        expected = model.conv.weight[3 * group : 3 * group + 3, column].detach().abs().max()
        assert float(peak[channel]) == float(expected)


def test_channels_silent_in_calibration_keep_their_scale():
    model, batch = small_net(), images(4)
    with torch.no_grad():
        model.norm1.weight[0] = model.norm1.bias[0] = 0.0
    done = apply_method(model, "smoothquant", [batch], changes=FLOAT)
    assert torch.equal(done.attn.qkv.weight[:, 0], model.attn.qkv.weight[:, 0])


def test_variants_differ_in_ranges_only():
    model, batch = small_net(), images(4)
    dynamic = apply_method(model, "smoothquant", [batch])
    static = apply_method(model, "smoothquant-static", [batch])
    assert isinstance(dynamic.attn.qkv.input_scheme, DynamicToken)
    assert isinstance(static.attn.qkv.input_scheme, StaticUniform)
    assert static.attn.qkv.input_scheme.step.shape == (1,)
    assert isinstance(static.mlp.fc2.input_scheme, Rescaled)  # nothing folds through GELU
    assert torch.equal(dynamic.attn.qkv.weight, static.attn.qkv.weight)
    assert method_info("smoothquant").ranges == "dynamic"
    assert method_info("smoothquant-static").ranges == "static"
    assert dynamic.quant_record.bits["activation"] > static.quant_record.bits["activation"]


def test_static_range_spans_calibration():
    model, batch = small_net(), images(4)
    float_inputs = listened(apply_method(model, "smoothquant", [batch], changes=FLOAT), batch)
    done = apply_method(model, "smoothquant-static", [batch])
    quantizer = done.attn.qkv.input_scheme
    assert float(quantizer.step * 7) == pytest.approx(
        float(float_inputs["attn.qkv"].abs().max()), rel=1e-4
    )


@pytest.mark.parametrize("method", ["smoothquant", "smoothquant-static"])
def test_eight_bits_batches_and_files(method, tmp_path):
    model, batch = small_net(), images(4)
    done = apply_method(model, method, [batch], changes={"weight_bits": 8, "act_bits": 8})
    with torch.no_grad():
        y = done(batch)
        assert sqnr(model(batch), y) > 25
        assert torch.allclose(y[1:2], done(batch[1:2]), atol=1e-5)
        codtdq.save(done, tmp_path)
        assert torch.equal(codtdq.load(tmp_path, model=small_net(1))(batch), y)


def test_outliers_cost_less_than_without_smoothing():
    model, batch = small_net(), images(4)
    with torch.no_grad():
        model.norm1.weight[5], model.norm1.bias[5] = 60.0, 0.0
        model.attn.qkv.weight[:, 5] /= 60.0
    y = model(batch)
    smooth = apply_method(model, "smoothquant-static", [batch])
    none = apply_method(model, "smoothquant-static", [batch], changes={"alpha": 0.0})
    with torch.no_grad():
        assert sqnr(y, smooth(batch)) > sqnr(y, none(batch))


def test_bad_alpha():
    with pytest.raises(ConfigError, match="alpha is 2"):
        apply_method(small_net(), "smoothquant", [images()], changes={"alpha": 2.0})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cfrn-small", "escnet-small"])
def test_eight_bits_keep_the_s_measure(name):
    model = codtdq.create_model(name)
    batches = CalibrationImages(model, open_dataset("camosynth/calib", limit=16), count=16)
    data = open_dataset("camosynth/test-easy", limit=8)
    done = apply_method(
        model, "smoothquant-static", batches, changes={"weight_bits": 8, "act_bits": 8}
    )
    s = evaluate(done, data).metrics["S"]
    assert s == pytest.approx(evaluate(model, data).metrics["S"], abs=0.01)
