from __future__ import annotations

import gzip
import hashlib
import math
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codtdq.models import build_model, model_info
from codtdq.models.cfrn import EdgeEnhancement, ImplicitDecoder, relative_offsets
from codtdq.models.weights import load_checkpoint, save_weights

HERE = Path(__file__).parent
INPUT_SEEDS = {"a384": 7, "b384": 8}
# float32 tolerance per tensor; the recorded run rounds its coordinates, hence the wide last two
TOLERANCES = {"x": 3e-5, "b": 3e-5, "nd": 5e-4, "S_g": 2e-4}


def golden_value(key: str, shape: tuple[int, ...]) -> np.ndarray:
    """Reproducible weights of a key: uniform noise seeded by its name, scaled by its kind."""
    f = np.float32
    noise = np.random.RandomState(zlib.crc32(key.encode())).uniform(-1, 1, size=shape)
    u = np.asarray(noise).astype(f)
    if key.endswith("running_var"):
        return f(1) + f(0.5) * u
    if key.endswith("running_mean"):
        return f(0.1) * u
    if key.endswith("relative_position_bias_table"):
        return f(0.5) * u
    if len(shape) in (2, 4):
        return u * f(0.9 * math.sqrt(3 / math.prod(shape[1:])))
    if len(shape) == 1 and not key.endswith("weight"):
        return f(0.1) * u
    return f(1) + f(0.1) * u


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(HERE / "golden" / "cfrn.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def full_model(golden: dict[str, np.ndarray]) -> Iterator[nn.Module]:
    """The full network with the weights of the recorded run, checked by their hash."""
    model = build_model("cfrn")
    digest = hashlib.sha256()
    for key, tensor in sorted(model.state_dict().items()):
        if tensor.is_floating_point() and not key.endswith("attn_mask"):
            value = np.asarray(golden_value(key, tuple(tensor.shape)))
            tensor.copy_(torch.from_numpy(value))
            digest.update(value.astype("<f4").tobytes())
    assert digest.hexdigest() == str(golden["weights_sha256"])
    yield model


def golden_input(tag: str) -> Tensor:
    noise = np.random.RandomState(INPUT_SEEDS[tag]).standard_normal((1, 3, 384, 384))
    return torch.from_numpy(noise.astype(np.float32))


def run_with_features(model: nn.Module, image: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    features: dict[str, Tensor] = {}

    def keep(number: int):
        return lambda _, inputs, output: features.update(
            {f"x{number}": inputs[0], f"b{number}": output}
        )

    hooks = [getattr(model, f"eem{i}_1").register_forward_hook(keep(i)) for i in range(1, 6)]
    hooks.append(model.imnet2.register_forward_pre_hook(lambda _, x: features.update(nd=x[0])))
    with torch.inference_mode():
        full, mask = model(image)
    for hook in hooks:
        hook.remove()
    return full, mask, features


def strided(feature: Tensor) -> np.ndarray:
    flat = feature.contiguous().flatten().numpy()
    return flat[np.arange(64) * flat.size // 64]


def test_cfrn_has_every_key_shape_and_dtype_of_the_release(full_model: nn.Module) -> None:
    released = gzip.decompress((HERE / "keys_cfrn.txt.gz").read_bytes()).decode().splitlines()
    ours = [
        f"{key} {'x'.join(map(str, value.shape)) or 'scalar'} {str(value.dtype)[6:]}"
        for key, value in full_model.state_dict().items()
    ]
    assert sorted(ours) == released
    assert len(released) == 571
    assert sum(p.numel() for p in full_model.parameters()) == 194_563_408


def check_float32(model: nn.Module, golden: dict[str, np.ndarray], tag: str) -> None:
    full, mask, features = run_with_features(model, golden_input(tag))
    assert len(features) == 11
    for name, feature in features.items():
        assert feature.shape == tuple(golden[f"{tag}.{name}.shape"])
        tolerance = TOLERANCES[name.rstrip("12345")]
        np.testing.assert_allclose(
            strided(feature), golden[f"{tag}.{name}.strided"], rtol=0, atol=tolerance, err_msg=name
        )
    np.testing.assert_allclose(mask, golden[f"{tag}.S_g"], rtol=0, atol=TOLERANCES["S_g"])
    sampled = full[..., ::4, ::4].flatten()[::9]
    np.testing.assert_allclose(sampled, golden[f"{tag}.S_g_up.f64"], rtol=0, atol=TOLERANCES["S_g"])


def test_cfrn_reproduces_the_public_network(
    full_model: nn.Module, golden: dict[str, np.ndarray]
) -> None:
    check_float32(full_model, golden, "a384")


@pytest.mark.slow
def test_cfrn_reproduces_the_public_network_on_a_second_input(
    full_model: nn.Module, golden: dict[str, np.ndarray]
) -> None:
    check_float32(full_model, golden, "b384")


@pytest.mark.slow
@pytest.mark.parametrize("tag", INPUT_SEEDS)
def test_cfrn_reproduces_the_public_network_in_float64(
    full_model: nn.Module, golden: dict[str, np.ndarray], tag: str
) -> None:
    try:
        full, mask, _ = run_with_features(full_model.double(), golden_input(tag).double())
    finally:
        full_model.float()
    sampled = full[..., ::4, ::4].flatten()[::9]
    np.testing.assert_allclose(sampled, golden[f"{tag}.S_g_up.f64"], rtol=0, atol=1e-10)
    np.testing.assert_allclose(mask.flatten()[::9], golden[f"{tag}.S_g.f64"], rtol=0, atol=1e-10)


def test_relative_offsets_are_the_known_grids() -> None:
    like = torch.zeros(1)
    eighths = [-0.875, -0.625, -0.375, -0.125, 0.125, 0.375, 0.625, 0.875]
    assert relative_offsets(12, 96, like).tolist() == eighths * 12
    assert relative_offsets(24, 96, like).tolist() == [-0.75, -0.25, 0.25, 0.75] * 24
    assert relative_offsets(48, 96, like).tolist() == [-0.5, 0.5] * 48
    assert relative_offsets(96, 96, like).tolist() == [0.0] * 96


@pytest.mark.parametrize(
    ("heights", "widths"),
    [
        pytest.param((2, 2, 4, 8, 16), (3, 3, 6, 12, 24), id="whole-ratios"),
        pytest.param((3, 5, 7, 11, 13), (5, 7, 9, 13, 15), id="odd-ratios"),
    ],
)
@torch.no_grad()
def test_decoder_equals_coordinate_sampling(
    heights: tuple[int, ...], widths: tuple[int, ...]
) -> None:
    generator = torch.Generator().manual_seed(0)
    decoder = ImplicitDecoder().double()
    levels = [
        torch.randn(2, 32, *size, generator=generator, dtype=torch.float64)
        for size in zip(heights, widths)
    ]
    height, width = levels[-1].shape[-2:]

    def centres(count: int) -> Tensor:
        return (2 * torch.arange(count, dtype=torch.float64) + 1) / count - 1

    grid = torch.stack(torch.meshgrid(centres(height), centres(width), indexing="ij"), -1)
    parts = []
    for f in levels:
        h, w = f.shape[-2:]
        own = torch.stack(torch.meshgrid(centres(h), centres(w), indexing="ij"))

        def sample(x: Tensor) -> Tensor:
            points = grid.flip(-1).expand(2, height, width, 2)
            return F.grid_sample(x, points, mode="nearest", align_corners=False)

        nearest = sample(own.expand(2, 2, h, w))
        rel = (grid.permute(2, 0, 1) - nearest) * torch.tensor([h, w]).view(1, 2, 1, 1)
        amplitude, value = sample(decoder.ifa.fc(f)), sample(f)
        pairs = value.unflatten(1, (16, 2))
        phase = math.pi * (pairs * rel[:, None]).sum(2)
        parts += [rel, amplitude * torch.cat((phase.cos(), phase.sin()), 1), value]
    torch.testing.assert_close(decoder(levels), torch.cat(parts, 1), rtol=1e-10, atol=1e-10)


def test_edge_enhancement_has_the_published_number_of_parameters() -> None:
    count = sum(p.numel() for p in EdgeEnhancement(64).parameters())
    assert count == 43 * 64**2 + 225 * 64 + 32


@pytest.fixture(scope="module")
def small_model() -> nn.Module:
    return build_model("cfrn-small")


@pytest.mark.parametrize("size", [(160, 160), (192, 128), (64, 352), (32, 32)], ids=str)
@torch.no_grad()
def test_small_cfrn_takes_any_multiple_of_32(small_model: nn.Module, size: tuple) -> None:
    full, mask = small_model(torch.zeros(2, 3, *size))
    assert full.shape == (2, 1, *size)
    assert mask.shape == (2, 1, size[0] // 4, size[1] // 4)
    assert torch.isfinite(full).all()


@torch.no_grad()
def test_small_cfrn_gives_each_image_its_own_mask(small_model: nn.Module) -> None:
    images = torch.randn(3, 3, 160, 160, generator=torch.Generator().manual_seed(0))
    together = small_model(images)[0]
    alone = torch.cat([small_model(image[None])[0] for image in images])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    assert (together[0] - together[1]).abs().max() > 1e-3


def test_small_cfrn_stays_small_and_carries_nothing_unused(small_model: nn.Module) -> None:
    parameters = dict(small_model.named_parameters())
    assert sum(p.numel() for p in parameters.values()) <= 5_800_000
    images = torch.randn(2, 3, 160, 160, generator=torch.Generator().manual_seed(0))
    small_model(images)[0].square().mean().backward()
    idle = [n for n, p in parameters.items() if p.grad is None or not p.grad.abs().sum() > 0]
    small_model.zero_grad()
    assert idle == []


def test_small_cfrn_learns_from_scratch() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build_model("cfrn-small").train()
        images = torch.randn(2, 3, 96, 96)
        target = torch.zeros(2, 1, 96, 96)
        target[:, :, 24:64, 20:70] = 1
        images = images + 2 * target
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses = []
        for _ in range(10):
            loss = F.binary_cross_entropy_with_logits(model(images)[0], target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(2), abs=0.15)
    assert losses[-1] < 0.6 * losses[0]


def test_small_cfrn_round_trips_through_its_weight_file(
    small_model: nn.Module, tmp_path: Path
) -> None:
    path = tmp_path / "small.safetensors"
    save_weights(small_model, path)
    again = build_model("cfrn-small")
    load_checkpoint(again, path, architecture="cfrn-small")
    image = torch.randn(1, 3, 160, 160, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        difference = (again(image)[0] - small_model(image)[0]).abs().max()
    assert 0 < difference < 5e-3  # float16 storage
    assert path.stat().st_size < 12e6


@pytest.mark.parametrize("name", ["cfrn", "cfrn-small"])
def test_declarations_follow_the_release(name: str) -> None:
    info = model_info(name)
    assert info.input_size == {"cfrn": 384, "cfrn-small": 160}[name]
    assert info.postprocess == "sigmoid-minmax"
    assert info.loss == "cfrn"
    assert info.act_modes == dict.fromkeys(("conv", "depthwise", "first"), "per_channel")
    full, mask = torch.zeros(1, 1, 8, 8), torch.zeros(1, 1, 2, 2)
    assert info.mask_logits((full, mask)) is full
    assert info.weights == {"cfrn": None, "cfrn-small": "cfrn-small.safetensors"}[name]
