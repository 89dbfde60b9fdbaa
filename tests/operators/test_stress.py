"""Outliers are planted where they hurt, and the float function does not notice."""

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import codtdq
from codtdq.errors import ConfigError, UnsupportedError
from codtdq.lab.stress import plant_outliers
from codtdq.numerics.affine import code_limits, fake_shifted, grid_of
from codtdq.operators.tokens import input_tokens
from codtdq.planning.trace import trace
from small_nets import images, small_net


def first_reader_tokens(model, batch, norms):
    """Tokens [N, C] that the first operator behind each norm reads."""
    graph, found = trace(model, batch), {}

    def hook(name):
        def listen(module, args, output):
            found[name] = input_tokens(module, args[0]).flatten(0, 1)

        return listen

    handles = [
        model.get_submodule(graph.norms[n].consumers[0]).register_forward_hook(hook(n))
        for n in norms
    ]
    with torch.no_grad():
        model(batch)
    for handle in handles:
        handle.remove()
    return found


def ratio(tokens):
    magnitude = tokens.abs().amax(0)
    return float(magnitude.max() / magnitude.median())


@pytest.mark.parametrize("name", ["cfrn-small", "escnet-small"])
def test_same_function_with_published_outlier_ratios(name):
    model = codtdq.create_model(name).eval()
    batch = torch.randn(2, 3, 160, 160, generator=torch.Generator().manual_seed(0))
    stressed = plant_outliers(model, batch)
    x = torch.randn(1, 3, 128, 128, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for a, b in zip(tree_leaves(model(x)), tree_leaves(stressed(x)), strict=True):
            assert float((a - b).abs().max()) <= 1e-4 * float(a.abs().max())
    assert stressed.info is model.info or stressed.info == model.info
    ratios = stressed.stress["ratios"]
    assert len(ratios) > 20
    for norm, tokens in first_reader_tokens(stressed, batch, ratios).items():
        assert 20 <= ratio(tokens) <= 100, norm
        assert ratio(tokens) == pytest.approx(ratios[norm], rel=1e-3), norm


def test_the_given_model_is_untouched_and_seeds_differ():
    model = small_net()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    one, same, two = (plant_outliers(model, images(), seed=s) for s in (0, 0, 1))
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert not hasattr(model, "stress")
    assert torch.equal(one.norm1.weight, same.norm1.weight)
    assert not torch.equal(one.norm1.weight, two.norm1.weight)
    assert set(one.stress["ratios"]) == {"norm1", "norm2"}  # a sum reads gn
    changed = (one.norm1.weight != model.norm1.weight).sum()
    assert changed == 1  # 2 % of 48 channels
    assert (
        plant_outliers(model, images(), channels=0.1).norm1.weight != model.norm1.weight
    ).sum() == 5


def test_strength_moves_the_ratio():
    for strength in (5.0, 200.0):
        stressed = plant_outliers(small_net(), images(), strength=strength)
        for value in stressed.stress["ratios"].values():
            assert strength / 1.5 <= value <= strength * 1.5


def test_naive_per_tensor_a4_gets_worse():
    model = small_net()
    stressed = plant_outliers(model, images())

    def sqnr(net, norm):
        """dB of the first reader's output when only its input is quantized, one range for all."""
        tokens = first_reader_tokens(net, images(), [norm])[norm]
        weight = net.get_submodule(trace(net, images()).norms[norm].consumers[0]).weight.detach()
        step, zero = grid_of(tokens.min(), tokens.max(), 4, False)
        x_hat = fake_shifted(tokens, step, zero, *code_limits(4, False))
        y = tokens @ weight.T
        return float(10 * torch.log10(y.square().sum() / (x_hat @ weight.T - y).square().sum()))

    for norm in stressed.stress["ratios"]:
        assert sqnr(stressed, norm) < sqnr(model, norm) - 6.0


def test_dead_channels_are_not_chosen():
    model = small_net()
    with torch.no_grad():
        model.norm1.weight[:20], model.norm1.bias[:20] = 0.0, 0.0
    for seed in range(5):
        stressed = plant_outliers(model, images(), seed=seed)
        assert not bool(stressed.norm1.weight[:20].any())
        tokens = first_reader_tokens(stressed, images(), ["norm1"])["norm1"]
        assert 20 <= ratio(tokens) <= 100


def test_bad_requests():
    with pytest.raises(ConfigError, match="strength"):
        plant_outliers(small_net(), images(), strength=1.0)
    with pytest.raises(ConfigError, match="channels"):
        plant_outliers(small_net(), images(), channels=0.7)
    with pytest.raises(UnsupportedError, match="nowhere"):
        plant_outliers(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), images())
