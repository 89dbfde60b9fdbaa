"""Spare bits: what the mask feels of an operator, and who gets wider codes for it."""

import pytest
import torch
from torch import nn

import codtdq
from codtdq.errors import CalibrationError, ConfigError
from codtdq.methods import apply_method, outline
from codtdq.methods.likelihood import sampled_label_loss
from codtdq.methods.plus import spending
from codtdq.methods.plus.config import PlusConfig
from codtdq.methods.plus.spending import Option, bought, felt_errors, poured
from codtdq.methods.workbench import Workbench
from codtdq.operators import quant_operators
from codtdq.schemes.transforms import Transform
from small_nets import images, small_net

BATCHES = [images(4, seed=100 + i) for i in range(4)]
METHOD = "cod-tdq-plus"


def quantize(model=None, **changes):
    return apply_method(model or small_net(), METHOD, BATCHES, changes=changes)


class Skip(nn.Module):
    """Two Linear layers that read one tensor, which goes on beside them as well."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.heard, self.dead = nn.Linear(32, 32), nn.Linear(32, 32)
        for layer in (self.heard, self.dead):
            layer.weight.data = torch.randn(32, 32, generator=generator) / 6
        self.last = nn.Linear(32, 1)

    def forward(self, x):
        x = x.sin()
        return self.last(x + self.heard(x) + 0 * self.dead(x))


class Rounding(nn.Module):
    """A stand-in for an input scheme: errors that are known."""

    def forward(self, tokens):
        return (8 * tokens).round() / 8


def bench_of(model, **changes):
    rows = [torch.randn(5, 32, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    model.eval().requires_grad_(False)
    return Workbench(model, PlusConfig(name=METHOD, **changes), rows)


def test_what_is_felt_is_the_squared_gradient_times_the_error():
    model = Skip()
    bench = bench_of(model)
    turned = Transform(scale=torch.linspace(0.5, 2, 32), hadamard=True)
    felt = felt_errors(bench, lambda site: Rounding(), {"heard": turned})
    expected, labels = 0.0, bench.generator("labels")
    for x in bench.batches(spending.IMAGES):
        z = x.sin()
        inner = z.clone().requires_grad_(True)  # only what passes `heard`
        logits = model.last(z + model.heard(inner) + 0 * model.dead(z))
        sampled_label_loss(logits, labels).backward()
        wanted = turned.tokens(z)
        error = (8 * wanted).round() / 8 - wanted
        expected += float((turned.columns(inner.grad) * error).square().sum())
    assert felt["heard"].inputs == pytest.approx(expected, rel=1e-4)
    assert felt["dead"].inputs == float(felt["dead"].weight.sum()) == 0.0
    assert float(felt["heard"].weight.min()) > 0
    assert all(p.grad is None and not p.requires_grad for p in model.parameters())


def test_a_dead_operator_gets_nothing_and_budgets_hold():
    model = Skip()
    done = apply_method(
        model, METHOD, list(bench_of(model).batches()), changes={"spare_weight_bits": 4.0}
    )
    widths = {name: op.weight_scheme.code_bits for name, op in quant_operators(done).items()}
    assert widths == {"heard": 8, "dead": 4, "last": 8}


@pytest.mark.parametrize("budget", [0.25, 0.75])
def test_effective_bits_rise_by_the_budget_at_most(budget):
    plain = quantize().quant_record.bits
    done = quantize(spare_act_bits=budget, spare_weight_bits=budget)
    bits = done.quant_record.bits
    assert done.quant_record.notes["widened"]
    for side in ("weight", "activation"):
        assert plain[side] < bits[side] + 0.01 <= plain[side] + budget + 0.02
    for name, found in done.quant_record.notes["widened"].items():
        operator = done.get_submodule(name)
        assert operator.site.weight_bits == found.get("weight_bits", 4)
        assert operator.site.weight_group == found.get("weight_group_size", 32)
        assert operator.site.act_bits == found.get("act_bits", operator.site.act_bits)


def test_what_helps_most_per_bit_is_bought_first():
    narrow, half, byte = {}, {"weight_group_size": 16}, {"weight_bits": 8}
    options = {
        "loud": [Option(narrow, 100.0, 0), Option(half, 70.0, 5), Option(byte, 1.0, 100)],
        "small": [Option(narrow, 90.0, 0), Option(byte, 1.0, 3)],
        "quiet": [Option(narrow, 1.0, 0), Option(half, 0.7, 5), Option(byte, 0.0, 100)],
    }
    assert bought(options, 2) == {}
    assert bought(options, 3) == {"small": byte}
    assert bought(options, 8) == {"small": byte, "loud": half}
    assert bought(options, 13) == {"small": byte, "loud": half, "quiet": half}
    assert bought(options, 103) == {"small": byte, "loud": byte}


def test_bits_are_poured_one_by_one():
    widths, count = {"a": 4, "b": 4, "c": 4}, {"a": 1.0, "b": 1.0, "c": 10.0}
    errors = {"a": 64.0, "b": 8.0, "c": 64.0}
    assert poured(errors, widths, count, 0.5) == {}
    assert poured(errors, widths, count, 1) == {"a": 5}
    assert poured(errors, widths, count, 2) == {"a": 6}
    assert poured(errors, widths, count, 3) == {"a": 6, "b": 5}
    assert poured(errors, widths, count, 100) == {"a": 6, "b": 6, "c": 6}


def test_wider_codes_bring_the_output_nearer_and_run_natively():
    x = images(4, seed=5)
    net = small_net()
    with torch.no_grad():
        wanted = net(x)
        far = (quantize(net)(x) - wanted).square().mean()
        done = quantize(net, spare_act_bits=2.0, spare_weight_bits=4.0)
        assert (done(x) - wanted).square().mean() < 0.5 * far
        simulated = done(x)
        left = codtdq.use_backend(quantize(net), "cpu", example=x).fallbacks
        assert codtdq.use_backend(done, "cpu", example=x).fallbacks.keys() == left.keys()
        torch.testing.assert_close(done(x), simulated, rtol=1e-3, atol=1e-3)


def test_the_plan_says_what_may_be_added():
    net = small_net()
    config = codtdq.config(METHOD, spare_act_bits=0.5, spare_weight_bits=0.25)
    before, _ = outline(net, config, images(1))
    assert "up to 0.25 bits per weight and 0.50 per activation" in str(before)
    after = quantize(net, spare_act_bits=0.5, spare_weight_bits=0.25).quant_record.plan
    assert "operators have wider codes or smaller groups" in str(after)
    assert "spare" not in str(outline(net, codtdq.config(METHOD), images(1))[0])


def test_a_wrong_budget_is_one_line():
    for wrong in (-1, 5, "much", True):
        with pytest.raises(ConfigError, match=r"spare_act_bits is .*; accepted: 0 to 4"):
            codtdq.config(METHOD, spare_act_bits=wrong)


def test_a_network_without_gradients_is_told():
    class Detached(Skip):
        def forward(self, x):
            return super().forward(x).detach()

    model = Detached()
    with pytest.raises(CalibrationError, match="spare bits need one"):
        apply_method(
            model, METHOD, list(bench_of(model).batches()), changes={"spare_act_bits": 1.0}
        )
