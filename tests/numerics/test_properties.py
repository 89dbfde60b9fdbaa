"""What the paper promises, on arbitrary groups (Lemma 1, Proposition 1), and what users rely on."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codtdq.numerics import INFEASIBLE_C1, INFEASIBLE_C2, ActivationSpec, Active, quantize
from codtdq.numerics.affine import qmax_of
from codtdq.numerics.packing import pack, packed_width, unpack

finite = st.floats(-(2.0**120), 2.0**120, width=32)
small = st.floats(-4, 4, width=32)


def kinds_of_groups(size=32):
    """Arbitrary, small, constant, sparse, offset and one-outlier groups."""
    arbitrary = st.lists(finite, min_size=size, max_size=size)
    plain = st.lists(small, min_size=size, max_size=size)
    constant = finite.map(lambda v: [v] * size)
    sparse = st.tuples(plain, st.lists(st.booleans(), min_size=size, max_size=size)).map(
        lambda t: [v if keep else 0.0 for v, keep in zip(*t)]
    )
    offset = st.tuples(plain, st.floats(10, 1000, width=32)).map(
        lambda t: [0.05 * v + t[1] for v in t[0]]
    )
    outlier = st.tuples(plain, st.floats(50, 2.0**20, width=32)).map(lambda t: [t[1], *t[0][1:]])
    few = st.lists(st.sampled_from([0.0, 0.5, -0.5, 1.0, 7.0]), min_size=size, max_size=size)
    return st.one_of(arbitrary, plain, constant, sparse, offset, outlier, few)


specs = st.builds(
    ActivationSpec,
    bits=st.integers(2, 8),
    tau=st.one_of(st.none(), st.floats(0.05, 3)),
    zero_ratio=st.one_of(st.none(), st.floats(0.01, 0.95)),
    group_size=st.sampled_from([8, 12, 16, 24, 32]),  # 12 and 24 leave a short last group
    percentile=st.one_of(st.none(), st.floats(0.05, 1)),
)


@settings(max_examples=600, deadline=None)
@given(kinds_of_groups(), specs)
def test_lemma_1_holds_where_a_bound_is_enforced(values, spec):
    result = quantize(torch.tensor([values]), spec)
    if spec.tau is not None:
        enforced = (result.infeasible & INFEASIBLE_C1) == 0
        limit = spec.tau * result.sigma.double() * (1 + 1e-6)
        assert bool((result.step.double() <= limit)[enforced].all())
    if spec.zero_ratio is not None:
        enforced = (result.infeasible & INFEASIBLE_C2) == 0
        assert bool((result.zero_mass <= spec.zero_ratio)[enforced].all())


@settings(max_examples=400, deadline=None)
@given(kinds_of_groups(), specs)
def test_proposition_1_bounds_the_rounding_error(values, spec):
    x = torch.tensor([values])
    result = quantize(x, spec)
    k = result.radius.shape[-1]
    short = -32 % spec.group_size
    groups = torch.nn.functional.pad(x, (0, short)).reshape(k, -1).double()
    x_hat = torch.nn.functional.pad(result.x_hat, (0, short)).reshape(k, -1).double()
    radius, step = result.radius.reshape(k, 1).double(), result.step.reshape(k, 1).double()
    clipped = groups.clamp(-radius, radius)
    error = (x_hat - clipped).abs()
    slack = 1e-6 * radius + 1e-45
    assert bool((error <= step / 2 + slack).all())
    norm = error.square().sum(-1).sqrt()
    bound = math.sqrt(groups.shape[1]) * step[:, 0] / 2
    assert bool((norm <= bound * (1 + 1e-4) + 1e-40).all())
    if spec.tau is not None:  # the second half of Eq. rnd_bound
        enforced = ((result.infeasible & INFEASIBLE_C1) == 0).reshape(k)
        limit = math.sqrt(groups.shape[1]) * spec.tau * result.sigma.reshape(k).double() / 2
        assert bool((norm <= limit * (1 + 1e-4) + 1e-40)[enforced].all())


@settings(max_examples=300, deadline=None)
@given(st.integers(2, 8), st.floats(2.0**-16, 2.0**20, width=32), st.data())
def test_values_on_the_grid_come_back_unchanged(bits, radius, data):
    qmax = qmax_of(bits)
    codes = data.draw(st.lists(st.integers(-qmax, qmax), min_size=31, max_size=31))
    step = torch.tensor(radius) / qmax
    x = (torch.tensor([[qmax, *codes]]) * step).float()
    result = quantize(x, ActivationSpec(bits=bits, tau=None, zero_ratio=None))
    assert result.q.tolist() == [[qmax, *codes]]
    assert torch.allclose(result.x_hat, x, rtol=1e-6, atol=0)


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 8), st.integers(1, 70), st.integers(1, 4), st.data())
def test_pack_then_unpack_is_the_identity(bits, count, rows, data):
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    codes = torch.tensor(
        data.draw(st.lists(st.integers(low, high), min_size=rows * count, max_size=rows * count)),
        dtype=torch.int8,
    ).reshape(rows, count)
    packed = pack(codes, bits)
    assert torch.equal(unpack(packed, count, bits), codes)
    assert packed.shape[-1] == packed_width(count, bits)
    if bits <= 4:
        assert packed.shape[-1] * 2 - count in (0, 1)  # at most half a byte of padding


@pytest.mark.parametrize("projection", ["min", "guarded"])
@pytest.mark.parametrize("channels", [1, 3, 31, 32, 33, 100])
def test_batch_and_token_order_never_change_a_token(channels, projection):
    g = torch.Generator().manual_seed(1)
    x = torch.randn(4, 50, channels, generator=g) * torch.rand(4, 50, 1, generator=g).exp()
    spec = ActivationSpec(projection=projection)
    whole = quantize(x, spec)
    order = torch.randperm(50, generator=g)
    assert torch.equal(quantize(x[:, order], spec).x_hat, whole.x_hat[:, order])
    assert torch.equal(quantize(x[2:3, 7:8], spec).x_hat, whole.x_hat[2:3, 7:8])
    assert torch.equal(quantize(x[2:3, 7:8], spec).step, whole.step[2:3, 7:8])


@pytest.mark.parametrize("channels", [1, 3, 31, 33])
def test_padding_leaves_no_trace_in_the_default_reading(channels):
    """A short last group is quantized as if the group size were its own length."""
    x = torch.randn(64, channels, generator=torch.Generator().manual_seed(0)) + 0.3
    tail = channels % 32
    result = quantize(x, ActivationSpec(group_size=32))
    alone = quantize(x[:, -tail:], ActivationSpec(group_size=tail))
    assert torch.equal(result.x_hat[:, -tail:], alone.x_hat)
    for name in ("radius", "step", "sigma", "zero_mass", "clip_rate", "active"):
        assert torch.equal(getattr(result, name)[:, -1:], getattr(alone, name)), name


@settings(max_examples=200, deadline=None)
@given(kinds_of_groups(), st.floats(0.05, 2), st.floats(0.05, 0.9))
def test_guarded_is_never_worse_than_the_base_or_the_bound(values, tau, zr):
    x = torch.tensor([values])
    error = {}
    for name, spec in {
        "base": ActivationSpec(tau=None, zero_ratio=None),
        "bound": ActivationSpec(tau=tau, zero_ratio=zr),
        "guarded": ActivationSpec(tau=tau, zero_ratio=zr, projection="guarded"),
    }.items():
        error[name] = (quantize(x, spec).x_hat - x).double().square().sum().item()
    assert error["guarded"] <= min(error["base"], error["bound"]) * (1 + 1e-6)


def test_guarded_drops_a_bound_that_costs_more_than_it_saves():
    x = torch.tensor([[0.5] * 30 + [3.5, 14.0]])
    bounded = quantize(x, ActivationSpec(tau=None, zero_ratio=0.2))
    guarded = quantize(x, ActivationSpec(tau=None, zero_ratio=0.2, projection="guarded"))
    assert bounded.active.item() == Active.C2
    assert guarded.active.item() == Active.GUARDED  # clipping 14 to 7 costs more than it saves
    assert guarded.radius.item() > bounded.radius.item()


def test_guarded_keeps_a_bound_that_costs_nothing():
    """Where it reports a bound, the radius is the bound's and the error not above the base's."""
    x = torch.randn(2000, 32, generator=torch.Generator().manual_seed(0))
    base = quantize(x, ActivationSpec(tau=None, zero_ratio=None))
    bounded = quantize(x, ActivationSpec())
    guarded = quantize(x, ActivationSpec(projection="guarded"))
    kept = (guarded.active == Active.C2)[:, 0]
    assert 10 < kept.sum() < (bounded.active == Active.C2).sum()
    assert torch.equal(guarded.radius[kept], bounded.radius[kept])
    error = [(r.x_hat - x).double().square().sum(-1)[kept] for r in (guarded, base)]
    assert bool((error[0] <= error[1]).all())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mode", ["per_tensor", "per_channel", "per_token_group"])
@pytest.mark.parametrize("reading", [{}, {"literal": True}, {"projection": "guarded"}])
def test_nan_and_infinity_come_out_as_nan(bad, mode, reading):
    x = torch.randn(5, 40)
    x[2, 33] = bad
    result = quantize(x, ActivationSpec(mode=mode, **reading))
    assert torch.isnan(result.x_hat[2, 33])
    assert torch.isnan(result.step).any()
    if mode == "per_token_group":  # the damage stays inside the group
        assert torch.isfinite(result.x_hat[2, :32]).all()
        assert torch.isfinite(result.x_hat[[0, 1, 3, 4]]).all()


@pytest.mark.parametrize("mode", ["per_tensor", "per_channel", "per_token_group"])
@pytest.mark.parametrize("shape", [(0, 7, 64), (2, 0, 64), (0, 40)])
def test_empty_tensors_work(mode, shape):
    result = quantize(torch.empty(shape), ActivationSpec(mode=mode))
    assert result.x_hat.shape == shape and result.q.shape == shape
    for name in ("radius", "step", "sigma", "eta", "zero_mass", "clip_rate", "active"):
        assert getattr(result, name).numel() == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_inputs_use_float32_statistics(dtype):
    x = torch.randn(6, 64).to(dtype)
    result = quantize(x, ActivationSpec())
    exact = quantize(x.float(), ActivationSpec())
    assert result.x_hat.dtype is dtype and result.step.dtype is torch.float32
    assert torch.equal(result.step, exact.step) and torch.equal(result.q, exact.q)
    assert torch.equal(result.x_hat, exact.x_hat.to(dtype))


@pytest.mark.parametrize("shape", [(2, 5, 4, 6), (2, 40, 3, 3), (2, 7, 7), (2, 33, 9)])
def test_channels_first_is_channels_last_of_the_tokens(shape):
    x = torch.randn(shape)
    first = quantize(x, ActivationSpec(), layout="first")
    tokens = x.flatten(2).transpose(1, 2)
    last = quantize(tokens, ActivationSpec())
    assert torch.equal(first.x_hat.flatten(2).transpose(1, 2), last.x_hat)
    assert first.x_hat.shape == x.shape and first.q.shape == x.shape
    assert torch.equal(first.step, last.step)


def test_fixed_radii_are_used_as_they_are():
    x = torch.tensor([[1.0, -2.0, 30.0], [0.2, 0.0, -7.0]])
    spec = ActivationSpec(mode="per_channel")
    result = quantize(x, spec, radius=torch.tensor([0.7, 7.0, 7.0]))
    assert torch.allclose(result.x_hat, torch.tensor([[0.7, -2.0, 7.0], [0.2, 0.0, -7.0]]))
    assert result.clip_rate.tolist() == [0.5, 0.0, 0.5]
