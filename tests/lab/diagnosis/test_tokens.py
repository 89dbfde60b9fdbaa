"""Image-to-token maps that are known by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from codtdq import create_model
from codtdq.lab.diagnosis.tokens import token_maps
from codtdq.models.escnet_blocks import image_tiles
from codtdq.models.swin import PatchMerging, SwinBlock, window_partition


def boxes_of(maps, name, call=0, size=1):
    """Supports of one call as rows (top, left, bottom, right) in units of 1/size; one box each."""
    found = maps.get(name, call)
    assert found.boxes.shape[1] == 1
    rows = [maps.table[n] * size if n >= 0 else None for n in found.boxes[:, 0].tolist()]
    return [None if row is None else [round(v, 6) for v in row.tolist()] for row in rows]


class Windows(nn.Module):
    """Patches of 2, padded to 6 x 6, shifted by one, in windows of 3 x 3."""

    def __init__(self):
        super().__init__()
        self.patch, self.mix = nn.Conv2d(3, 4, 2, stride=2), nn.Linear(4, 4)

    def forward(self, image):
        grid = F.pad(self.patch(image).permute(0, 2, 3, 1), (0, 0, 0, 1, 0, 1))
        grid = grid.roll((-1, -1), (1, 2))
        return self.mix(window_partition(grid, 3).flatten(1, 2))


def test_windows_shift_and_padding():
    maps = token_maps(Windows(), torch.randn(1, 3, 10, 10))
    patch = boxes_of(maps, "patch", size=10)
    assert patch[0] == [0, 0, 1, 1] and patch[13] == [1, 3, 2, 4]
    cells = boxes_of(maps, "mix", size=5)
    assert len(cells) == 36 and maps.get("mix", 0).grid == (5, 5)
    # the first token of the first window is patch (1, 1) after the shift
    assert cells[:4] == [[1, 1, 2, 2], [1, 2, 2, 3], [1, 3, 2, 4], [2, 1, 3, 2]]
    # the second window: columns 4, padding, and 0 (rolled around)
    assert cells[9:12] == [[1, 4, 2, 5], None, [1, 0, 2, 1]]
    assert sum(cell is None for cell in cells) == 36 - 25


def test_swin_blocks_and_patch_merging():
    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Conv2d(3, 8, 4, stride=4)
            options = {"resolution": (5, 5), "window": 2, "mlp_ratio": 2.0, "drop_path": 0.0}
            self.plain = SwinBlock(8, 2, shifted=False, **options)
            self.shifted = SwinBlock(8, 2, shifted=True, **options)
            self.merge = PatchMerging(8)
            self.after = nn.Linear(16, 1)

        def forward(self, image):
            x = self.embed(image).flatten(2).transpose(1, 2)
            x = self.shifted(self.plain(x, 5, 5), 5, 5)
            return self.after(self.merge(x, 5, 5))

    maps = token_maps(Stage(), torch.randn(1, 3, 20, 20))
    assert maps.unmapped == []
    assert boxes_of(maps, "plain.attn.qkv", size=5)[:3] == [
        [0, 0, 1, 1],
        [0, 1, 1, 2],
        [1, 0, 2, 1],
    ]
    assert boxes_of(maps, "shifted.attn.qkv", size=5)[0] == [1, 1, 2, 2]
    for name in ("plain.attn.proj", "shifted.attn.proj"):  # attention keeps the queries' places
        assert boxes_of(maps, name) == boxes_of(maps, name.replace("proj", "qkv"))
    assert boxes_of(maps, "shifted.mlp.fc1", size=5)[7] == [1, 2, 2, 3]
    merged = maps.get("merge.reduction", 0)
    assert merged.boxes.shape == (9, 4) and merged.grid == (3, 3)
    after = boxes_of(maps, "after", size=5)  # four cells became one; the border pads
    assert after[0] == [0, 0, 2, 2] and after[2] == [0, 4, 2, 5] and after[8] == [4, 4, 5, 5]


def test_reduced_grid_upsampling_and_concatenation():
    class Pyramid(nn.Module):
        def __init__(self):
            super().__init__()
            self.fine, self.coarse = nn.Conv2d(3, 4, 7, 4, 3), nn.Conv2d(4, 4, 2, 2)
            self.reduced, self.join = nn.Linear(4, 4), nn.Conv2d(8, 1, 3, padding=1)

        def forward(self, image):
            fine = self.fine(image)
            coarse = self.coarse(fine)
            self.reduced(coarse.flatten(2).transpose(1, 2))
            up = F.interpolate(coarse, fine.shape[-2:], mode="bilinear", align_corners=False)
            return self.join(torch.cat([fine, up], 1))

    maps = token_maps(Pyramid(), torch.randn(1, 3, 16, 16))
    assert boxes_of(maps, "coarse", size=4)[5] == [1, 1, 2, 2]
    assert boxes_of(maps, "reduced", size=2) == [
        [0, 0, 1, 1],
        [0, 1, 1, 2],
        [1, 0, 2, 1],
        [1, 1, 2, 2],
    ]
    assert boxes_of(maps, "join", size=4)[6] == [1, 2, 2, 3]


def test_explicit_padding_keeps_pixels_in_place():
    class Padded(nn.Module):
        def __init__(self):
            super().__init__()
            self.reflect = nn.Conv2d(3, 3, 3, padding=1, padding_mode="reflect")
            self.valid, self.last = nn.Conv2d(3, 3, 3), nn.Conv2d(3, 1, 1)

        def forward(self, image):
            x = F.avg_pool2d(F.pad(self.reflect(image), (2, 2, 2, 2)), 5, stride=1)
            return self.last(self.valid(x))

    maps = token_maps(Padded(), torch.randn(1, 3, 6, 6))
    assert boxes_of(maps, "valid", size=6) == boxes_of(maps, "reflect", size=6)
    assert boxes_of(maps, "last", size=6)[0] == [1, 1, 2, 2]  # a valid convolution cuts the rim
    assert len(boxes_of(maps, "last")) == 16


def test_pooled_vectors_and_unknown_functions_have_no_map():
    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.gate = nn.Conv2d(3, 4, 1), nn.Linear(4, 4)
            self.sorted, self.head = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 1, 1)

        def forward(self, image):
            x = self.stem(image)
            x = x * self.gate(x.mean((2, 3)))[:, :, None, None].sigmoid()
            self.sorted(x.sort(dim=-1).values)
            return self.head(x)

    maps = token_maps(Gate(), torch.randn(1, 3, 4, 4))
    assert maps.unmapped == ["gate", "sorted"]
    assert boxes_of(maps, "head", size=4)[5] == [1, 1, 2, 2]  # the gate does not move pixels


def test_scattered_supports_are_kept_as_sets():
    class Tiles(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.Conv2d(12, 1, 1)

        def forward(self, image):
            return self.mix(image_tiles(image, image[:, :, ::2, ::2]))

    maps = token_maps(Tiles(), torch.randn(1, 3, 4, 4))
    found = maps.get("mix", 0)
    corners = maps.table[found.boxes[1]][:, :2] * 4  # token (0, 1): its pixel in each tile
    assert sorted(corners.round().tolist()) == [[0, 1], [0, 3], [2, 1], [2, 3]]
    means = torch.zeros(len(maps.table), dtype=torch.float64)
    means[found.boxes[1][0]] = 1.0
    assert found.occupancy(means, maps.areas)[1] == 0.25


def test_values_are_painted_on_the_pixels_of_their_tokens():
    maps = token_maps(Windows(), torch.randn(1, 3, 10, 10))
    found = maps.get("mix", 0)
    canvas = found.paint(torch.arange(36.0), maps.table, (20, 20))
    assert canvas[4, 4] == 0.0 and canvas[4, 8] == 1.0 and canvas[7, 7] == 0.0
    assert canvas[0, 0] == canvas[3, 3] == 35.0  # patch (0, 0) is the last, rolled around


@pytest.mark.parametrize(
    ("name", "pooled"), [("cfrn-small", ""), ("escnet-small", "channel_attention.mlp")]
)
def test_every_grid_of_the_networks_covers_the_image_once(name, pooled):
    model = create_model(name).eval()
    maps = token_maps(model, torch.randn(1, 3, 160, 160))
    for operator, calls in maps.maps.items():
        for found in calls:
            if found is not None:
                assert not found.gaps
                assert maps.areas[found.boxes].sum() == pytest.approx(1.0), operator
    pooled_only = [n for n in maps.unmapped if pooled and pooled in n]
    mixed = [n for n in maps.unmapped if n not in pooled_only]
    # what follows a convolution over image tiles has no single place: listed, not guessed
    assert all(n.startswith("decoder.ipt_blk") and n.endswith("conv2") for n in mixed)
