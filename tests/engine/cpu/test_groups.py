"""The fused quantizer gives the codes of the plain path, with every instruction set."""

import itertools

import pytest
import torch
from engine_cases import SETS, needs_engine

from codtdq.engine import cpu as native
from codtdq.engine.cpu import interface, library
from codtdq.engine.cpu.groups import quantize_groups
from codtdq.errors import UnsupportedError
from codtdq.numerics import ActivationSpec, affine, projection, quantize

pytestmark = needs_engine
SETTINGS = list(
    itertools.product(
        (16, 32, 64, 128),
        (4, 8),
        ("min", "literal", "guarded"),
        (None, 1.0),
        (None, 0.2),
        (None, 0.95),
    )
)


@pytest.fixture(params=SETS)
def instruction_set(request):
    before = native.instruction_set()
    library.select(request.param)
    yield request.param
    library.select(before)


def difficult(rows, channels, seed=0):
    """Rows of every kind that a quantizer meets, one kind per row."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, channels, generator=g) * torch.rand(rows, 1, generator=g) * 3
    x[0], x[1] = 0.0, 1.5
    x[2, ::3] = 0.0
    x[3] = torch.relu(x[3])
    x[4] *= 1e-9
    x[5, 0] = 100.0
    x[6] = (x[6] * 4).round() / 4  # ties
    x[7] *= 1e-40  # denormals
    x[8] += 1000.0
    x[9] = torch.nn.functional.gelu(x[9])
    return x


def spec_of(setting):
    group, bits, kind, tau, zero_ratio, percentile = setting
    return ActivationSpec(
        bits=bits,
        group_size=group,
        literal=kind == "literal",
        tau=tau,
        zero_ratio=zero_ratio,
        percentile=percentile,
        projection="guarded" if kind == "guarded" else "min",
    )


def test_every_setting_and_every_kind_of_row(instruction_set):
    for setting in SETTINGS:
        spec = spec_of(setting)
        for channels in (2 * spec.group_size, 40, 7):
            x = difficult(19, channels)
            with native.disabled():
                expected = quantize(x, spec)
            found = quantize(x, spec)
            assert torch.equal(found.q, expected.q), (setting, channels)
            assert torch.equal(found.x_hat, expected.x_hat)
            ulp = found.step.view(torch.int32) - expected.step.view(torch.int32)
            assert int(ulp.abs().max()) <= 2
            assert torch.equal(found.active, expected.active)
            assert torch.equal(found.infeasible, expected.infeasible)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_flags_of_groups_that_are_not_finite(instruction_set, value):
    """Equal between engine and reference, for any place and share of such values."""
    g = torch.Generator().manual_seed(3)
    for setting in SETTINGS:
        spec = spec_of(setting)
        for channels in (2 * spec.group_size, 40, 7):
            for share in (0.02, 0.5, 1.0):
                x = difficult(19, channels)
                x[torch.rand(x.shape, generator=g) < share] = value
                x[3, 0] = value
                with native.disabled():
                    expected = quantize(x, spec)
                found = quantize(x, spec)
                lost = expected.radius.isnan()
                assert torch.equal(found.radius.isnan(), lost) and bool(lost.any())
                assert torch.equal(found.active, expected.active), (setting, channels, share)
                assert torch.equal(found.infeasible, expected.infeasible)
                assert int(found.active[lost].sum()) == int(found.infeasible[lost].sum()) == 0
                assert torch.equal(found.q, expected.q)


def test_many_groups_have_no_mismatch(instruction_set):
    g = torch.Generator().manual_seed(1)
    x = torch.nn.functional.gelu(torch.randn(5000, 192, generator=g) * 2 + 0.3)
    for kind in ("min", "guarded"):
        with native.disabled():
            expected = quantize(x, ActivationSpec(projection=kind))
        assert int((quantize(x, ActivationSpec(projection=kind)).q != expected.q).sum()) == 0


def test_nan_and_infinity_stay_in_their_group(instruction_set):
    x = torch.randn(4, 64)
    x[1, 3], x[2, 40] = float("nan"), float("inf")
    result = quantize(x, ActivationSpec())
    assert result.x_hat[1, :32].isnan().all() and result.x_hat[2, 32:].isnan().all()
    assert result.x_hat[1, 32:].isfinite().all() and result.x_hat[0].isfinite().all()
    assert int(result.q[1, :32].abs().sum()) == 0


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(2, 5, 6, 40),
        torch.randn(2, 40, 5, 6).permute(0, 2, 3, 1),
        torch.randn(3, 40, 7).transpose(1, 2),
        torch.randn(40),
        torch.randn(10, 80)[::2, ::2],
        torch.randn(1, 3, 1, 33)[:, :, 0],
        torch.randn(6, 1, 40).expand(6, 4, 40),
    ],
)
def test_any_strides(x):
    with native.disabled():
        expected = quantize(x, ActivationSpec())
    found = quantize(x, ActivationSpec())
    assert torch.equal(found.x_hat, expected.x_hat) and torch.equal(found.radius, expected.radius)


def test_threads_do_not_show():
    x, threads = torch.randn(999, 96), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = quantize(x, ActivationSpec()).x_hat
        torch.set_num_threads(4)
        four = quantize(x, ActivationSpec()).x_hat
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(one, four)


def test_gradients_take_the_plain_path():
    x = torch.randn(4, 32, requires_grad=True)
    with native.disabled():
        expected = quantize(x.detach(), ActivationSpec())
    assert torch.equal(quantize(x, ActivationSpec()).x_hat.detach(), expected.x_hat)


def test_shapes_are_known_without_data():
    x = torch.empty(2, 3, 70, device="meta")
    x_hat, radius, *_ = quantize_groups(x, 4, 32, False, False, None, 1.0, 0.2)
    assert x_hat.shape == x.shape and radius.shape == (2, 3, 3)


def test_both_sides_have_the_same_constants():
    assert interface.CONSTANTS["EPS"] == affine.EPS
    assert interface.CONSTANTS["STD_EPS"] == affine.STD_EPS
    assert interface.CONSTANTS["TIE_MARGIN"] == projection.TIE_MARGIN
    assert interface.CONSTANTS["ACTIVE_GUARDED"] == projection.Active.GUARDED
    assert interface.CONSTANTS["INFEASIBLE_C2"] == projection.INFEASIBLE_C2


def test_an_unknown_instruction_set_is_an_error():
    with pytest.raises(UnsupportedError, match="available: "):
        library.select("mmx")
