"""RepQ-ViT: one grid after the fold does what the per-channel grids did before."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

import codtdq
from codtdq.data import open_dataset
from codtdq.evaluation import CalibrationImages, evaluate
from codtdq.methods import Workbench, apply_method
from codtdq.methods.rivals.repq_vit import (
    channel_grids,
    reparameterize,
    tensor_grid,
    with_common_zero,
)
from codtdq.numerics.affine import code_limits, encode_shifted, fake_shifted
from codtdq.operators import quant_operators
from codtdq.planning import QuantConfig
from codtdq.schemes.inputs import FloatInput, Rescaled, StaticUniform
from small_nets import images, small_net

LIMITS = code_limits(4, False)


def sqnr(y, y_hat):
    return float(10 * torch.log10(y.square().sum() / (y - y_hat).square().sum()))


def uneven_rows(seed=0):
    """Rows [N, C] whose channels differ a hundredfold in width and lie off centre."""
    generator = torch.Generator().manual_seed(seed)
    widths = torch.logspace(-1, 1, 24)
    return torch.randn(4000, 24, generator=generator) * widths + widths * torch.linspace(-2, 2, 24)


def test_folded_codes_equal_per_channel_codes():
    rows = uneven_rows()
    step, zero = channel_grids(rows, 4, 1 << 20)
    scale, shift, (common_step, common_zero) = reparameterize(step, zero)
    assert common_step.shape == common_zero.shape == (1,)
    assert float(common_zero) == round(float(zero.mean()))
    folded = (rows - shift) / scale
    per_channel = encode_shifted(rows, step, zero, *LIMITS)
    per_tensor = encode_shifted(folded, common_step, common_zero, *LIMITS)
    ties = ((rows / step) % 1 - 0.5).abs() < 1e-4  # where float32 decides either way
    assert torch.equal(per_channel[~ties], per_tensor[~ties])
    assert ties.float().mean() < 1e-3
    x_hat = fake_shifted(rows, step, zero, *LIMITS)
    back = fake_shifted(folded, common_step, common_zero, *LIMITS) * scale + shift
    assert torch.allclose(x_hat[~ties], back[~ties], rtol=1e-6, atol=1e-6 * float(rows.abs().max()))


def test_a_float_mean_zero_point_would_not_do():
    """Why z~ is rounded: with the mean itself the codes are no integers any more."""
    rows = uneven_rows()
    step, zero = channel_grids(rows, 4, 1 << 20)
    mean = zero.mean()
    assert float(mean) != round(float(mean))
    folded = (rows + step * (zero - mean)) / (step / step.mean())
    shifted = encode_shifted(folded, step.mean(), mean, *LIMITS) + (zero - mean)
    exact = encode_shifted(rows, step, zero, *LIMITS) + 0.0
    assert (shifted - exact).square().mean().sqrt() > 0.1


def test_zero_is_a_level_of_the_folded_grid():
    """A padded token, the image of 0, is stored exactly."""
    step, zero = channel_grids(uneven_rows(), 4, 1 << 20)
    scale, shift, (common_step, common_zero) = reparameterize(step, zero)
    token = -shift / scale
    assert torch.allclose(fake_shifted(token, common_step, common_zero, *LIMITS), token, rtol=1e-5)


def test_whole_model_equals_per_channel_quantization():
    """With float weights the method's output is that of per-channel grids at the same places."""
    model, batch = small_net(), images(4)
    done = apply_method(model, "repq-vit", [batch], changes={"weight_bits": None})
    assert set(done.quant_record.notes["r1_max_over_min"]) == {"norm1", "norm2"}
    bench = Workbench(small_net(), QuantConfig(weight_bits=None), [batch])
    for site in bench.sites:
        taken = done.get_submodule(site.name).input_scheme
        step, zero = taken.step, taken.zero
        if site.source.kind == "norm" and site.name in ("attn.qkv", "mlp.fc1"):
            norm = site.source.name
            ratio = model.get_submodule(norm).weight / done.get_submodule(norm).weight  # r1
            moved = done.get_submodule(norm).bias * ratio - model.get_submodule(norm).bias  # s r2
            step, zero = ratio * step, zero + torch.round(moved / (ratio * step))
            assert len(step) == 48
        bench.install(site, inputs=StaticUniform(site.act_bits, step=step, zero=zero))
    with torch.no_grad():
        assert sqnr(bench.model(batch), done(batch)) > 60


@pytest.fixture(scope="module")
def folded_cfrn():
    """cfrn-small with 4-bit inputs and float weights, calibrated at its usual size."""
    batch = torch.randn(2, 3, 160, 160, generator=torch.Generator().manual_seed(0))
    changes = {"weight_bits": None, "values": 1 << 15}
    return apply_method(codtdq.create_model("cfrn-small"), "repq-vit", [batch], changes=changes)


@pytest.mark.parametrize("size", [160, 96])
def test_fold_keeps_cfrn_at_sizes_with_and_without_window_padding(folded_cfrn, size):
    """The folded model with its quantizers taken out is the float function."""
    assert len(folded_cfrn.quant_record.notes["r1_max_over_min"]) > 20
    assert not folded_cfrn.quant_record.notes["explicit_norms"]
    model, bare = codtdq.create_model("cfrn-small"), copy.deepcopy(folded_cfrn)
    for operator in quant_operators(bare).values():
        operator.input_scheme = FloatInput()
    x = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for one, two in zip(tree_leaves(model(x)), tree_leaves(bare(x)), strict=True):
            assert float((one - two).abs().max()) <= 1e-4 * float(one.abs().max())


def test_constant_channels_give_finite_models():
    model = small_net()
    with torch.no_grad():
        model.norm1.weight[:3], model.norm1.bias[:3] = 0.0, torch.tensor([0.0, 2.0, -2.0])
        model.norm2.weight.zero_()
        model.norm2.bias.zero_()
    done = apply_method(model, "repq-vit", [images()])
    with torch.no_grad():
        assert bool(done(images()).isfinite().all())
    spread = done.quant_record.notes["r1_max_over_min"]
    assert spread["norm1"] <= 1e4 + 1 and spread["norm2"] == 1.0


class Shared(nn.Module):
    """PVT's attention in short: one norm read by a Linear and by a strided convolution."""

    def __init__(self):
        super().__init__()
        self.norm, self.q = nn.LayerNorm(16), nn.Linear(16, 16)
        self.sr = nn.Conv2d(16, 16, 2, stride=2)
        nn.init.normal_(self.norm.weight, 1.0, 0.4)
        nn.init.normal_(self.norm.bias, 0.0, 0.4)

    def forward(self, x):
        y = self.norm(x)
        source = self.sr(y.transpose(1, 2).unflatten(2, (4, 4))).flatten(2).transpose(1, 2)
        return F.scaled_dot_product_attention(self.q(y), source, source)


class Undeclared(nn.Module):
    """Zeros padded behind the norm by a module that does not say so."""

    def __init__(self):
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(16), nn.Linear(16, 16)
        nn.init.normal_(self.norm.bias)

    def forward(self, x):
        return self.fc(F.pad(self.norm(x), (0, 0, 0, 2)))


def test_before_zero_padding_channels_share_the_zero_point():
    class Padding(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.conv = nn.GroupNorm(1, 24), nn.Conv2d(24, 8, 3, padding=1)
            nn.init.normal_(self.norm.bias)

        def forward(self, x):
            return self.conv(self.norm(x))

    step, zero = channel_grids(uneven_rows(), 4, 1 << 20)
    wide, common = with_common_zero(step, zero, 4)
    assert len(common.unique()) == 1
    assert bool((-common * wide <= -zero * step + 1e-6).all())  # every range is covered
    assert bool(((15 - common) * wide >= (15 - zero) * step - 1e-5).all())
    assert reparameterize(wide, common)[1] is None
    torch.manual_seed(0)
    model, x = Padding().eval(), torch.randn(4, 24, 6, 6)
    with torch.no_grad():
        model.norm.weight[3] = 60.0
        done = apply_method(model, "repq-vit", [x], changes={"weight_bits": None, "act_bits": 8})
        assert "norm" in done.quant_record.notes["r1_max_over_min"]
        assert sqnr(model(x), done(x)) > 35
        done.conv.input_scheme = FloatInput()
        assert torch.allclose(model(x), done(x), rtol=1e-4, atol=1e-4)


def test_readers_of_one_norm_share_one_fold():
    torch.manual_seed(0)
    model, x = Shared().eval(), torch.randn(8, 16, 16)
    done = apply_method(model, "repq-vit", [x], changes={"weight_bits": None})
    q, sr = done.q.input_scheme, done.sr.input_scheme
    assert torch.equal(q.step, sr.step) and torch.equal(q.zero, sr.zero) and q.step.shape == (1,)
    ratio = model.norm.weight / done.norm.weight
    assert torch.allclose(done.q.weight, model.q.weight * ratio, rtol=1e-5)
    assert torch.allclose(done.sr.weight, model.sr.weight * ratio[:, None, None], rtol=1e-5)
    with torch.no_grad():
        assert sqnr(model(x), done(x)) > 10


def test_undeclared_padding_keeps_the_affine_at_the_operator():
    torch.manual_seed(0)
    model, x = Undeclared().eval(), torch.randn(8, 5, 16)
    done = apply_method(model, "repq-vit", [x], changes={"act_bits": 8, "weight_bits": 8})
    assert done.quant_record.notes["explicit_norms"] == ["norm"]
    assert isinstance(done.fc.input_scheme, Rescaled)
    assert torch.equal(done.norm.weight, model.norm.weight)
    with torch.no_grad():
        assert sqnr(model(x)[:, 5:], done(x)[:, 5:]) > 30  # the padded tokens


def test_outliers_behind_a_norm_cost_little():
    """What the method is for: per-tensor grids lose most channels, folded ones keep them."""
    rows = uneven_rows()
    rows[:, 3] *= 50
    step, zero = tensor_grid(rows, 4, 1 << 20)
    plain = fake_shifted(rows, step, zero, *LIMITS)
    step, zero = channel_grids(rows, 4, 1 << 20)
    fine = fake_shifted(rows, step, zero, *LIMITS)
    middle = slice(10, 20)
    assert sqnr(rows[:, middle], fine[:, middle]) > sqnr(rows[:, middle], plain[:, middle]) + 10


def test_an_operator_that_runs_twice_is_calibrated_on_both_runs():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(16, 16)

        def forward(self, x):  # as attention over channels does with mean and maximum
            return self.fc(x.mean(1)) + self.fc(x.amax(1) * 10)

    torch.manual_seed(0)
    model, x = Twice().eval(), torch.randn(8, 20, 16)
    done = apply_method(model, "repq-vit", [x], changes={"weight_bits": 8, "act_bits": 8})
    with torch.no_grad():
        assert sqnr(model(x), done(x)) > 30


def test_quantizers_off_is_the_float_model():
    model, x = small_net(), images()
    done = apply_method(model, "repq-vit", [x], changes={"weight_bits": None, "act_bits": None})
    with torch.no_grad():
        assert torch.allclose(model(x), done(x), rtol=1e-4, atol=1e-5)


def test_eight_bits_are_nearly_float_and_batches_do_not_matter():
    model, x = small_net(), images(4)
    done = apply_method(model, "repq-vit", [x], changes={"weight_bits": 8, "act_bits": 8})
    with torch.no_grad():
        y = done(x)
        assert sqnr(model(x), y) > 25
        assert torch.allclose(y[1:2], done(x[1:2]), atol=1e-5)


def test_save_and_load(folded_cfrn, tmp_path):
    assert any(key.endswith("pad_token") for key in folded_cfrn.state_dict())
    codtdq.save(folded_cfrn, tmp_path / "cfrn")
    loaded = codtdq.load(tmp_path / "cfrn")
    x = torch.randn(1, 3, 96, 96)  # windows are padded here
    with torch.no_grad():
        for one, two in zip(folded_cfrn(x), loaded(x), strict=True):
            assert torch.equal(one, two)


def test_save_and_load_with_packed_weights(tmp_path):
    done = apply_method(small_net(), "repq-vit", [images()])
    codtdq.save(done, tmp_path)
    with torch.no_grad():
        assert torch.equal(codtdq.load(tmp_path, model=small_net(1))(images()), done(images()))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cfrn-small", "escnet-small"])
def test_eight_bits_keep_the_s_measure(name):
    model = codtdq.create_model(name)
    batches = CalibrationImages(model, open_dataset("camosynth/calib", limit=16), count=16)
    data = open_dataset("camosynth/test-easy", limit=8)
    done = apply_method(model, "repq-vit", batches, changes={"weight_bits": 8, "act_bits": 8})
    s = evaluate(done, data).metrics["S"]
    assert s == pytest.approx(evaluate(model, data).metrics["S"], abs=0.01)
