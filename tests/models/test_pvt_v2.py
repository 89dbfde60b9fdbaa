"""PVTv2: sizes of all variants, attention against its formula, roles, drop path."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from codtdq.declarations import declaration_of
from codtdq.errors import ConfigError
from codtdq.models.pvt_v2 import (
    PVT_V2,
    DropPath,
    PvtV2,
    PvtV2Config,
    SpatialReductionAttention,
    map_to_tokens,
    tokens_to_map,
)

TINY = PvtV2Config(dims=(8, 16, 20, 32), depths=(1, 1, 1, 1), mlp_ratios=(2, 2, 2, 2))
PARAMETERS_M = {"b0": 3.41, "b1": 13.50, "b2": 24.85, "b3": 44.73, "b4": 62.04, "b5": 81.44}


@pytest.mark.parametrize("variant", list(PVT_V2))
def test_pvt_v2_parameter_count(variant: str) -> None:
    with torch.device("meta"):
        model = PvtV2(PVT_V2[variant])
    millions = sum(p.numel() for p in model.parameters()) / 1e6
    assert millions == pytest.approx(PARAMETERS_M[variant], abs=0.005)


def test_pvt_v2_returns_a_map_per_stage() -> None:
    with torch.no_grad():
        maps = PvtV2(TINY).eval()(torch.zeros(2, 3, 64, 96))
    assert [tuple(m.shape) for m in maps] == [
        (2, 8, 16, 24),
        (2, 16, 8, 12),
        (2, 20, 4, 6),
        (2, 32, 2, 3),
    ]


@pytest.mark.parametrize("sr", [1, 2])
def test_attention_equals_its_formula(sr: int) -> None:
    attention = SpatialReductionAttention(8, heads=2, sr=sr).double()
    x = torch.randn(2, 24, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    source = x
    if sr > 1:
        source = attention.norm(map_to_tokens(attention.sr(tokens_to_map(x, 4, 6))))
    q, kv = attention.q(x), attention.kv(source)
    heads = []
    for h in (0, 1):
        own = slice(4 * h, 4 * h + 4)
        k, v = kv[..., :8][..., own], kv[..., 8:][..., own]
        heads.append((q[..., own] @ k.transpose(1, 2) / 2.0).softmax(-1) @ v)
    expected = attention.proj(torch.cat(heads, dim=-1))
    torch.testing.assert_close(attention(x, 4, 6), expected, rtol=0, atol=1e-12)


def test_tokens_and_maps_are_row_major_inverses() -> None:
    tokens = torch.arange(24.0).view(1, 12, 2)
    maps = tokens_to_map(tokens, 3, 4)
    assert torch.equal(maps[0, :, 1, 2], tokens[0, 6])
    assert torch.equal(map_to_tokens(maps), tokens)


def test_norm_eps_differs_between_blocks_and_embeddings() -> None:
    eps = {n: m.eps for n, m in PvtV2(TINY).named_modules() if isinstance(m, nn.LayerNorm)}
    loose = {n for n in eps if n.startswith("patch_embed") or n.endswith("attn.norm")}
    assert {eps[n] for n in loose} == {1e-5}
    assert {eps[n] for n in set(eps) - loose} == {1e-6}


def test_only_the_first_embedding_has_the_first_role() -> None:
    model = PvtV2(TINY)
    embeds = [model.get_submodule(f"patch_embed{n}") for n in (1, 2, 3, 4)]
    roles = [declaration_of(embed).roles["proj"] for embed in embeds]
    assert roles == ["first", "conv", "conv", "conv"]
    block = model.get_submodule("block1.0")
    assert declaration_of(block.attn).roles == dict.fromkeys(("q", "kv", "sr", "proj"), "attention")
    assert declaration_of(block.mlp).roles == {"fc1": "mlp", "fc2": "mlp"}


def test_drop_path_keeps_or_drops_whole_samples() -> None:
    layer = DropPath(0.25)
    x = torch.ones(400, 3, 2)
    assert torch.equal(layer.eval()(x), x)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        out = layer.train()(x)
    per_sample = out.flatten(1)
    assert (per_sample == per_sample[:, :1]).all()
    kept = per_sample[:, 0] > 0
    assert 0.65 < kept.float().mean() < 0.85
    torch.testing.assert_close(per_sample[kept], torch.full_like(per_sample[kept], 4 / 3))


def test_drop_path_grows_linearly_over_the_blocks() -> None:
    rates = [m.rate for m in PvtV2(TINY, drop_path=0.3).modules() if isinstance(m, DropPath)]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3])


def test_config_rejects_heads_that_do_not_divide() -> None:
    with pytest.raises(ConfigError, match=r"width 8 .* 3 heads"):
        PvtV2Config(dims=(8, 16, 20, 32), heads=(3, 2, 5, 8))
