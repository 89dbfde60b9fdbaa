"""Decoding images and masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_image_files import write_image, write_mask

from codtdq.errors import DataError
from codtdq.imagefile import header_size, list_image_files, read_image, read_mask


def test_image_is_rgb_whatever_the_file_mode(tmp_path: Path):
    gray = Image.fromarray(np.full((4, 5), 77, np.uint8))
    for mode in ("L", "RGBA", "P", "RGB"):
        gray.convert(mode).save(tmp_path / f"{mode}.png")
        image = read_image(tmp_path / f"{mode}.png")
        assert image.shape == (4, 5, 3) and image.dtype == np.uint8 and np.all(image == 77)


def test_sixteen_bit_image_is_scaled_not_clipped(tmp_path: Path):
    deep = np.array([[0, 300, 32896, 65535]], dtype=np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    assert read_mask(tmp_path / "deep.png").tolist() == [[0, 1, 128, 255]]


def test_float_pixels_are_refused(tmp_path: Path):
    Image.fromarray(np.ones((3, 3), np.float32)).save(tmp_path / "float.tif")
    with pytest.raises(DataError, match="save the file with 8 bits"):
        read_image(tmp_path / "float.tif")


def test_exif_orientation_is_left_alone(tmp_path: Path):
    exif = Image.Exif()
    exif[0x0112] = 6  # "turn by 90 degrees to show"
    Image.fromarray(np.zeros((4, 8, 3), np.uint8)).save(tmp_path / "turned.jpg", exif=exif)
    assert read_image(tmp_path / "turned.jpg").shape == (4, 8, 3)
    assert header_size(tmp_path / "turned.jpg") == (8, 4)


def test_mask_of_zero_and_one_is_refused(tmp_path: Path):
    write_mask(tmp_path / "low.png", high=1)
    with pytest.raises(DataError, match="multiply them by 255"):
        read_mask(tmp_path / "low.png")


def test_empty_mask_is_fine(tmp_path: Path):
    write_mask(tmp_path / "none.png", high=0)
    assert read_mask(tmp_path / "none.png").max() == 0


def test_bilevel_mask_becomes_0_and_255(tmp_path: Path):
    Image.fromarray(np.array([[True, False]])).save(tmp_path / "bits.png")
    assert read_mask(tmp_path / "bits.png").tolist() == [[255, 0]]


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_truncated_file_raises_one_line_on_decode(tmp_path: Path, suffix: str):
    path = tmp_path / f"cut{suffix}"
    write_image(path, size=(64, 64))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert header_size(path) == (64, 64), "the header is still whole"
    with pytest.raises(DataError, match=r"cut.*cannot be decoded .*; replace the file") as caught:
        read_image(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x89PNG\r\n\x1a\n"])
def test_file_that_is_no_image_raises(tmp_path: Path, content: bytes):
    (tmp_path / "x.png").write_bytes(content)
    with pytest.raises(DataError, match="not a readable image"):
        header_size(tmp_path / "x.png")
    with pytest.raises(DataError, match="cannot be decoded"):
        read_image(tmp_path / "x.png")


def test_missing_file_raises(tmp_path: Path):
    with pytest.raises(DataError, match="no such file"):
        read_image(tmp_path / "gone.png")


def test_listing_is_sorted_and_skips_hidden_and_other_files(tmp_path: Path):
    for name in ("b.JPG", "a.png", "._a.png"):
        write_image(tmp_path / "x.png")
        (tmp_path / "x.png").rename(tmp_path / name)
    (tmp_path / "Thumbs.db").write_text("x")
    (tmp_path / "folder.png").mkdir()
    assert [path.name for path in list_image_files(tmp_path)] == ["a.png", "b.JPG"]
    with pytest.raises(DataError, match="cannot be listed"):
        list_image_files(tmp_path / "gone")
