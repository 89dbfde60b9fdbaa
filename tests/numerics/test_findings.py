"""Where the published formulas break as literally written, and that the default reading mends
what comes from padding, exact zeros and empty feasible sets. The rest is the method's own.
"""

import torch

from codtdq.numerics import INFEASIBLE_C1, ActivationSpec, Active, quantize

LITERAL = ActivationSpec(literal=True)
DEFAULT = ActivationSpec()


def relative_error(x, spec, **kw):
    return ((quantize(x, spec, **kw).x_hat - x).norm() / x.norm()).item()


def zero_mean_groups():
    x = torch.randn(500, 32, generator=torch.Generator().manual_seed(0))
    return x - x.mean(-1, keepdim=True)


def test_c1_never_binds_on_zero_mean_groups_of_32():
    for reading in ({"literal": True}, {}):
        result = quantize(zero_mean_groups(), ActivationSpec(**reading))
        assert not (result.active == Active.C1).any()


def test_c1_destroys_an_offset_group_in_both_readings():
    g = torch.Generator().manual_seed(0)
    x = 5 + 0.1 * torch.randn(200, 32, generator=g)
    for spec in (LITERAL, DEFAULT):
        result = quantize(x, spec)
        assert (result.active == Active.C1).all()
        assert result.x_hat.max() < 1.1  # about 0.7 where 5 should be
        assert (result.clip_rate == 1).all()  # and the result says so
    assert relative_error(x, ActivationSpec(projection="guarded")) < 0.05


def test_seven_exact_zeros_erase_a_group_in_the_literal_reading_only():
    x = torch.randn(100, 32, generator=torch.Generator().manual_seed(0)).abs() + 0.5
    x[:, :7] = 0
    erased = quantize(x, LITERAL)
    assert (erased.radius <= 1e-8 * 1.001).all()
    assert erased.x_hat.abs().max() < 1e-6
    kept = quantize(x, DEFAULT)
    assert (kept.active != Active.C2).all()
    assert relative_error(x, DEFAULT) < 0.1


def test_relu_inputs_are_erased_in_the_literal_reading_only():
    x = torch.randn(300, 64, generator=torch.Generator().manual_seed(0)).relu()
    assert relative_error(x, LITERAL) > 0.99
    assert relative_error(x, DEFAULT) < 0.5


def test_padding_erases_an_image_in_the_literal_reading_only():
    image = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert relative_error(image, LITERAL, layout="first") > 0.99
    assert relative_error(image, DEFAULT, layout="first") < 0.5


def test_padding_distorts_the_last_group_in_the_literal_reading_only():
    x = torch.randn(200, 40, generator=torch.Generator().manual_seed(0))
    tail = x[:, 32:]
    literal = quantize(x, LITERAL).x_hat[:, 32:]
    default = quantize(x, DEFAULT).x_hat[:, 32:]
    assert literal.abs().max() < 1e-6  # 24 padded zeros make the quantile zero
    assert torch.equal(default, quantize(tail, ActivationSpec(group_size=8)).x_hat)


def test_c2_clips_strong_responses_after_gelu_in_both_readings():
    g = torch.Generator().manual_seed(0)
    x = torch.nn.functional.gelu(2 * torch.randn(500, 32, generator=g))
    for spec in (LITERAL, DEFAULT):
        result = quantize(x, spec)
        assert (result.active == Active.C2).float().mean() > 0.9
        assert result.clip_rate.mean() > 0.2  # the price shows in the statistics
        assert relative_error(x, spec) > 0.5
    assert relative_error(x, ActivationSpec(projection="guarded")) < 0.15


def test_a_constant_group_has_no_feasible_c1_and_keeps_its_value():
    x = torch.full((4, 32), 3.0)
    assert quantize(x, LITERAL).x_hat.abs().max() < 1e-6  # sigma = 1e-12: erased
    result = quantize(x, DEFAULT)
    assert (result.infeasible == INFEASIBLE_C1).all() and (result.active == Active.BASE).all()
    assert torch.allclose(result.x_hat, x)


def test_ties_go_to_even_and_the_lowest_code_is_never_used():
    spec = ActivationSpec(tau=None, zero_ratio=None)
    x = torch.tensor([[7.0, -7.0, 0.5, -0.5, 1.5, 2.5, 6.5, 0.51] + [0.0] * 24])
    assert quantize(x, spec).q[0, :8].tolist() == [7, -7, 0, 0, 2, 2, 6, 1]
    many = quantize(torch.randn(2000, 32, generator=torch.Generator().manual_seed(0)), spec)
    assert many.q.min() == -7


def test_values_that_tie_with_the_quantile_survive_in_the_default_reading():
    """20 equal values at the threshold: literally all are zeroed, more than zr allows."""
    x = torch.tensor([[1.0] * 20 + [100.0] * 12])
    literal = quantize(x, ActivationSpec(literal=True, tau=1e6))
    default = quantize(x, ActivationSpec(tau=1e6))
    assert literal.zero_mass.item() == 20 / 32
    assert default.zero_mass.item() == 0
    assert abs(default.radius.item() / literal.radius.item() - 1) < 2e-6


def test_the_literal_algorithm_projects_only_with_both_bounds():
    x = torch.nn.functional.gelu(3 * zero_mean_groups())
    base = quantize(x, ActivationSpec(literal=True, tau=None, zero_ratio=None))
    for one in ({"tau": None}, {"zero_ratio": None}):
        alone = quantize(x, ActivationSpec(literal=True, **one))
        assert torch.equal(alone.radius, base.radius)
    assert not torch.equal(quantize(x, LITERAL).radius, base.radius)
