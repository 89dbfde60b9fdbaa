"""Folding changes where scales live, never what the network computes."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

import codtdq
from codtdq.declarations import Declaration, declare
from codtdq.errors import ConfigError, UnsupportedError
from codtdq.methods import Workbench
from codtdq.methods.folding import (
    can_rescale_at_operator,
    fold_into_norm,
    foldable,
    norm_groups,
    rescale_at_operator,
)
from codtdq.planning import QuantConfig
from codtdq.schemes.inputs import FloatInput
from codtdq.schemes.weights import UniformWeight
from small_nets import images, small_net


def bench_of(model, batch):
    return Workbench(copy.deepcopy(model).eval().requires_grad_(False), QuantConfig(), [batch])


def random_affine(channels, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scale = torch.exp(torch.randn(channels, generator=generator))
    return scale, torch.randn(channels, generator=generator)


def outputs_of(model, x):
    with torch.no_grad():
        return tree_leaves(model(x))


def difference(model, other, x):
    """Largest difference relative to the largest output."""
    return max(
        float((a - b).abs().max() / a.abs().max())
        for a, b in zip(outputs_of(model, x), outputs_of(other, x), strict=True)
    )


def fold_everything(bench, with_shift=True):
    done = []
    for name, use in bench.graph.norms.items():
        scale, shift = random_affine(use.channels, len(done))
        if foldable(bench, name, with_shift=with_shift):
            assert fold_into_norm(bench, name, scale, shift if with_shift else None)
            done.append(name)
    return done


class Padded(nn.Module):
    """A user's window attention in short: zeros are padded after the norm, nobody declares it."""

    def __init__(self, declared=False):
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(8), nn.Linear(8, 8)
        nn.init.normal_(self.norm.bias)
        if declared:
            self.register_buffer("token", None)
            declare(self, Declaration(fold_padding={"norm": "token"}))

    def forward(self, x):
        y = self.norm(x)
        if getattr(self, "token", None) is None:
            y = F.pad(y, (0, 0, 0, 3))
        else:
            y = torch.cat([y, self.token.expand(len(x), 3, 8)], 1)
        return self.fc(y)


class Readers(nn.Module):
    """GroupNorm and BatchNorm before grouped, depthwise and padded convolutions."""

    def __init__(self):
        super().__init__()
        self.gn, self.bn, self.last = nn.GroupNorm(2, 8), nn.BatchNorm2d(8), nn.GroupNorm(4, 8)
        self.grouped = nn.Conv2d(8, 12, 2, groups=4, bias=False)
        self.depthwise = nn.Conv2d(8, 8, 3, groups=8, padding=1, padding_mode="reflect")
        self.single = nn.Conv2d(8, 4, 1, padding="valid")
        self.zeros = nn.Conv2d(8, 4, 3, padding=1)
        for norm in (self.gn, self.bn, self.last):
            nn.init.normal_(norm.weight, 1, 0.3)
            nn.init.normal_(norm.bias)
        nn.init.normal_(self.bn.running_mean)
        nn.init.uniform_(self.bn.running_var, 0.5, 2.0)

    def forward(self, x):
        y, z = self.gn(x), self.bn(x)
        return self.grouped(y), self.depthwise(y), self.single(z), self.zeros(self.last(x))


@pytest.mark.parametrize("size", [160, 96])
@pytest.mark.parametrize("name", ["cfrn-small", "escnet-small"])
def test_fold_keeps_the_function_at_sizes_with_and_without_window_padding(name, size):
    model = codtdq.create_model(name)
    bench = bench_of(model, torch.randn(1, 3, 160, 160))
    done = fold_everything(bench)
    assert len(done) > 20
    x = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(1))
    assert difference(model, bench.model, x) < 1e-4


def test_swin_pads_windows_at_the_tested_size():
    """The test above would show nothing if no window were padded there."""
    model = codtdq.create_model("cfrn-small")
    bench = bench_of(model, torch.randn(1, 3, 160, 160))
    fold_everything(bench)
    for module in bench.model.modules():
        if getattr(module, "pad_token", None) is not None:
            module.pad_token.zero_()
    assert difference(model, bench.model, torch.randn(1, 3, 96, 96)) > 1e-3


def test_pad_token_is_no_key_until_folded():
    model = codtdq.create_model("cfrn-small")
    assert not any("pad_token" in key for key in model.state_dict())
    bench = bench_of(model, torch.randn(1, 3, 160, 160))
    fold_everything(bench, with_shift=False)
    assert not any("pad_token" in key for key in bench.model.state_dict())  # zero stays zero


def test_grouped_depthwise_and_reflecting_readers():
    torch.manual_seed(0)
    model, x = Readers().eval(), torch.randn(2, 8, 6, 6)
    bench = bench_of(model, x)
    assert fold_everything(bench) == ["gn", "bn"]
    assert bench.model.grouped.bias is not None  # the shift needed one
    assert difference(model, bench.model, x) < 1e-5
    assert fold_everything(bench, with_shift=False) == ["gn", "bn", "last"]
    assert difference(model, bench.model, x) < 1e-5


def test_zero_padding_refuses_a_shift():
    model, x = Readers().eval(), torch.randn(2, 8, 6, 6)
    bench = bench_of(model, x)
    scale, shift = random_affine(8)
    before = copy.deepcopy(bench.model.state_dict())
    assert not foldable(bench, "last", with_shift=True)
    assert foldable(bench, "last")
    assert not fold_into_norm(bench, "last", scale, shift)
    assert all(torch.equal(before[k], v) for k, v in bench.model.state_dict().items())
    assert not can_rescale_at_operator(bench.site("zeros"), with_shift=True)
    with pytest.raises(ConfigError, match="pads its input with zeros"):
        rescale_at_operator(bench, bench.site("zeros"), FloatInput(), scale, shift)


def test_undeclared_padding_is_rescaled_at_the_operator():
    torch.manual_seed(0)
    model, x = Padded(), torch.randn(2, 5, 8)
    bench = bench_of(model, x)
    scale, shift = random_affine(8)
    assert not fold_into_norm(bench, "norm", scale, shift)
    assert foldable(bench, "norm")  # zeros stay zeros under a scale
    rescale_at_operator(bench, bench.site("fc"), FloatInput(), scale, shift)
    assert difference(model, bench.model, x) < 1e-5


def test_a_user_module_can_declare_its_padding():
    torch.manual_seed(0)
    model, x = Padded(declared=True), torch.randn(2, 5, 8)
    bench = bench_of(model, x)
    for seed in (1, 2):  # the second fold moves the token of the first
        assert fold_into_norm(bench, "norm", *random_affine(8, seed))
        assert difference(model, bench.model, x) < 1e-5
    assert fold_into_norm(bench, "norm", random_affine(8, 3)[0])
    assert difference(model, bench.model, x) < 1e-5


@pytest.mark.parametrize("with_shift", [False, True])
def test_explicit_rescaling_of_every_site(with_shift):
    model = small_net()
    bench = bench_of(model, images())
    for site in bench.sites:
        scale, shift = random_affine(site.channels)
        exact = with_shift and can_rescale_at_operator(site, with_shift=True)
        rescale_at_operator(bench, site, FloatInput(), scale, shift if exact else None)
    assert difference(model, bench.model, images(seed=3)) < 1e-4


def test_shared_norms_are_left_alone():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.fc = nn.LayerNorm(8), nn.Linear(8, 8)
            self.plain, self.tied = nn.LayerNorm(8, elementwise_affine=False), nn.Linear(8, 8)
            self.other = nn.Linear(8, 8)
            self.third = nn.LayerNorm(8)
            self.other.weight = self.tied.weight

        def forward(self, x):
            y = self.norm(x)
            return y + self.fc(y) + self.tied(self.third(x)) + self.other(self.plain(x))

    bench = bench_of(Residual(), torch.randn(2, 3, 8))
    assert not foldable(bench, "norm")  # the sum reads it too
    assert not foldable(bench, "plain")  # no affine parameters
    assert not foldable(bench, "third")  # its reader's weight belongs to another operator as well
    assert not foldable(bench, "fc")
    assert set(norm_groups(bench)) == {"plain", "third"}


def test_fold_comes_before_weight_quantization():
    bench = bench_of(small_net(), images())
    site = bench.site("attn.qkv")
    bench.install(site, inputs=FloatInput())
    assert fold_into_norm(bench, "norm1", *random_affine(48))  # a float weight in a store is fine
    assert difference(small_net(), bench.model, images()) < 1e-4
    bench.install(site, weight=UniformWeight.minmax(site.float_weight, 4))
    with pytest.raises(ConfigError, match="before quantizing"):
        fold_into_norm(bench, "norm1", torch.ones(48))


def test_bad_scales_are_refused():
    from codtdq.operators.rescale import rescale_norm

    bench = bench_of(small_net(), images())
    with pytest.raises(ConfigError, match=r"accepted: \(48,\)"):
        fold_into_norm(bench, "norm1", torch.ones(3))
    with pytest.raises(ConfigError, match="positive"):
        fold_into_norm(bench, "norm1", torch.zeros(48))
    with pytest.raises(UnsupportedError, match="gn cannot be rescaled"):
        rescale_norm(bench.model, bench.graph.norms["gn"], torch.ones(48))
