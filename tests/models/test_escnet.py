"""ESCNet v1, v2 and small: keys, golden outputs of the released graphs, training behaviour."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from codtdq.errors import DataError
from codtdq.models import build_model, model_info
from codtdq.models.escnet_blocks import (
    ChannelAttention,
    ConvBottleneck,
    image_tiles,
    laplacian_texture,
)

HERE = Path(__file__).parent
OUTPUTS = ("edge", "m4", "m3", "m2", "m1")
PARAMETERS = {"escnet": 99_903_234, "escnet-v2": 68_640_556}
FIXTURES = {"escnet": "escnet_v1", "escnet-v2": "escnet_v2"}
EDGE_TOLERANCE = {"escnet": 1e-4, "escnet-v2": 3e-5}
INPUTS = {"b224": (8, 224), "a416": (7, 416)}  # tag: seed, side

# feature name of the fixture -> module whose output it is
FEATURES = {
    "escnet": {
        **{f"align{n}": f"asa{n}" for n in (1, 2, 3, 4)},
        **{f"fem{n}": f"decoder.De_conv{n}" for n in (1, 2, 3, 4)},
        **{f"p{n}": f"decoder.decoder_block{n}" for n in (1, 2, 3, 4)},
        "edgefeat": "enhanced.edge_conv",
    },
    "escnet-v2": {
        **{f"align{n}": f"channel_align.{4 - n}" for n in (1, 2, 3, 4)},
        **{f"fem{n}": f"mask_decoder.fem_layers.{4 - n}" for n in (1, 2, 3, 4)},
        **{f"p{n}": f"mask_decoder.decode_blocks.{3 - n}" for n in (1, 2, 3)},
        "p4": "mask_decoder.coarse_head",
        "edgefeat": "edge_branch.edge_fusion",
    },
}


def golden_weight(key: str, shape: tuple[int, ...]) -> np.ndarray:
    """The reproducible pseudo-random value of one state-dict entry."""
    f = np.float32
    draw = np.random.RandomState(zlib.crc32(key.encode())).uniform(-1, 1, size=shape)
    u = np.asarray(draw).astype(f)
    if key.endswith("running_var"):
        return f(1) + f(0.5) * u
    if key.endswith("running_mean"):
        return f(0.1) * u
    if len(shape) in (2, 4):
        return u * f(0.9 * np.sqrt(3 / np.prod(shape[1:])))
    if len(shape) == 1 and not key.endswith("weight"):
        return f(0.1) * u
    return f(1) + f(0.1) * u


def golden_model(name: str) -> nn.Module:
    model = build_model(name)
    with torch.no_grad():
        for key, value in model.state_dict().items():
            if value.is_floating_point():
                filled = np.asarray(golden_weight(key, tuple(value.shape)))
                value.copy_(torch.from_numpy(filled))
    return model


def check_golden(name: str, tag: str) -> None:
    model = golden_model(name)
    seed, side = INPUTS[tag]
    noise = np.random.RandomState(seed).standard_normal((1, 3, side, side)).astype(np.float32)
    seen: dict[str, Tensor] = {}

    def keep(feature: str):
        return lambda module, args, output: seen.__setitem__(feature, output)

    for feature, path in FEATURES[name].items():
        model.get_submodule(path).register_forward_hook(keep(feature))
    model.encoder.backbone.register_forward_hook(
        lambda module, args, maps: seen.update({f"backbone{n + 1}": m for n, m in enumerate(maps)})
    )
    with torch.no_grad():
        edge, masks = model(torch.from_numpy(noise))

    golden = np.load(HERE / "golden" / f"{FIXTURES[name]}.npz")
    for output, value in zip(OUTPUTS, (edge, *masks)):
        value = value[..., ::4, ::4] if value.shape[-1] > 104 else value
        value = value if tag == "b224" else value[..., ::2, ::2]
        tolerance = EDGE_TOLERANCE[name] if output == "edge" else 1e-5
        np.testing.assert_allclose(
            value.numpy(), golden[f"{tag}.{output}"], rtol=0, atol=tolerance, err_msg=output
        )
    assert len(seen) == 17
    for feature, value in seen.items():
        flat = value.contiguous().flatten().numpy()
        strided = flat[np.arange(64) * flat.size // 64]
        tolerance = 4e-4 if feature == "edgefeat" else 1e-4
        for part, found in (("head", flat[:64]), ("strided", strided)):
            np.testing.assert_allclose(
                found, golden[f"{tag}.{feature}.{part}"], rtol=0, atol=tolerance, err_msg=feature
            )


@pytest.mark.parametrize("name", ["escnet", "escnet-v2"])
def test_escnet_reproduces_golden_224(name: str) -> None:
    check_golden(name, "b224")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["escnet", "escnet-v2"])
def test_escnet_reproduces_golden_416(name: str) -> None:
    check_golden(name, "a416")


@pytest.mark.parametrize("name", ["escnet", "escnet-v2"])
def test_escnet_state_dict_has_released_keys_and_shapes(name: str) -> None:
    packed = (HERE / f"keys_{FIXTURES[name]}.txt.gz").read_bytes()
    released = dict(line.split(" ") for line in gzip.decompress(packed).decode().splitlines())
    with torch.device("meta"):
        model = build_model(name)
    found = {
        key: "x".join(map(str, value.shape)) or "scalar"
        for key, value in model.state_dict().items()
    }
    assert found == released
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("name", ["escnet", "escnet-v2", "escnet-small"])
def test_escnet_declaration(name: str) -> None:
    info = model_info(name)
    assert info.postprocess == "sigmoid" and info.loss == "escnet"
    assert info.input_size == (160 if name == "escnet-small" else 416)
    assert set(info.act_modes) == {"conv", "depthwise", "first"}
    assert set(info.act_modes.values()) == {"per_token_group"}
    assert info.mask_logits(("edge", ["m4", "m3", "m2", "m1"])) == "m1"


@pytest.fixture(scope="module")
def small() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build_model("escnet-small")


def test_small_output_sizes_and_budget(small: nn.Module) -> None:
    with torch.no_grad():
        edge, masks = small(torch.zeros(1, 3, 96, 160))
    assert edge.shape == (1, 1, 96, 160)
    assert [tuple(m.shape[-2:]) for m in masks] == [(3, 5), (6, 10), (12, 20), (96, 160)]
    assert sum(p.numel() for p in small.parameters()) <= 5_500_000
    assert model_info("escnet-small").weights == "escnet-small.safetensors"


def test_small_rejects_sides_that_are_no_multiple_of_32(small: nn.Module) -> None:
    with pytest.raises(DataError, match=r"96x100.*multiples of 32"):
        small(torch.zeros(1, 3, 96, 100))


def test_small_eval_is_deterministic_in_both_memory_formats(small: nn.Module) -> None:
    image = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        first, again = small(image)[1][-1], small(image)[1][-1]
        other = small(image.contiguous(memory_format=torch.channels_last))[1][-1]
    assert torch.equal(first, again)
    torch.testing.assert_close(first, other, rtol=0, atol=1e-5)


def test_small_gradient_reaches_every_parameter() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_model("escnet-small").train()
        edge, masks = model(torch.randn(4, 3, 64, 64))
        target = torch.rand(4, 1, 64, 64)
        loss = F.binary_cross_entropy_with_logits(edge, target)
        for mask in masks:
            goal = F.interpolate(target, size=mask.shape[-2:])
            loss = loss + F.binary_cross_entropy_with_logits(mask, goal)
        loss.backward()
    starved = [
        name
        for name, p in model.named_parameters()
        if p.grad is None or not torch.isfinite(p.grad).all() or not p.grad.any()
    ]
    assert starved == []


def test_image_tiles_are_contiguous_tiles_in_colour_row_col_order() -> None:
    image = torch.arange(3 * 8 * 12.0).view(1, 3, 8, 12)
    tiles = image_tiles(image, torch.zeros(1, 1, 4, 6))
    assert tiles.shape == (1, 12, 4, 6)
    for colour in range(3):
        for row in range(2):
            for col in range(2):
                expected = image[0, colour, row * 4 : row * 4 + 4, col * 6 : col * 6 + 6]
                assert torch.equal(tiles[0, colour * 4 + row * 2 + col], expected)


def test_laplacian_equals_its_kernel() -> None:
    image = torch.randn(
        2, 3, 9, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )
    grey = (image * torch.tensor([0.2989, 0.587, 0.114]).double()[:, None, None]).sum(1, True)
    kernel = torch.ones(1, 1, 5, 5, dtype=torch.float64)
    kernel[0, 0, 2, 2] = -24
    expected = F.conv2d(F.pad(grey, (2, 2, 2, 2), mode="reflect"), kernel / 48)
    torch.testing.assert_close(laplacian_texture(image), expected, rtol=0, atol=1e-7)


def test_channel_attention_dropout_acts_in_training_only() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        block = ChannelAttention(8, heads=2, ffn_factor=1, dropout=0.3)
        x = torch.randn(1, 8, 6, 6)
        with torch.no_grad():
            # BatchNorm stays in eval, so that only dropout can make two passes differ
            block.eval()
            assert torch.equal(block(x), block(x))
            block.training = True
            assert not torch.equal(block(x), block(x))


def test_escnet_declares_attention_roles() -> None:
    assert ChannelAttention.quantization.roles == dict.fromkeys(
        ("conv1", "conv2", "conv3", "proj"), "attention"
    )
    assert not hasattr(ConvBottleneck, "quantization")
