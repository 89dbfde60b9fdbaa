"""BiRefNet: keys of the release, recorded outputs of the public network, quantization."""

from __future__ import annotations

import gzip
import hashlib
import math
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import codtdq
from codtdq.cli import main
from codtdq.engine import cpu
from codtdq.errors import CheckpointError, DataError
from codtdq.models import build_model, create_model, model_info
from codtdq.models.birefnet import BiRefNet, BiRefNetConfig
from codtdq.models.swin import SwinConfig
from codtdq.planning.trace import trace
from codtdq.runtime import Runtime

HERE = Path(__file__).parent
needs_engine = pytest.mark.skipif(
    cpu.unavailable_reason() is not None, reason=str(cpu.unavailable_reason())
)
FILES = {"birefnet": "birefnet", "birefnet-lite": "birefnet_lite"}
PARAMETERS = {"birefnet": 220_176_498, "birefnet-lite": 44_313_720}
INPUTS = {"a256": (7, 256, 256), "b224": (8, 224, 224), "c192x256": (9, 192, 256)}
# of float32 against the float64 record: resizes with aligned corners round their coordinates
HALF_SCALE, OTHERS = 1e-3, 5e-4
# recorded feature -> module whose output it is
FEATURES = {
    "squeeze": "squeeze_module",
    **{f"ipt{n}": f"decoder.ipt_blk{n}" for n in (5, 4, 3, 2, 1)},
    **{f"lat{n}": f"decoder.lateral_block{n}" for n in (4, 3, 2)},
    **{f"p{n}": f"decoder.decoder_block{n}" for n in (4, 3, 2, 1)},
    **{f"gdt{n}": f"decoder.gdt_convs_{n}" for n in (4, 3, 2)},
    **{f"gdtattn{n}": f"decoder.gdt_convs_attn_{n}" for n in (4, 3, 2)},
    "dec4_att": "decoder.decoder_block4.dec_att",
    "aspp4_1": "decoder.decoder_block4.dec_att.aspp1",
    **{f"aspp4_d{n}": f"decoder.decoder_block4.dec_att.aspp_deforms.{n}" for n in (0, 1, 2)},
    "aspp4_d1_offset": "decoder.decoder_block4.dec_att.aspp_deforms.1.atrous_conv.offset_conv",
    "aspp4_d1_mod": "decoder.decoder_block4.dec_att.aspp_deforms.1.atrous_conv.modulator_conv",
    "aspp4_d1_dcn": "decoder.decoder_block4.dec_att.aspp_deforms.1.atrous_conv",
}
CHANGED_BY_TILES = ("p4", "p3", "p2", "p1", "ipt5", "ipt4", "ipt3", "ipt2", "m4", "m3", "m2", "out")

SMALL = BiRefNetConfig(
    swin=SwinConfig(
        embed_dim=16,
        depths=(2, 2, 2, 2),
        num_heads=(2, 2, 4, 4),
        window_size=4,
        img_size=64,
        drop_path=0.0,
        dense=True,
    ),
    inner=16,
    branch=16,
)


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


def fill(model: nn.Module) -> str:
    """Give a network the weights of the recorded run; their hash."""
    digest = hashlib.sha256()
    for key, tensor in sorted(model.state_dict().items()):
        if tensor.is_floating_point():
            value = np.asarray(golden_value(key, tuple(tensor.shape)))
            tensor.copy_(torch.from_numpy(value))
            digest.update(value.astype("<f4").tobytes())
    return digest.hexdigest()


def recorded(name: str) -> dict[str, np.ndarray]:
    with np.load(HERE / "golden" / f"{FILES[name]}.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def lite() -> Iterator[nn.Module]:
    model = build_model("birefnet-lite")
    assert fill(model) == str(recorded("birefnet-lite")["weights_sha256"])
    yield model


@pytest.fixture(scope="module")
def large() -> Iterator[nn.Module]:
    model = build_model("birefnet")
    assert fill(model) == str(recorded("birefnet")["weights_sha256"])
    yield model


def strided(feature: Tensor) -> np.ndarray:
    flat = feature.contiguous().flatten().numpy()
    return flat[np.arange(64) * flat.size // 64]


def run_with_features(model: BiRefNet, image: Tensor) -> dict[str, np.ndarray]:
    """What the record holds of one run: sampled features, and the logits."""
    seen: dict[str, np.ndarray] = {}
    passes = iter("fh")  # the encoder runs twice: full size, half size

    def keep(feature: str):
        return lambda module, args, output: seen.__setitem__(feature, strided(output))

    def keep_maps(module, args, maps):
        scale = next(passes)
        seen.update({f"{scale}{n}": strided(x) for n, x in enumerate(maps, start=1)})

    handles = [
        model.get_submodule(path).register_forward_hook(keep(feature))
        for feature, path in FEATURES.items()
    ]
    handles.append(model.bb.register_forward_hook(keep_maps))
    handles.append(
        model.squeeze_module.register_forward_pre_hook(
            lambda module, args: seen.update(x4cxt=strided(args[0]))
        )
    )
    for n in (4, 3, 2):  # heads that only training uses read the output of a decoder block
        handles.append(
            model.get_submodule(f"decoder.decoder_block{n}").register_forward_hook(
                lambda module, args, output, n=n: seen.__setitem__(
                    f"m{n}", strided(model.get_submodule(f"decoder.conv_ms_spvn_{n}")(output))
                )
            )
        )
        handles.append(
            model.get_submodule(f"decoder.lateral_block{n}").register_forward_pre_hook(
                lambda module, args, n=n: seen.__setitem__(f"x{n - 1}", strided(args[0]))
            )
        )
    with torch.no_grad():
        seen["out"] = model(image)[..., ::8, ::8].numpy()
    for handle in handles:
        handle.remove()
    return seen


def check_record(model: nn.Module, name: str, tag: str, *, double: bool) -> None:
    golden = recorded(name)
    seed, height, width = INPUTS[tag]
    noise = np.random.RandomState(seed).standard_normal((1, 3, height, width))
    image = torch.from_numpy(noise.astype(np.float32))
    if double:
        model, image = model.double(), image.double()
    try:
        for by_columns in (True, False):
            model.decoder.by_columns = by_columns
            found = run_with_features(model, image)
            assert len(found) == 43
            for feature, value in found.items():
                changed = by_columns and feature in CHANGED_BY_TILES
                if by_columns and not changed and feature[:2] not in ("f1", "h4", "x4"):
                    continue  # recorded for tiles by rows only
                expected = golden[f"{tag}.{'old.' if changed else ''}{feature}"]
                half = feature[0] in "hx"
                limit = 1e-10 if double else HALF_SCALE if half else OTHERS
                if feature == "out" and not double:
                    limit = 5e-5
                np.testing.assert_allclose(value, expected, rtol=0, atol=limit, err_msg=feature)
    finally:
        model.decoder.by_columns = True
        model.float()


def test_lite_reproduces_the_public_network_in_float64(lite: nn.Module) -> None:
    """On the input that is not square, which alone shows a mix-up of height and width."""
    check_record(lite, "birefnet-lite", "c192x256", double=True)


def test_lite_reproduces_the_public_network_on_an_odd_map(lite: nn.Module) -> None:
    check_record(lite, "birefnet-lite", "b224", double=False)


@pytest.mark.slow
@pytest.mark.parametrize("tag", INPUTS)
def test_lite_reproduces_every_record(lite: nn.Module, tag: str) -> None:
    check_record(lite, "birefnet-lite", tag, double=False)
    check_record(lite, "birefnet-lite", tag, double=True)


@pytest.mark.slow
@pytest.mark.parametrize("tag", INPUTS)
def test_large_reproduces_every_record(large: nn.Module, tag: str) -> None:
    check_record(large, "birefnet", tag, double=False)
    check_record(large, "birefnet", tag, double=True)


@pytest.mark.parametrize("name", ["birefnet", "birefnet-lite"])
def test_birefnet_has_every_key_shape_and_dtype_of_the_release(name: str) -> None:
    packed = (HERE / f"keys_{FILES[name]}.txt.gz").read_bytes()
    released = gzip.decompress(packed).decode().splitlines()
    model = build_model(name, empty=True)
    ours = [
        f"{key} {'x'.join(map(str, value.shape)) or 'scalar'} {str(value.dtype)[6:]}"
        for key, value in model.state_dict().items()
    ]
    assert sorted(ours) == released
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]


def test_a_file_of_the_release_loads_strictly(lite: nn.Module, tmp_path: Path) -> None:
    """Half-precision safetensors as on the hub, and a .pth with the prefixes of its trainer."""
    hub = {
        key: value.half() if value.is_floating_point() else value
        for key, value in lite.state_dict().items()
    }
    save_file(hub, tmp_path / "model.safetensors")
    model = create_model("birefnet-lite", checkpoint=tmp_path / "model.safetensors")
    for key, value in model.state_dict().items():
        assert torch.equal(value, hub[key].to(value.dtype)), key
    wrapped = {f"module._orig_mod.{key}": value for key, value in lite.state_dict().items()}
    torch.save(wrapped, tmp_path / "lite.pth")
    model = create_model("birefnet-lite", checkpoint=tmp_path / "lite.pth")
    assert torch.equal(model.decoder.conv_out1[0].weight, lite.decoder.conv_out1[0].weight)
    # the network of early 2024 had one deformable branch and no tiles at the coarsest level
    older = {key: value for key, value in hub.items() if "ipt_blk5" not in key}
    save_file(older, tmp_path / "older.safetensors")
    with pytest.raises(CheckpointError, match=r"4 keys missing.*decoder\.ipt_blk5\.conv1"):
        create_model("birefnet-lite", checkpoint=tmp_path / "older.safetensors")


@pytest.mark.parametrize("name", ["birefnet", "birefnet-lite", "birefnet-2025"])
def test_declaration(name: str) -> None:
    info = model_info(name)
    assert (info.input_size, info.postprocess, info.size_multiple) == (1024, "sigmoid", 32)
    assert build_model(name, empty=True).decoder.by_columns == (name != "birefnet-2025")


@pytest.fixture(scope="module")
def small() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = BiRefNet(SMALL).eval()
        for module in model.modules():  # offsets of a few pixels, as a trained network has them
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(std=0.1)
                module.running_var.uniform_(0.5, 1.5)
        for name, parameter in model.named_parameters():
            if "offset_conv.weight" in name:
                nn.init.normal_(parameter, std=0.1)
    model.info = replace(model_info("birefnet-lite"), name="birefnet-tiny", input_size=64)
    return model


def photos(count: int = 2, height: int = 64, width: int = 96, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", [(32, 32), (64, 96), (160, 64)], ids=str)
def test_any_multiple_of_32_is_taken(small: nn.Module, size: tuple[int, int]) -> None:
    with torch.no_grad():
        logits = small(photos(1, *size))
    assert logits.shape == (1, 1, *size) and torch.isfinite(logits).all()


def test_other_sides_are_refused(small: nn.Module) -> None:
    with pytest.raises(DataError, match=r"BiRefNet: input is 64x100.*multiples of 32"):
        small(photos(1, 64, 100))


def test_each_image_gets_its_own_mask(small: nn.Module) -> None:
    images = photos(3)
    with torch.no_grad():
        together = small(images)
        alone = torch.cat([small(image[None]) for image in images])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    assert (together[0] - together[1]).abs().max() > 1e-3


def test_strips_of_samples_change_nothing(small: nn.Module, monkeypatch: pytest.MonkeyPatch):
    with torch.no_grad():
        whole = small(photos())
        monkeypatch.setattr("codtdq.models.deform.SAMPLES_AT_ONCE", 20_000)
        strips = small(photos())
    torch.testing.assert_close(strips, whole, rtol=0, atol=1e-5)


def test_training_gives_coarse_masks_and_a_gradient_to_every_parameter() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = BiRefNet(SMALL).train()
        logits, masks, gradients = model(photos(4, 64, 64))
        assert [tuple(m.shape[-2:]) for m in masks] == [(2, 2), (4, 4), (8, 8)]
        assert [g.shape for g in gradients] == [m.shape for m in masks]
        sum(x.square().mean() for x in (logits, *masks, *gradients)).backward()
    starved = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert starved == []


def test_the_trace_sees_through_the_two_scales(small: nn.Module) -> None:
    """The encoder runs twice: its operators keep their norm, which only they read."""
    graph = trace(small, photos(1))
    source = graph.inputs["bb.layers.0.blocks.0.attn.qkv"]
    assert (source.kind, source.name) == ("norm", "bb.layers.0.blocks.0.norm1")
    assert graph.norms["bb.layers.0.blocks.0.norm1"].exclusive
    assert graph.calls["bb.layers.0.blocks.0.attn.qkv"] == 2
    assert graph.inputs["bb.layers.3.blocks.1.mlp.fc2"].kind == "gelu"


@pytest.mark.parametrize("method", ["cod-tdq", "cod-tdq-plus"])
def test_a_small_birefnet_is_quantized_saved_and_loaded(
    small: nn.Module, method: str, tmp_path: Path
) -> None:
    images = photos(2, 64, 64)
    quantized = codtdq.quantize(small, method, calibration=[images], backend="reference")
    plan = {site.name: site for site in quantized.quant_record.plan.sites}
    deformed = [site for name, site in plan.items() if name.endswith("regular_conv")]
    assert len(deformed) == 20 and all(site.quantized for site in deformed)
    first = plan["bb.patch_embed.proj"]
    assert first.role == "first" and plan["bb.layers.0.blocks.0.mlp.fc1"].role == "mlp"
    left = [name for name, site in plan.items() if not site.quantized]
    training = ("conv_ms_spvn", "gdt_convs_pred")  # heads of which calibration sees no input
    assert [n for n in left if not any(t in n for t in training)] == ["decoder.conv_out1.0"]
    with torch.no_grad():
        exact, found = small(images), quantized(images)
    error = (found - exact).norm() / (exact - exact.mean()).norm()
    assert 0 < error < {"cod-tdq": 0.9, "cod-tdq-plus": 0.6}[method]
    codtdq.save(quantized, tmp_path / "packed")
    skeleton = BiRefNet(SMALL)
    skeleton.info = small.info
    again = codtdq.load(tmp_path / "packed", model=skeleton, backend="reference")
    with torch.no_grad():
        assert torch.equal(again(images), found)
    native = codtdq.load(tmp_path / "packed", model=skeleton)
    record = native.backend_record
    if record.name == "cpu":  # the deformable products are ordinary convolutions to the engine
        image_readers = {"bb.patch_embed.proj", "decoder.ipt_blk1.conv1"}  # of three channels
        assert set(record.fallbacks) <= image_readers
        assert record.fused > 20 and record.unfused is None
        with torch.no_grad():
            off = (native(images) - exact).norm() / (exact - exact.mean()).norm()
        assert off < 1.1 * error
        assert len(codtdq.backend_of(native).programs) == 1


@needs_engine
@pytest.mark.parametrize("size", [(32, 32), (64, 96)], ids=str)
def test_the_float_network_is_a_program(small: nn.Module, size: tuple[int, int]) -> None:
    """Pooled maps that torch marks as channels-last, and gates of one channel, included."""
    images = photos(1, *size).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        exact = small(images)
    found = codtdq.compile(small, images)(images)
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-5)


@needs_engine
@pytest.mark.parametrize("method", ["cod-tdq", "float"])
def test_it_leaves_torch_bit_for_bit(small: nn.Module, method: str, tmp_path: Path) -> None:
    model = small
    if method != "float":
        model = codtdq.quantize(small, method, backend="cpu")
    done = codtdq.export(model, tmp_path / "net.codtdq")
    image = photos(1, 64, 64)
    found = Runtime(done.path).run(image.numpy())
    assert np.array_equal(found, codtdq.compile(model, image)(image).numpy())
    assert done.operators["sample"] == 20  # the deformable products


def test_a_diagnosis_of_the_lite_network(tmp_path: Path) -> None:
    words = "diagnose --model birefnet-lite --untrained --size 64 --limit 1 --images 1 --no-figures"
    assert main([*words.split(), "--method", "cod-tdq", "--out", str(tmp_path / "why")]) == 0
    rows = (tmp_path / "why" / "layers.csv").read_text().splitlines()
    assert sum("regular_conv" in row and "cod-tdq" in row for row in rows) == 20


def test_a_size_that_the_network_does_not_take_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["diagnose", "--model", "birefnet-lite", "--untrained", "--size", "100"]
    assert main([*words, "--out", str(tmp_path / "why")]) == 2
    shown = capsys.readouterr().err
    assert "size 100 x 100; birefnet-lite takes multiples of 32" in shown
    assert shown.count("\n") == 1
