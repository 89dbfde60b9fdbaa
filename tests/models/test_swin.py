from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from codtdq.declarations import declaration_of
from codtdq.models.swin import (
    MASKED_LOGIT,
    SWIN_B,
    SWIN_L,
    SWIN_S,
    SWIN_T,
    DropPath,
    PatchMerging,
    SwinBlock,
    SwinConfig,
    SwinTransformer,
    WindowAttention,
    relative_position_index,
    shift_mask,
    window_partition,
    window_reverse,
)

TINY = SwinConfig(
    embed_dim=8, depths=(2, 2), num_heads=(2, 4), window_size=4, img_size=64, drop_path=0.0
)


def randomize(module: nn.Module, seed: int = 0) -> nn.Module:
    """Fill parameters with values large enough for every term to matter; eval mode, float64."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return module.eval().double()


def noise(*shape: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def attend_pixel_by_pixel(block: SwinBlock, x: Tensor, height: int, width: int) -> Tensor:
    """Shifted window attention of one image, written per query token from its definition.

    Zero tokens pad the map to whole windows; a token attends to those tokens of its shifted window
    that are near it in the (cyclically continued) padded map without crossing its border.
    """
    attn, window = block.attn, block.window
    shift = window // 2 if block.shifted and min(height, width) > window else 0
    full_h, full_w = (-(-side // window) * window for side in (height, width))
    padded = x.new_zeros(full_h, full_w, x.shape[-1])
    padded[:height, :width] = block.norm1(x).view(height, width, -1)
    heads, dim = attn.num_heads, x.shape[-1] // attn.num_heads
    q, k, v = attn.qkv(padded).view(full_h, full_w, 3, heads, dim).unbind(2)
    out = torch.zeros_like(q)

    def cell(position: int, side: int) -> tuple[int, int]:
        rolled = (position - shift) % side
        return rolled // window, rolled % window

    for y in range(full_h):
        for x_ in range(full_w):
            (wy, iy), (wx, ix) = cell(y, full_h), cell(x_, full_w)
            logits, values = [], []
            for ky in range(full_h):
                for kx in range(full_w):
                    (vy, jy), (vx, jx) = cell(ky, full_h), cell(kx, full_w)
                    if (wy, wx) != (vy, vx) or abs(ky - y) >= window or abs(kx - x_) >= window:
                        continue
                    row = (iy - jy + window - 1) * (2 * window - 1) + (ix - jx + window - 1)
                    bias = attn.relative_position_bias_table[row]
                    logits.append((q[y, x_] * k[ky, kx]).sum(-1) * dim**-0.5 + bias)
                    values.append(v[ky, kx])
            weights = torch.stack(logits).softmax(0)
            out[y, x_] = (weights[..., None] * torch.stack(values)).sum(0)
    y = attn.proj(out.flatten(2))[:height, :width].reshape(height * width, -1)
    x = x + y
    return x + block.mlp(block.norm2(x))


def make_block(size: int, *, window: int = 3, shifted: bool = True) -> SwinBlock:
    block = SwinBlock(
        8, 2, resolution=(size, size), window=window, shifted=shifted, mlp_ratio=2, drop_path=0.0
    )
    return randomize(block)


@pytest.mark.parametrize("shifted", [False, True], ids=["plain", "shifted"])
@pytest.mark.parametrize("size", [(6, 6), (7, 8), (5, 4), (3, 3), (3, 7)], ids=str)
@torch.no_grad()
def test_block_equals_attention_by_definition(size: tuple[int, int], shifted: bool) -> None:
    block = make_block(6, shifted=shifted)
    x = noise(1, size[0] * size[1], 8)
    expected = attend_pixel_by_pixel(block, x[0], *size)
    torch.testing.assert_close(block(x, *size)[0], expected, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_block_treats_images_of_a_batch_alike() -> None:
    block = make_block(9)
    x = noise(3, 9 * 9, 8)
    expected = torch.cat([block(image[None], 9, 9) for image in x])
    torch.testing.assert_close(block(x, 9, 9), expected, rtol=1e-12, atol=1e-12)


def test_attention_gives_the_same_with_and_without_gradients() -> None:
    attn = randomize(WindowAttention(8, 3, 2))
    x, mask = noise(2, 4 * 9, 8), torch.from_numpy(shift_mask(6, 6, 3, 1)).double()
    for offsets in (None, mask):
        tracked = attn(x, offsets)
        with torch.no_grad():
            fused = attn(x, offsets)
        torch.testing.assert_close(tracked.detach(), fused, rtol=1e-12, atol=1e-12)
    tracked.sum().backward()
    assert attn.relative_position_bias_table.grad.abs().sum() > 0


def test_relative_position_index_of_a_small_window() -> None:
    expected = [[4, 3, 1, 0], [5, 4, 2, 1], [7, 6, 4, 3], [8, 7, 5, 4]]
    index = relative_position_index(2)
    assert index.tolist() == expected
    assert index.dtype == torch.int64


def test_window_partition_is_undone_by_reverse() -> None:
    x = noise(2, 6, 9, 5)
    windows = window_partition(x, 3)
    assert windows.shape == (2, 6, 9, 5)
    assert torch.equal(windows[1, 4, 5], x[1, 3 + 1, 3 + 2])
    assert torch.equal(window_reverse(windows, 3, 6, 9), x)


def test_shift_mask_has_the_released_value_and_one_free_window() -> None:
    mask = shift_mask(12, 8, 4, 2)
    assert mask.shape == (6, 16, 16)
    assert mask.dtype == np.float32
    assert set(np.unique(mask)) == {MASKED_LOGIT, 0.0} == {-100.0, 0.0}
    blocked = (mask != 0).any((1, 2))
    assert blocked.tolist() == [False, True, False, True, True, True]


@pytest.mark.parametrize("size", [(96, 96), (64, 128), (100, 76), (52, 90)], ids=str)
@torch.no_grad()
def test_network_at_another_size_equals_one_built_for_it(size: tuple[int, int]) -> None:
    model = randomize(SwinTransformer(TINY))
    larger = SwinTransformer(replace(TINY, img_size=max(size))).eval().double()
    weights = {k: v for k, v in model.state_dict().items() if not k.endswith("attn_mask")}
    missing = larger.load_state_dict(weights, strict=False)
    assert all(key.endswith("attn_mask") for key in missing.missing_keys)
    image = noise(2, 3, *size)
    for ours, theirs in zip(model(image), larger(image)):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_network_uses_the_loaded_mask_at_the_built_size() -> None:
    model = randomize(SwinTransformer(TINY))
    image = noise(1, 3, 64, 64)
    before = model(image)[-1]
    model.layers[0].blocks[1].attn_mask.zero_()
    assert (model(image)[-1] - before).abs().max() > 1e-3


def test_masks_made_in_inference_mode_serve_training() -> None:
    shift_mask.cache_clear()
    model = SwinTransformer(TINY)
    with torch.inference_mode():
        model(torch.zeros(1, 3, 96, 96))
    model(torch.zeros(1, 3, 96, 96))[-1].sum().backward()


@torch.no_grad()
def test_patch_merging_orders_neighbours_by_column_and_pads_odd_sides() -> None:
    merge = PatchMerging(1).eval()
    merge.norm = nn.Identity()
    merge.reduction = nn.Identity()
    x = torch.arange(1.0, 7.0).view(1, 6, 1)  # rows (1 2 3), (4 5 6)
    assert merge(x, 2, 3).tolist() == [[[1, 4, 2, 5], [3, 6, 0, 0]]]


def test_drop_path_acts_in_training_only_and_keeps_the_mean() -> None:
    drop = DropPath(0.25)
    x = torch.ones(4000, 2)
    out = drop.train()(x)
    assert out.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert torch.equal(out[:, 0], out[:, 1])  # per sample
    assert out.mean().item() == pytest.approx(1.0, abs=0.05)
    assert drop.eval()(x) is x


def test_drop_path_rate_grows_with_depth() -> None:
    model = SwinTransformer(replace(TINY, drop_path=0.3))
    rates = [block.drop_path.rate for stage in model.layers for block in stage.blocks]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3])


@pytest.mark.parametrize(
    ("config", "millions"),
    [
        pytest.param(SWIN_T, 27.52, id="tiny"),
        pytest.param(replace(SWIN_T, window_size=12, img_size=384), 27.57, id="tiny-384"),
        pytest.param(SWIN_S, 48.84, id="small"),
        pytest.param(replace(SWIN_B, window_size=12, img_size=384), 86.88, id="base-384"),
        pytest.param(replace(SWIN_L, window_size=12, img_size=384), 195.20, id="large-384"),
    ],
)
def test_parameter_counts_are_the_published_ones(config: SwinConfig, millions: float) -> None:
    with torch.device("meta"):
        model = SwinTransformer(config)
    final_norm = 2 * model.feature_dims[-1]  # part of the published count, absent here
    count = sum(p.numel() for p in model.parameters()) + final_norm
    assert count / 1e6 == pytest.approx(millions, abs=0.005)


def test_layer_roles_name_existing_children() -> None:
    model = SwinTransformer(TINY)
    roles = {}
    for name, module in model.named_modules():
        for child, role in declaration_of(module).roles.items():
            assert isinstance(getattr(module, child), (nn.Linear, nn.Conv2d))
            roles[f"{name}.{child}"] = role
    assert roles["patch_embed.proj"] == "first"
    assert roles["layers.0.blocks.1.attn.qkv"] == "attention"
    assert roles["layers.1.blocks.0.attn.proj"] == "attention"
    assert roles["layers.1.blocks.1.mlp.fc1"] == roles["layers.0.blocks.0.mlp.fc2"] == "mlp"
    assert roles["layers.0.downsample.reduction"] == "linear"
    linears = [n for n, m in model.named_modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
    assert sorted(roles) == sorted(linears)


def test_a_network_keeps_its_masks_once() -> None:
    """Its blocks hold them: the cache is for other sizes than the one that it was built for."""
    shift_mask.cache_clear()
    SwinTransformer(SwinConfig(embed_dim=8, depths=(2, 2), num_heads=(2, 2), img_size=64))
    assert shift_mask.cache_info().currsize == 0


def test_a_bias_is_kept_from_the_second_call_of_a_kind_on() -> None:
    attention = WindowAttention(8, 3, 2).double().eval()
    x, mask = noise(1, 4 * 9, 8), torch.from_numpy(shift_mask(6, 6, 3, 1)).double()
    with torch.no_grad():
        for given in (None, mask):
            first = attention(x, given)
            assert attention._kept_bias[1] is None
            assert torch.equal(attention(x, given), first)
            kept = attention._kept_bias[1]
            assert torch.equal(attention(x, given), first)
            assert kept is not None and attention._kept_bias[1] is kept
        attention.relative_position_bias_table.add_(1)
        attention(x, mask)
    assert attention._kept_bias[1] is None
