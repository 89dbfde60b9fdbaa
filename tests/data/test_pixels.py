"""A picture has the same pixels whatever it comes as; what is no picture is a one-line error."""

import numpy as np
import pytest
import torch
from PIL import Image

from codtdq.data import ImageFolder, to_pixels
from codtdq.errors import DataError
from codtdq.imagefile import read_image

RGB = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
GRAY = RGB[..., 0]
EVERY_CODE = np.arange(256, dtype=np.uint8).reshape(16, 16)


def with_alpha(alpha):
    return np.dstack([RGB, np.full(RGB.shape[:2], alpha, RGB.dtype)])


KINDS = {
    "array": lambda: RGB,
    "array of float64": lambda: RGB / 255,
    "array of float32": lambda: RGB.astype(np.float32) / np.float32(255),
    "array with alpha": lambda: with_alpha(0),
    "array with alpha in float": lambda: with_alpha(128) / 255,
    "array in Fortran order": lambda: np.asfortranarray(RGB),
    "array turned around": lambda: RGB[::-1].copy()[::-1],
    "PIL RGB": lambda: Image.fromarray(RGB),
    "PIL RGBA": lambda: Image.fromarray(with_alpha(0)),
    "tensor [3, H, W]": lambda: torch.from_numpy(RGB).permute(2, 0, 1),
    "tensor [H, W, 3]": lambda: torch.from_numpy(RGB),
    "tensor of float32": lambda: torch.from_numpy(RGB).permute(2, 0, 1).float() / 255,
    "tensor with alpha first": lambda: torch.from_numpy(with_alpha(0)).permute(2, 0, 1),
    "tensor with alpha last": lambda: torch.from_numpy(with_alpha(0)),
    "tensor that learns": lambda: (torch.from_numpy(RGB).float() / 255).requires_grad_(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_same_pixels(kind):
    found = to_pixels(KINDS[kind]())
    assert found.dtype == np.uint8 and found.flags.c_contiguous
    assert np.array_equal(found, RGB)


@pytest.mark.parametrize("kind", [str, lambda path: path], ids=["str", "Path"])
def test_files_are_read(tmp_path, kind):
    Image.fromarray(RGB).save(tmp_path / "a.png")
    assert np.array_equal(to_pixels(kind(tmp_path / "a.png")), RGB)


@pytest.mark.parametrize(
    "image",
    [
        GRAY,
        GRAY / 255,
        GRAY[..., None],
        Image.fromarray(GRAY),
        torch.from_numpy(GRAY.copy()),
        torch.from_numpy(GRAY.copy())[None],
        torch.from_numpy(GRAY.copy())[..., None],
    ],
    ids=["uint8", "float", "[H, W, 1]", "PIL", "tensor", "tensor [1, H, W]", "tensor [H, W, 1]"],
)
def test_gray_becomes_three_equal_channels(image):
    assert np.array_equal(to_pixels(image), np.repeat(GRAY[..., None], 3, axis=2))


def test_a_picture_alone_is_turned_upright_and_one_of_a_pair_is_not(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # held on its side: the viewer turns it by a quarter
    Image.fromarray(RGB).save(tmp_path / "a.png", exif=exif)
    assert np.array_equal(to_pixels(tmp_path / "a.png"), np.rot90(RGB, -1))
    assert np.array_equal(to_pixels(Image.open(tmp_path / "a.png")), np.rot90(RGB, -1))
    assert np.array_equal(ImageFolder(tmp_path)[0].image, np.rot90(RGB, -1))
    assert np.array_equal(read_image(tmp_path / "a.png"), RGB)


@pytest.mark.parametrize("suffix", ["gif", "webp", "tif", "bmp"])
def test_other_formats_are_read(tmp_path, suffix):
    flat = np.full((4, 5, 3), 255, np.uint8)
    Image.fromarray(flat).save(tmp_path / f"a.{suffix}")
    assert ImageFolder(tmp_path).names() == ["a"]
    assert np.array_equal(ImageFolder(tmp_path)[0].image, flat)


def test_a_file_with_transparency_and_its_array_agree(tmp_path):
    Image.fromarray(with_alpha(0)).save(tmp_path / "a.png")
    assert np.array_equal(to_pixels(tmp_path / "a.png"), to_pixels(with_alpha(0)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_every_code_survives_the_way_through_floats(dtype):
    scaled = (torch.from_numpy(EVERY_CODE).double() / 255).to(dtype).expand(3, 16, 16)
    assert np.array_equal(to_pixels(scaled)[..., 0], EVERY_CODE)


def test_bfloat16_is_taken():
    assert to_pixels(torch.ones(3, 2, 2, dtype=torch.bfloat16)).tolist() == [[[255] * 3] * 2] * 2


def test_floats_may_miss_the_range_by_less_than_half_a_code():
    image = np.full((2, 2, 3), 1.0000001)
    image[0] = -1e-4
    assert to_pixels(image)[:, 0, 0].tolist() == [0, 255]


def test_a_tensor_with_three_rows_and_three_columns_is_channels_first():
    x = torch.arange(27, dtype=torch.uint8).reshape(3, 3, 3)
    assert np.array_equal(to_pixels(x), x.permute(1, 2, 0).numpy())
    assert np.array_equal(to_pixels(x.numpy()), x.numpy())  # arrays have their channels last


def test_a_sixteen_bit_pil_image_is_scaled():
    deep = Image.fromarray(np.array([[0, 32896, 65535]], dtype=np.uint16))
    assert to_pixels(deep)[0, :, 0].tolist() == [0, 128, 255]


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (None, "image is a NoneType; accepted: a path, a PIL image"),
        (RGB.tolist(), "image is a list"),
        (RGB.transpose(2, 0, 1), r"array \[3, 9, 7\]; accepted: .*image.transpose\(1, 2, 0\)"),
        (RGB[None], r"array \[1, 9, 7, 3\]; accepted"),
        (RGB[..., :2], r"array \[9, 7, 2\]"),
        (RGB[:0], r"image is empty: an array \[0, 7, 3\]"),
        (RGB.astype(np.int64), "array of int64; accepted: uint8, or float"),
        (RGB > 9, "array of bool"),
        (RGB.astype(np.float32), "floats from 0 to 249; accepted: 0 to 1; divide by 255"),
        (RGB / 255 - 0.5, "accepted: 0 to 1.*undo a normalisation"),
        (np.full((2, 2, 3), np.nan), "array with NaN or infinity"),
        (np.full((2, 2), np.inf), "array with NaN or infinity"),
        (torch.zeros(1, 3, 4, 4), r"batch \[1, 3, 4, 4\]; pass one picture of it, image\[0\]"),
        (torch.zeros(4), r"tensor \[4\]; accepted: \[3, H, W\], \[H, W, 3\] or \[H, W\]"),
        (torch.zeros(5, 6, 7), r"tensor \[5, 6, 7\]"),
        (torch.zeros(3, 0, 5), "image is empty"),
        (torch.zeros(3, 5, 5, dtype=torch.int32), "tensor of int32"),
        (torch.full((3, 5, 5), torch.nan), "tensor with NaN"),
        (Image.new("RGB", (0, 4)), "image is empty: 0 x 4"),
        (Image.new("F", (2, 2)), "32-bit pixels"),
        ("absent.png", r"absent.png: no such file$"),
    ],
)
def test_what_is_no_picture_is_an_error_of_one_line(image, message):
    with pytest.raises(DataError, match=message) as error:
        to_pixels(image)
    assert "\n" not in str(error.value)


def test_a_closed_pil_image_is_an_error(tmp_path):
    Image.fromarray(RGB).save(tmp_path / "a.png")
    image = Image.open(tmp_path / "a.png")
    image.close()
    with pytest.raises(DataError, match="cannot be decoded"):
        to_pixels(image)
