"""ViT-COD: shapes, positions, declarations, and what quantization makes of it."""

import pytest
import torch
from torch import nn

import codtdq
from codtdq.engine import use_backend
from codtdq.engine.cpu import library as native_library
from codtdq.errors import CheckpointError, ConfigError
from codtdq.lab.diagnosis.tokens import token_maps
from codtdq.models import build_model, model_info
from codtdq.models.registry import first_output
from codtdq.models.vit import VisionTransformer, VitConfig
from codtdq.models.vit_cod import VitCod
from codtdq.models.weights import shipped_weights
from codtdq.operators import quant_operators
from small_nets import simulate

NAME = "vit-cod"
TINY = VitConfig(dim=32, depth=4, num_heads=2, table_side=5)


def tiny() -> VitCod:
    torch.manual_seed(3)
    return VitCod(TINY, after=(1, 2, 3, 4), width=32).eval()


def photo(height: int, width: int, batch: int = 1) -> torch.Tensor:
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("sides", [(448, 448), (252, 126)])
def test_the_registered_network_gives_logits_at_the_size_of_the_image(sides):
    torch.manual_seed(0)
    model = build_model(NAME)
    with torch.no_grad():
        mask, edge, coarse = model(photo(*sides))
    quarter = tuple(-(-side // 4) for side in sides)
    assert mask.shape == (1, 1, *sides) and mask.isfinite().all()
    assert edge.shape == (1, 1, *quarter)
    assert coarse.shape == (1, 1, sides[0] // 14, sides[1] // 14)
    assert model_info(NAME).mask_logits((mask, edge, coarse)) is mask
    assert model_info(NAME).input_size == 448 and not model_info(NAME).input_size % 14


def test_the_decoder_is_small_and_the_encoder_is_vit_s():
    model = build_model(NAME, empty=True)
    sizes = {name: sum(p.numel() for p in m.parameters()) for name, m in model.named_children()}
    assert sizes["encoder"] == 22_056_576 - 384  # DINOv2's ViT-S/14 without its mask token
    assert 500_000 < sizes["decoder"] < 2_000_000


def test_the_shipped_weights_load_and_are_small():
    model = codtdq.create_model(NAME)
    assert not model.training and all(p.isfinite().all() for p in model.parameters())
    assert model.decoder.mask_logits.weight.abs().max() > 0.05  # fresh ones are below that
    assert shipped_weights(model_info(NAME).weights).stat().st_size <= 26e6


def test_the_packed_model_of_the_package_is_sound_and_goes_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = codtdq.verify("vit-cod-w4a4")
    assert found.architecture == NAME and found.method == "cod-tdq-plus"
    files = list(shipped_weights("vit-cod-w4a4").iterdir())
    assert len(files) == 2 and sum(file.stat().st_size for file in files) <= 14e6
    model = codtdq.load("vit-cod-w4a4", backend="reference")
    assert len(quant_operators(model)) == found.operators > 60
    (tmp_path / "vit-cod-w4a4").mkdir()  # a directory of that name is what was meant
    with pytest.raises(CheckpointError):
        codtdq.load("vit-cod-w4a4")


def test_sides_that_are_no_whole_patches_are_refused():
    with pytest.raises(ConfigError, match=r"100 x 112.*multiples of 14"):
        tiny()(photo(100, 112))


def test_positions_are_the_table_at_its_own_size_and_interpolated_elsewhere():
    encoder = VisionTransformer(TINY).eval()
    assert encoder._positions(5, 5) is encoder.pos_embed
    other = encoder._positions(3, 8)
    assert other.shape == (1, 1 + 24, 32)
    assert torch.equal(other[:, 0], encoder.pos_embed[:, 0])  # the class token has no place
    with torch.no_grad():
        # a table that is linear in x and y is nearly met by cubics, away from the rim
        y, x = torch.meshgrid(torch.arange(5.0), torch.arange(5.0), indexing="ij")
        encoder.pos_embed[0, 1:, 0], encoder.pos_embed[0, 1:, 1] = y.flatten(), x.flatten()
        grid = encoder._positions(10, 10)[0, 1:].view(10, 10, 32)
    assert grid[4, 6, 0] == pytest.approx((4 + 0.5) / 2 - 0.5, abs=0.08)
    assert grid[4, 6, 1] == pytest.approx((6 + 0.5) / 2 - 0.5, abs=0.08)


def test_kept_positions_follow_the_table():
    encoder = VisionTransformer(TINY).eval()
    with torch.no_grad():
        first = encoder._positions(4, 4)
        assert encoder._positions(4, 4) is first
        encoder.pos_embed.add_(1.0)
        assert torch.allclose(encoder._positions(4, 4), first + 1.0, atol=1e-5)
    assert encoder._positions(4, 4).requires_grad  # while it learns, nothing is kept


def test_maps_follow_the_image_and_the_class_token_takes_part():
    """Patch (row, column) of the image is cell (row, column) of the map."""
    model = tiny()
    image = photo(70, 70)
    moved = image.clone()
    moved[..., 14:28, 42:56] += 3.0  # patch (1, 3)
    nn.init.zeros_(model.encoder.blocks[0].attn.proj.weight)  # tokens stay apart in block 1
    with torch.no_grad():
        before, after = (model.encoder(each, (1,))[0] for each in (image, moved))
    changed = (before - after).abs().amax(1)[0] > 1e-4
    assert changed.nonzero().tolist() == [[1, 3]]
    fresh = tiny()
    with torch.no_grad():
        plain = fresh.encoder(image, (4,))[0]
        fresh.encoder.cls_token.normal_()
        assert not torch.allclose(fresh.encoder(image, (4,))[0], plain, atol=1e-4)


def test_roles_are_declared_and_every_layer_is_planned():
    model = tiny()
    model.info = model_info(NAME)
    sites = {site.name: site for site in codtdq.plan(model, "cod-tdq").quantized}
    layers = (nn.Linear, nn.Conv2d)
    assert set(sites) == {n for n, m in model.named_modules() if isinstance(m, layers)}
    roles = {
        "encoder.patch_embed.proj": "first",
        "encoder.blocks.0.attn.qkv": "attention",
        "encoder.blocks.3.mlp.fc2": "mlp",
        "decoder.levels.0.proj": "linear",
        "decoder.context.0.around": "depthwise",
        "decoder.context.1.expand": "mlp",
        "decoder.detail.stem.conv": "first",
        "decoder.fuse4.conv": "conv",
    }
    assert {name: sites[name].role for name in roles} == roles


def test_the_diagnosis_finds_the_place_of_every_token_but_the_class_token():
    maps = token_maps(tiny(), photo(70, 70))
    assert maps.unmapped == []
    for name in ("encoder.blocks.0.attn.qkv", "encoder.blocks.3.mlp.fc2"):
        found = maps.get(name, 0)
        assert found.grid == (5, 5) and found.boxes.shape[0] == 26
        assert int(found.boxes[0, 0]) == -1  # the class token is nowhere
        assert (maps.table[found.boxes[8, 0]] * 5).round().tolist() == [1, 2, 2, 3]
    assert maps.get("decoder.levels.0.proj", 0).boxes.shape[0] == 25
    assert maps.get("decoder.fuse4.conv", 0).grid == (18, 18)


def test_fp32_changes_nothing_and_cod_tdq_little():
    model, image = tiny(), photo(70, 70, batch=2)
    with torch.no_grad():
        exact = model(image)
        same = simulate(model, "fp32")(image)
        assert all(torch.equal(a, b) for a, b in zip(exact, same))
        four_bit = first_output(simulate(model, "cod-tdq")(image))
    distance = (four_bit - exact[0]).norm() / exact[0].norm()
    assert four_bit.shape == exact[0].shape and 0 < distance < 1


def test_a_packed_file_gives_the_same_bits(tmp_path):
    model, image = tiny(), photo(70, 70)
    quantized = simulate(model, "cod-tdq")
    packed = codtdq.save(quantized, tmp_path / "packed")
    restored = codtdq.load(packed, model=tiny(), backend="reference")
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(restored(image), quantized(image)))


@pytest.mark.skipif(not native_library.path().is_file(), reason="no native engine was built")
def test_the_engine_runs_and_fuses_all_of_it():
    quantized, image = simulate(tiny(), "cod-tdq"), photo(70, 70)
    with torch.no_grad():
        expected = quantized(image)[0]
        record = use_backend(quantized, "cpu", example=image, capture=False)
        found = quantized(image)[0]
    assert set(record.native) == set(quant_operators(quantized)) and not record.fallbacks
    # norm and ReLU of 9 convolutions, norm and GELU of 2 context blocks, GELU of 4 encoder blocks
    assert record.fused == 2 * 9 + 2 * 2 + 4
    # a code that flips at a tie moves all that follow
    assert (found - expected).norm() < 0.5 * expected.norm()
