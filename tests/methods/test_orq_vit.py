"""ORQ-ViT in style, and plain per-token rows, its control."""

import time

import pytest
import torch

import codtdq
from codtdq.errors import ConfigError
from codtdq.methods import apply_method, method_info
from codtdq.methods.rivals.orq_vit import InlierRows, Rule, best_rule, row_range, static_range
from codtdq.methods.rivals.per_token import percentile_input
from codtdq.operators import quant_operators
from codtdq.schemes.inputs import DynamicToken
from small_nets import images, small_net

RULES = [Rule(kappa, tau) for kappa in (4.0, 6.0, 8.0) for tau in (1.0, 1.25, 1.5, 2.0)]


def quantized(method="orq-vit", **changes):
    calibration = [images(1, seed) for seed in range(4)]
    return apply_method(small_net(), method, calibration, changes=changes)


def rows_with_outliers(count=40, channels=192, size=12.0, seed=0):
    x = torch.randn(count, channels, generator=torch.Generator().manual_seed(seed))
    x[:, 7] *= 0.1
    x[:, 7] += size
    return x


def sqnr(reference, found):
    return float(10 * torch.log10(reference.square().sum() / (found - reference).square().sum()))


def test_outliers_do_not_bound_the_range():
    row = torch.tensor([[-2.0, -1.0, 0.0, 1.0, 2.0, 100.0, 0.5]])  # median 0.5, deviation 1.5
    low, high = row_range(row, Rule(4.0, 1.0))
    assert (float(low), float(high)) == (-2.0, 2.0)
    low, high = row_range(row, Rule(4.0, 1.5))  # a quarter more on each side, cut at the minimum
    assert (float(low), float(high)) == (-2.0, 3.0)
    assert [float(end) for end in row_range(row, None)] == [-2.0, 100.0]


def test_a_row_of_mostly_one_value_keeps_its_range():
    row = torch.tensor([[0.0, 0.0, 0.0, 0.0, 3.0, -1.0]])
    assert [float(end) for end in row_range(row, Rule(4.0, 1.0))] == [-1.0, 3.0]


@pytest.mark.parametrize("tau", [1.0, 2.0])
def test_kappa_without_limit_is_per_token_minmax(tau):
    x = rows_with_outliers().view(4, 10, 192)
    plain = DynamicToken(4, symmetric=False)(x)
    assert torch.equal(InlierRows(4, Rule(1e30, tau))(x), plain)
    assert torch.equal(InlierRows(4, None)(x), plain)
    assert not torch.equal(InlierRows(4, Rule(4.0, tau))(x), plain)


def test_the_rule_with_the_least_error_is_chosen():
    for size in (4.0, 12.0, 60.0):  # one large channel among 192: worth clipping, or not
        x = rows_with_outliers(size=size)
        errors = {
            rule: float((InlierRows(4, rule)(x) - x).square().sum()) for rule in (None, *RULES)
        }
        assert errors[best_rule(x, 4, RULES)] == min(errors.values())
    assert best_rule(rows_with_outliers(size=60.0), 4, RULES) is None  # too much would be lost
    assert best_rule(rows_with_outliers(size=6.0), 2, RULES) is not None


def test_static_range_clips_rare_outliers():
    x = torch.randn(4000, 24, generator=torch.Generator().manual_seed(1))
    x[0, 0] = 40.0
    static = static_range(x, 4, RULES)
    assert float(static.step) * 15 < 15  # not the 44 of the full range


def test_static_range_is_no_worse_than_the_control_s():
    for seed in range(3):
        x = torch.randn(2000, 24, generator=torch.Generator().manual_seed(seed))
        for values in (x, x**3, torch.nn.functional.gelu(4 * x), x.relu()):
            ruled, usual = static_range(values, 4, RULES), percentile_input(values, 4)
            errors = [float((q(values) - values).square().mean()) for q in (ruled, usual)]
            assert errors[0] <= errors[1] * (1 + 1e-5)


def test_linear_inputs_are_rows_and_conv_inputs_static():
    operators = quant_operators(quantized())
    kinds = {name: operator.input_scheme.kind for name, operator in operators.items()}
    assert kinds["attn.qkv"] == kinds["mlp.fc2"] == "inlier-rows"
    assert kinds["stem"] == kinds["depthwise"] == kinds["mix"] == kinds["head"] == "static-uniform"
    kinds = {
        name: operator.input_scheme.kind
        for name, operator in quant_operators(quantized("per-token")).items()
    }
    assert kinds["attn.qkv"] == "dynamic-token" and kinds["mix"] == "static-uniform"
    assert operators["mlp.fc2"].input_scheme.bits(192) == pytest.approx(4 + 36 / 192)


def test_without_kappas_linear_layers_are_those_of_the_control():
    control, model = quant_operators(quantized("per-token")), quant_operators(quantized(kappas=()))
    x = rows_with_outliers(channels=48).view(4, 10, 48)
    with torch.no_grad():
        assert torch.equal(model["attn.qkv"](x), control["attn.qkv"](x))


@pytest.mark.parametrize("method", ["orq-vit", "per-token"])
def test_batch_mates_do_not_matter(method):
    model, batch = quantized(method), images(5, 9)
    batch[2] *= 4
    with torch.no_grad():
        alone = torch.cat([model(image[None]) for image in batch])
        assert torch.allclose(model(batch), alone, atol=1e-5)


@pytest.mark.parametrize("method", ["orq-vit", "per-token"])
def test_off_is_float_and_eight_bits_are_close(method):
    x = images(3, 7)
    with torch.no_grad():
        reference = small_net()(x)
        assert torch.equal(quantized(method, act_bits=None, weight_bits=None)(x), reference)
        assert sqnr(reference, quantized(method, act_bits=8, weight_bits=8)(x)) >= 20
        assert sqnr(reference, quantized(method)(x)) >= 5


@pytest.mark.parametrize("method", ["orq-vit", "per-token"])
def test_it_survives_a_file(tmp_path, method):
    model, x = quantized(method), images(2, 5)
    codtdq.save(model, tmp_path / "m")
    again = codtdq.load(tmp_path / "m", model=small_net(1))
    with torch.no_grad():
        assert torch.equal(again(x), model(x))


def test_rows_are_not_slow():
    """Two medians per row: within a small multiple of plain rows and the product they feed."""
    x, weight = torch.randn(1, 400, 384), torch.randn(384, 384)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def seconds(quantizer):
        best = 1e9
        for _ in range(5):
            start = time.thread_time()
            torch.nn.functional.linear(quantizer(x), weight)
            best = min(best, time.thread_time() - start)
        return best

    try:
        ratio = seconds(InlierRows(4, Rule(6.0, 1.5))) / seconds(DynamicToken(4, symmetric=False))
    finally:
        torch.set_num_threads(threads)
    assert ratio < 12, ratio


def test_declarations_are_honest():
    assert method_info("orq-vit").evidence == "re-implemented from the abstract"
    assert "kappas" in quantized().quant_record.config
    assert set(quantized().quant_record.notes["rules"]) == {
        "attn.qkv",
        "attn.proj",
        "mlp.fc1",
        "mlp.fc2",
    }


def test_settings_are_checked():
    with pytest.raises(ConfigError, match="kappas are"):
        quantized(kappas=(-1.0,))
    with pytest.raises(ConfigError, match="taus are"):
        quantized(taus=(0.5,))
