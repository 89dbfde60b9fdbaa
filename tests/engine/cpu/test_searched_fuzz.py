"""Searched groups of random shapes, strides, grids and values: no crash, NaN stays NaN, no worse
losses than torch's.
"""

import math

import torch
from engine_cases import SETS, group_losses, instruction_set, needs_engine, torch_threads
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codtdq.engine.cpu.searched import encode_pixels, encode_tokens, search_spec
from codtdq.schemes.pixel_groups import PixelGroups
from codtdq.schemes.token_groups import TokenGroups
from codtdq.schemes.transforms import Transform, Transformed

pytestmark = needs_engine
bounded = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
SPECIAL = {
    "plain": None,
    "zeros": 0.0,
    "denormal": 1e-40,
    "tiny": 1e-12,
    "large": 1e30,
    "huge": -3e38,
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
}
LAYOUTS = ("plain", "transposed", "strided", "cut", "images inside", "repeated")


def laid_out(x, layout):
    """The same values in other places of memory."""
    if layout == "transposed":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "strided":
        return x.repeat_interleave(2, 2)[..., ::2]
    if layout == "cut":
        return torch.cat([x, x], 1)[:, : x.shape[1]]
    if layout == "images inside":
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == "repeated":  # all tokens of an image in one place
        return x[:, :1].expand_as(x)
    return x


def tokens(shape, seed, special, share, layout):
    """Normal values of which a share, or all of them, is special."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator) * torch.rand(shape[-1], generator=generator)
    if SPECIAL[special] is not None:
        x[torch.rand(shape, generator=generator) < share] = SPECIAL[special]
    return laid_out(x, layout)


def transform_of(kind, channels, seed):
    """None, or the ingredients whose bits are set in `kind`."""
    generator = torch.Generator().manual_seed(seed)
    shift, scale = (torch.rand(channels, generator=generator) + 0.1 for _ in range(2))
    order = torch.randperm(channels, generator=generator)
    return Transform(
        shift if kind & 1 else None,
        scale if kind & 2 else None,
        order if kind & 4 else None,
        bool(kind & 8),
    )


def decoded(scheme, x, transform):
    """What the codes of the engine stand for, [B, N, C]; checks what belongs to them."""
    images, positions, channels = x.shape
    form = Transformed(scheme, transform=transform).lower()
    spec = search_spec(form.grid, form.transform)
    if scheme.along_pixels:
        found = encode_pixels(x, spec, scheme.code_bits)
        steps = found.step.repeat_interleave(min(scheme.group, positions), 1)[:, :positions]
        codes = found.codes.view(x.shape)
    else:
        stored = min(scheme.group, -(-channels // 4) * 4)
        found = encode_tokens(x, spec, stored, scheme.code_bits)
        groups = found.codes.view(images * positions, -1, stored)
        assert torch.equal(groups.sum(2, dtype=torch.int32), found.sums)
        assert not found.codes[:, channels:].any()
        steps = found.step.repeat_interleave(stored, 1)[:, :channels].reshape(x.shape)
        codes = found.codes[:, :channels].reshape(x.shape)
    assert not codes[steps.isnan()].any()
    return codes * steps


@bounded
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 70), st.integers(1, 140)),
    seed=st.integers(0, 2**31),
    special=st.sampled_from(sorted(SPECIAL)),
    share=st.sampled_from([0.003, 0.3, 1.0]),
    layout=st.sampled_from(LAYOUTS),
    grid=st.tuples(
        st.integers(2, 7),
        st.integers(1, 32).map(lambda n: 4 * n),
        st.integers(1, 16),
        st.sampled_from([0.0, 0.5]),
        st.sampled_from(["none", "inside", "wide"]),
    ),
    kind=st.sampled_from([TokenGroups, PixelGroups]),
    unit=st.sampled_from([0.0, 0.0, 1e-4, 0.01, 1e20]),
    ingredients=st.sampled_from([0, 0, 1, 2, 4, 8, 11, 15]),
    name=st.sampled_from(SETS),
    threads=st.integers(1, 3),
)
def test_codes(shape, seed, special, share, layout, grid, kind, unit, ingredients, name, threads):
    bits, *others = grid
    scheme = kind(min(bits, 4) if "wide" in others else bits, *others, unit=unit)
    x = tokens(shape, seed, special, share, layout)
    transform = transform_of(ingredients, shape[2], seed)
    with instruction_set(name), torch_threads(threads):
        found = decoded(scheme, x, transform)
    y = transform.tokens(x)
    expected = scheme.plain(y)
    lost = ~y.flatten(1).isfinite().all(1)
    if not unit:  # under a given one only the group is lost
        assert found[lost].isnan().all()
    assert torch.equal(found.isnan(), expected.isnan())
    for image in (~expected.isnan().flatten(1).any(1)).nonzero().flatten().tolist():
        one, ours, theirs = (t[image : image + 1].double() for t in (y, found, expected))
        size = one.abs().max()
        # clipping and rounding cost no more than losing the value would
        assert (ours - one).abs().max() <= size + 1e-29
        if 1e-12 <= size <= 1e12:  # squares are neither lost nor beyond float32
            ours, theirs = (group_losses(scheme, t, one) for t in (ours, theirs))
            off = 2.4e-7 * size
            assert bool((ours <= theirs * (1 + 1e-4) + 2 * off * theirs.sqrt() + off**2).all())
