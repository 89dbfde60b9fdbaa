"""The quantizer kernels in Triton's interpreter, against the quantizer that defines them."""

import gpu_cases
import pytest
import torch
from gpu_cases import assert_same_codes, awkward

from codtdq.engine.triton import encoders, reference, tables
from codtdq.numerics.affine import step_of
from codtdq.numerics.spec import ActivationSpec

pytestmark = gpu_cases.interpreted

SPECS = {
    "paper": ActivationSpec(),
    "guarded": ActivationSpec(projection="guarded"),
    "literal": ActivationSpec(literal=True),
    "literal, one bound": ActivationSpec(literal=True, tau=None),
    "percentile": ActivationSpec(percentile=0.9),
    "C1 alone": ActivationSpec(zero_ratio=None, tau=0.4),
    "C2 alone": ActivationSpec(tau=None),
    "maximum": ActivationSpec(tau=None, zero_ratio=None),
    "8 bits": ActivationSpec(bits=8, tau=0.05),
    "groups of 8": ActivationSpec(group_size=8),
    "groups of 20": ActivationSpec(group_size=20, tau=0.5),
    "groups of 96": ActivationSpec(group_size=96, tau=0.5),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_every_mode(spec, shape_sized_blocks):
    x = awkward(21, 75)  # a tail in every mode
    found = encoders.encode_groups(x, spec)
    codes, step = reference.quantize_groups(x, spec)
    if spec.projection == "guarded":
        _equal_or_tied(x, found, codes, step, spec)
    else:
        assert_same_codes(x, found.codes, found.step, codes, step, spec.group_size)


def _equal_or_tied(x, found, codes, step, spec):
    """Of two radii with the same error either may be taken; then the errors must tie."""
    tokens = x.double()
    errors = [
        (tokens - reference.values_of(c, s, spec.group_size, x.shape[1])).pow(2).sum(1)
        for c, s in ((found.codes, found.step), (codes, step))
    ]
    torch.testing.assert_close(*errors, rtol=1e-5, atol=1e-20)
    same = (found.step - step).abs() <= 1e-6 * step
    assert same.float().mean() > 0.95


@pytest.mark.parametrize("channels", [1, 31, 32, 33, 64])
def test_tails(channels):
    x = awkward(5, channels)  # block sizes as shipped
    found = encoders.encode_groups(x, ActivationSpec())
    assert_same_codes(
        x, found.codes, found.step, *reference.quantize_groups(x, ActivationSpec()), 32
    )


def test_maps_in_both_layouts(shape_sized_blocks):
    x = awkward(24, 40).unflatten(0, (2, 12)).transpose(1, 2)  # channels last
    spec = ActivationSpec()
    expected = reference.quantize_groups(x, spec)
    for layout in (x, x.contiguous()):
        found = encoders.encode_groups(layout, spec)
        assert_same_codes(reference.tokens_of(x), found.codes, found.step, *expected, 32)


def test_no_number_has_no_range(shape_sized_blocks):
    x = torch.randn(4, 70)
    x[1, 40], x[2, 3], x[3, 69] = float("nan"), float("inf"), float("-inf")
    found = encoders.encode_groups(x, ActivationSpec())
    expected = torch.tensor([[0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]], dtype=torch.bool)
    assert torch.equal(found.step.isnan(), expected)
    assert (found.codes.unflatten(1, (-1, 32))[expected] == 0).all()
    assert_same_codes(
        x.nan_to_num(0, 0, 0)[:1],
        found.codes[:1],
        found.step[:1],
        *(part[:1] for part in reference.quantize_groups(x, ActivationSpec())),
        32,
    )


def test_tuning_needs_a_device(monkeypatch):
    """Asked for in the interpreter, where times say nothing, blocks come from the table."""
    monkeypatch.setenv(tables.TUNE, "1")
    monkeypatch.setattr(tables, "tuned", lambda *given: pytest.fail("was timed"))
    encoders.encode_groups(torch.zeros(1, 32), ActivationSpec())


def test_sums_are_of_the_codes(shape_sized_blocks):
    x, sums = awkward(6, 40), torch.empty(6, 2, dtype=torch.int32)
    found = encoders.encode_groups(x, ActivationSpec(), sums=sums)
    assert torch.equal(sums, found.codes.unflatten(1, (2, 32)).sum(-1, dtype=torch.int32))


@pytest.mark.parametrize("bits", [4, 8])
def test_zero_points(bits, shape_sized_blocks):
    x = awkward(9, 50).abs() + 0.1
    x[5] -= 1.0
    spec = ActivationSpec(bits=bits)
    found = encoders.encode_groups(x, spec, zero_point=True)
    codes, step, zero = reference.quantize_min_max(x, spec)
    assert torch.equal(found.zero, zero)
    assert_same_codes(x, found.codes, found.step, codes, step, 32)
    given = encoders.encode_given(x, spec, step, zero)
    assert_same_codes(x, given.codes, given.step, codes, step, 32)
    # the grid holds the range: half a step is the largest error
    error = x.double() - reference.values_of(found.codes, found.step, 32, 50, found.zero)
    assert (error.abs() <= 0.501 * step.repeat_interleave(32, 1)[:, :50]).all()


def test_zero_points_of_nothing_and_of_no_number(shape_sized_blocks):
    x = torch.randn(4, 40) + 3.0
    x[0] = 0.0
    x[1, 33], x[2, 5] = float("nan"), float("-inf")
    found = encoders.encode_groups(x, ActivationSpec(), zero_point=True)
    expected = torch.tensor([[0, 0], [0, 1], [1, 0], [0, 0]], dtype=torch.bool)
    assert torch.equal(found.step.isnan(), expected)
    assert (found.codes.unflatten(1, (-1, 32))[expected] == 0).all()
    values = reference.values_of(found.codes, found.step, 32, 40, found.zero)
    assert (values[0] == 0).all() and (values[3] - x[3]).abs().max() < 0.3


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_fixed_ranges(bits, per_channel, shape_sized_blocks):
    x = awkward(9, 45)
    radius = x.abs().amax(0).clamp(min=1e-8) if per_channel else x.abs().max().reshape(1) / 3
    step = step_of(radius, bits)
    found = encoders.encode_fixed(x, bits, radius, step)
    assert torch.equal(found.codes[:, :45], reference.quantize_fixed(x, bits, radius, step))
    assert (found.codes[:, 45:] == 0).all()
    nothing = torch.full_like(radius, float("nan"))
    assert (encoders.encode_fixed(x, bits, nothing, nothing).codes == 0).all()


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("layout", ["rows", "maps", "channels last"])
def test_dynamic_ranges(layout, per_channel, shape_sized_blocks):
    x = awkward(24, 45)
    x[:, 7] = 0.0  # a channel without a range
    if layout != "rows":
        x = x.unflatten(0, (2, 12)).transpose(1, 2)
        x = x.contiguous() if layout == "maps" else x
    found = encoders.encode_dynamic(x, 4, per_channel=per_channel)
    codes, step = reference.quantize_dynamic(x, 4, per_channel=per_channel)
    assert torch.equal(found.step, step) and torch.equal(found.codes[:, :45], codes)
    assert (found.codes[:, 45:] == 0).all()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("per_channel", [False, True])
def test_shared_ranges_show_what_is_no_number(wrong, per_channel):
    x = torch.randn(70, 40)  # blocks as shipped: most programs do not see it
    x[3, 35] = wrong
    found = encoders.encode_dynamic(x, 4, per_channel=per_channel)
    codes, step = reference.quantize_dynamic(x, 4, per_channel=per_channel)
    bad = torch.zeros_like(step, dtype=torch.bool)
    bad[35 if per_channel else 0] = True
    assert torch.equal(found.step.isnan(), bad) and torch.equal(step.isnan(), bad)
    sound = ~bad.expand(40)
    assert torch.equal(found.codes[:, :40][:, sound], codes[:, sound])
    assert (found.codes[:, :40][:, ~sound] == 0).all()
    radius = torch.ones_like(step)
    given = encoders.encode_fixed(x, 4, radius, step_of(radius, 4), checked=True)
    assert torch.equal(given.step.isnan(), bad)
    assert torch.equal(given.step[~bad], step_of(radius, 4)[~bad])
