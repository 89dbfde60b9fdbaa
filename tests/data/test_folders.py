"""Folders of images, with and without masks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_image_files import MakeFolder, write_image, write_mask

from codtdq.data import Dataset, ImageFolder, ImageMaskFolder
from codtdq.errors import DataError


@pytest.mark.parametrize(
    ("images", "masks"),
    [("Imgs", "GT"), ("Image", "GT_Object"), ("imgs", "gt"), ("IMAGE", "gt_object")],
)
def test_both_layouts_in_any_case(make_folder: MakeFolder, images: str, masks: str):
    data = ImageMaskFolder(make_folder("pets", ["b", "a"], images, masks))
    assert isinstance(data, Dataset) and data.name == "pets"
    assert data.names() == ["a", "b"] and data.notes == []
    sample = data[0]
    assert sample.name == "a" and sample.image.shape == (9, 12, 3)
    assert sample.mask.tolist() == [[255] * 4 + [0] * 8] * 9
    assert [s.name for s in data] == ["a", "b"] and data[-1].name == "b"


def test_pairs_by_stem_not_by_order(make_folder: MakeFolder):
    root = make_folder("set", ["a", "b"])
    write_mask(root / "GT" / "b.png", high=200)
    assert ImageMaskFolder(root)[1].mask.max() == 200


def test_own_folder_names(make_folder: MakeFolder):
    root = make_folder("set", ["a"], "photos", "truth")
    assert len(ImageMaskFolder(root, "photos", "truth", name="mine")) == 1
    with pytest.raises(
        DataError, match=r"needs one of Imgs/ with GT/, .*folders found: photos, truth"
    ):
        ImageMaskFolder(root)
    with pytest.raises(DataError, match="both"):
        ImageMaskFolder(root, "photos")
    with pytest.raises(DataError, match="no such folder"):
        ImageMaskFolder(root, "photos", "turth")
    with pytest.raises(DataError, match="no such folder"):
        ImageMaskFolder(root / "gone")


def test_every_kind_of_problem_is_listed_in_one_line(make_folder: MakeFolder):
    root = make_folder("set", [f"a{i}" for i in range(12)])
    for i in range(7):
        (root / "GT" / f"a{i}.png").unlink()
    write_mask(root / "GT" / "extra.png")
    write_mask(root / "GT" / "a8.png", size=(9, 12))
    (root / "GT" / "a9.png").write_bytes(b"not an image")
    write_image(root / "Imgs" / "a10.png")
    with pytest.raises(DataError) as caught:
        ImageMaskFolder(root)
    text = str(caught.value)
    assert "\n" not in text
    assert "7 images without mask (a0, a1, a2, a3, a4, ...)" in text
    assert "1 masks without image (extra)" in text
    assert "1 masks of another size than their image (a8 12x9 mask 9x12)" in text
    assert "1 unreadable files (a9.png)" in text
    assert "1 names used by two files (a10.png)" in text
    data = ImageMaskFolder(root, allow_missing=True)
    assert data.names() == ["a10", "a11", "a7"]
    assert len(data.notes) == 1 and "7 images without mask" in data.notes[0]


def test_nothing_usable_is_an_error_even_when_skipping(make_folder: MakeFolder):
    root = make_folder("set", ["a"])
    (root / "GT" / "a.png").unlink()
    with pytest.raises(DataError, match="no usable image and mask pair in Imgs and GT"):
        ImageMaskFolder(root, allow_missing=True)


def test_damage_behind_the_header_raises_on_access(make_folder: MakeFolder):
    root = make_folder("set", ["a", "b"])
    for name in ("a", "b"):
        write_image(root / "Imgs" / f"{name}.jpg", size=(64, 64))
        write_mask(root / "GT" / f"{name}.png", size=(64, 64))
    whole = (root / "Imgs" / "b.jpg").read_bytes()
    (root / "Imgs" / "b.jpg").write_bytes(whole[: len(whole) // 2])
    data = ImageMaskFolder(root)
    assert data[0].name == "a"
    with pytest.raises(DataError, match=r"b\.jpg: cannot be decoded"):
        data[1]


def test_limit_spreads_over_the_folder(make_folder: MakeFolder):
    root = make_folder("set", [f"{i:02d}" for i in range(10)])
    data = ImageMaskFolder(root, limit=3)
    assert data.names() == ["00", "03", "06"] and data.found == 10
    assert data.notes == ["set: 3 of 10 images used"]
    assert len(ImageMaskFolder(root, limit=99)) == 10
    with pytest.raises(DataError, match="limit is 0"):
        ImageMaskFolder(root, limit=0)
    with pytest.raises(IndexError):
        data[3]


def test_image_folder_from_file_folder_and_pattern(make_folder: MakeFolder):
    root = make_folder("set", ["a", "b", "c"])
    assert ImageFolder(root / "Imgs" / "b.jpg").names() == ["b"]
    assert ImageFolder(root / "Imgs").names() == ["a", "b", "c"]
    assert ImageFolder(root).names() == ["a", "b", "c"], "the images folder of a data set"
    assert ImageFolder(str(root / "Imgs" / "[ac].jpg")).names() == ["a", "c"]
    assert ImageFolder(str(root / "**" / "a.jpg")).names() == ["a"]
    data = ImageFolder(root / "Imgs", limit=2)
    assert data.names() == ["a", "b"] and data.notes == ["Imgs: 2 of 3 images used"]
    assert isinstance(data, Dataset)
    sample = data[0]
    assert sample.mask is None and sample.image.dtype == np.uint8


def test_image_folder_failures(tmp_path: Path, make_folder: MakeFolder):
    root = make_folder("set", ["a"])
    (root / "notes.txt").write_text("x")
    (root / "none").mkdir()
    with pytest.raises(DataError, match=r"not an image file; accepted: \.jpg"):
        ImageFolder(root / "notes.txt")
    with pytest.raises(DataError, match="holds no image"):
        ImageFolder(root / "none")
    with pytest.raises(DataError, match="holds no image"):
        ImageFolder(str(root / "*.gif"))
    with pytest.raises(DataError, match="no such file or folder"):
        ImageFolder(tmp_path / "gone")
    with pytest.raises(DataError, match="share the name 'a'"):
        ImageFolder(str(root / "*" / "a.*"))
