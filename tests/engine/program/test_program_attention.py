"""Attention: near float64, the same bits with every set and number of threads, any strides."""

import math

import pytest
import torch
from carrier_cases import bounded, everywhere, random, same
from engine_cases import needs_engine
from hypothesis import given
from hypothesis import strategies as st
from instruction_cases import run

from codtdq.engine.program.lowering import Instruction
from codtdq.engine.program.program import Program
from codtdq.models.swin import SwinBlock, SwinConfig, SwinTransformer

pytestmark = needs_engine


# Largest errors of outputs of size 1 under scores of up to 25. Eight bits of a query leave such a
# score an error of a tenth; from `rounded`, which rounds likewise, a code may differ.
BOUNDS = {"float32": 2e-5, "int8": 2.5e-1}
FROM_TWIN = 3e-2
PRODUCTS = pytest.mark.parametrize("products", BOUNDS)


def attend(q, k, v, scale=None, bias=None, mask=None, out=None, products="int8", rows=None):
    """softmax(q k^T scale + bias + mask) v by the instruction `attention`."""
    batch, heads, queries, depth = q.shape
    shape = (batch, heads, queries, k.shape[2])
    y = torch.empty(batch, queries, heads, v.shape[3]).transpose(1, 2) if out is None else out
    tables = [
        None if one is None else one.repeat(batch // one.shape[0], 1, 1, 1).expand(shape)
        for one in (bias, mask)
    ]
    scale = depth**-0.5 if scale is None else scale
    ints = [["float32", "int8"].index(products)]
    threads = torch.get_num_threads()
    code = run(
        lambda places: Instruction("attention", places, ints, [scale]),
        *(y, q, k, v, *tables, rows),
        threads=threads,
    )
    assert code == 0
    return y


def reference(q, k, v, scale=None, bias=None, mask=None):
    q, k, v = (x.double() for x in (q, k, v))
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    for table in (bias, mask):
        if table is not None:
            scores = scores + table.double().repeat(q.shape[0] // table.shape[0], 1, 1, 1)
    return (scores.softmax(-1) @ v).float()


def rounded(q, k, v, scale=None, bias=None, mask=None, block=192):
    """What 8-bit products give, in plain words: the definition of `attention8.h`."""

    def coded(x, dim):
        unit = x.abs().amax(dim, keepdim=True) / 127
        return torch.where(unit > 0, (x / unit).round() * unit, 0.0)

    k = k - k.mean(-2, keepdim=True)
    scores = coded(q, -1) @ coded(k, -1).transpose(-1, -2)
    scores = scores * (q.shape[-1] ** -0.5 if scale is None else scale)
    for table in (bias, mask):
        if table is not None:
            scores = scores + table.repeat(q.shape[0] // table.shape[0], 1, 1, 1)
    top, values, above, below = scores.amax(-1, keepdim=True), coded(v, -2), 0.0, 0.0
    for begin in range(0, k.shape[-2], block):
        own = scores[..., begin : begin + block]
        largest = own.amax(-1, keepdim=True).clamp_min(-1e38)
        weights = (255 * (own - largest).exp()).round()
        share = (largest - top).exp()
        above = above + share * (weights @ values[..., begin : begin + block, :])
        below = below + share * weights.sum(-1, keepdim=True)
    return above / below


def qkv(batch, heads, queries, keys, depth, width, seed=0, size=1.5):
    shapes = ((queries, depth), (keys, depth), (keys, width))
    sizes = (size, size, 1.0)
    return [
        random(batch, heads, *shape, seed=seed + i) * factor
        for i, (shape, factor) in enumerate(zip(shapes, sizes, strict=True))
    ]


@bounded
@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 80),
    st.integers(1, 150),
    st.integers(1, 70),
    st.integers(1, 70),
    st.integers(0, 3),
)
def test_any_shape(batch, heads, queries, keys, depth, width, tables):
    q, k, v = qkv(batch, heads, queries, keys, depth, width)
    bias = random(1, heads, queries, keys, seed=5) if tables & 1 else None
    mask = random(batch, 1, queries, keys, seed=6) if tables & 2 else None
    expected = reference(q, k, v, 0.3, bias, mask)
    for products, bound in BOUNDS.items():
        given = {"scale": 0.3, "bias": bias, "mask": mask, "products": products}
        first = attend(q, k, v, **given)
        assert (first - expected).abs().max() < bound, products
        if products == "int8":
            twin = rounded(q, k, v, 0.3, bias, mask)
            assert (first - twin).abs().max() < FROM_TWIN

        def check(where, given=given, first=first):
            assert same(attend(q, k, v, **given), first), where

        everywhere(check)


@PRODUCTS
@pytest.mark.parametrize(
    ("batch", "heads", "queries", "keys", "depth"),
    [(3, 4, 144, 144, 32), (2, 2, 49, 49, 32), (1, 2, 577, 577, 64), (1, 1, 1025, 1025, 128)],
)
def test_networks_own_shapes(batch, heads, queries, keys, depth, products):
    q, k, v = qkv(batch, heads, queries, keys, depth, depth)
    found, expected = attend(q, k, v, products=products), reference(q, k, v)
    assert (found - expected).abs().max() < BOUNDS[products]
    relative = (found - expected).norm() / expected.norm()
    assert relative < {"float32": 3e-6, "int8": 3e-2}[products]
    if products == "int8":
        twin = rounded(q, k, v)
        assert (found - twin).norm() / twin.norm() < 2e-3

    def check(where):
        assert same(attend(q, k, v, products=products), found), where

    everywhere(check)


def test_sums_of_8_bit_products_hold_the_largest_ones():
    """Every channel and value at the end of its range: the longest sums do not wrap."""
    for depth in (32, 64, 128, 300):
        q = torch.full((1, 1, 7, depth), 0.7)
        k, v = torch.full((1, 1, 300, depth), 0.7), torch.full((1, 1, 300, depth), -3.0)
        everywhere(
            lambda where, q=q, k=k, v=v, depth=depth: (
                None
                if torch.allclose(attend(q, k, v), torch.full((1, 1, 7, depth), -3.0), rtol=1e-5)
                else pytest.fail(f"{where}, {depth} channels")
            )
        )


def test_reads_and_writes_views_without_copies():
    rows = random(2 * 36, 3, 4, 16)
    q, k, v = (x.view(2, 36, 4, 16).transpose(1, 2) for x in rows.unbind(1))
    y = torch.full((2, 36, 80), 7.0)
    out = y[..., :64].view(2, 36, 4, 16).transpose(1, 2)
    found = attend(q, k, v, out=out)
    assert found.data_ptr() == y.data_ptr()
    assert same(out, attend(q.contiguous(), k.contiguous(), v.contiguous()))
    assert (y[..., 64:] == 7).all()


def test_masks_repeat_over_windows():
    q, k, v = qkv(6, 2, 9, 9, 8, 8)
    mask = torch.zeros(3, 1, 9, 9)
    mask[1, :, :, 4:], mask[2, :, 2:6] = -100.0, -math.inf
    mask[2, :, 2:6, :3] = 0.0
    found = attend(q, k, v, mask=mask)
    assert torch.allclose(found, reference(q, k, v, None, None, mask), atol=5e-2)
    found = attend(q, k, v, mask=mask, products="float32")
    assert torch.allclose(found, reference(q, k, v, None, None, mask), atol=1e-6)


@PRODUCTS
def test_values_that_are_not_finite_stay_in_their_row(products):
    q, k, v = qkv(1, 2, 20, 20, 8, 8)
    clean = attend(q, k, v, products=products)
    q[0, 1, 3, 2] = math.nan
    found = attend(q, k, v, products=products)
    assert found[0, 1, 3].isnan().all()
    found[0, 1, 3] = clean[0, 1, 3]
    assert same(found, clean)
    q[0, 1, 3, 2], k[0, 0, 5, 1] = 0.0, math.nan

    def check(where):
        found = attend(q, k, v, products=products)
        assert found[0, 0].isnan().all(), where
        assert not found[0, 1].isnan().any(), where

    everywhere(check)


def test_large_scores_do_not_overflow():
    q, k, v = qkv(1, 1, 30, 40, 32, 32, size=60.0)
    expected = reference(q, k, v)
    found = attend(q, k, v, products="float32")
    assert (found - expected).abs().max() < 2e-3  # scores of thousands have few digits
    assert attend(q, k, v).isfinite().all()


def test_tokens_elsewhere():
    """A table of rows instead of copies: windows of a map, shifted, read and written in place."""
    grid = torch.arange(8 * 8).view(8, 8).roll((-2, -2), (0, 1))
    rows = grid.view(2, 4, 2, 4).transpose(1, 2).reshape(-1).to(torch.int32)
    tokens = random(64, 3, 2, 16)
    ordered = tokens[rows.long()]
    q, k, v = (ordered[:, i].reshape(4, 16, 2, 16).transpose(1, 2) for i in range(3))
    expected = torch.empty(64, 2, 16)
    expected[rows.long()] = attend(q, k, v).transpose(1, 2).reshape(64, 2, 16)
    q, k, v = (tokens[:, i].view(4, 16, 2, 16).transpose(1, 2) for i in range(3))
    y = torch.empty(4, 16, 2, 16).transpose(1, 2)
    everywhere(lambda where: attend(q, k, v, out=y, rows=rows))
    assert same(y.transpose(1, 2).reshape(64, 2, 16), expected)


def build_code(change):
    """What the build says of an instruction of attention with something changed."""
    q, k, v = qkv(2, 1, 4, 4, 8, 8)
    rows = torch.arange(8, dtype=torch.int32)
    given = {"q": q, "k": k, "v": v, "rows": rows, "ints": [1], "y": torch.empty(2, 1, 4, 8)}
    given |= change
    return run(
        lambda places: Instruction("attention", places, given["ints"], [1.0]),
        *(given[name] for name in ("y", "q", "k", "v")),
        *(None, None, given["rows"]),
    )


@pytest.mark.parametrize(
    "change",
    [
        {"rows": torch.tensor([0, 1, 2, 3, 4, 5, 6, 8], dtype=torch.int32)},
        {"rows": torch.tensor([0, 1, 2, 3, 4, 5, 6, -1], dtype=torch.int32)},
        {"rows": torch.arange(7, dtype=torch.int32)},
        {"ints": [2]},
        {"ints": []},
        {"k": torch.zeros(2, 1, 4, 9)},
        {"v": torch.zeros(2, 1, 5, 8)},
        {"q": torch.zeros(2, 1, 8, 4).transpose(2, 3)},
        {"q": torch.zeros(3, 1, 4, 8)},
    ],
)
def test_refuses_what_does_not_fit(change):
    assert build_code({}) == 0
    assert build_code(change) == 1


def test_windows_that_are_padded_with_a_token_of_their_own_are_captured():
    config = SwinConfig(
        embed_dim=8, depths=(2,), num_heads=(2,), window_size=4, img_size=64, drop_path=0.0
    )
    model = SwinTransformer(config).eval()
    x = torch.randn(1, 3, 40, 40)  # 10 x 10 tokens
    blocks = [one for one in model.modules() if isinstance(one, SwinBlock)]
    with torch.inference_mode():
        for block in blocks:
            block.pad_token = torch.zeros(8)
        plain = model(x)[-1]
        for block in blocks:
            block.pad_token = torch.full((8,), 3.0)
        expected = model(x)[-1]
    found = Program(model, (x,))(x)[-1]
    apart = float((expected - plain).norm())
    assert apart > 1e-2 and float((found - expected).norm()) < 0.2 * apart
