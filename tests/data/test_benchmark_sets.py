"""Finding the public benchmarks by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_image_files import MakeFolder

from codtdq.data import BENCHMARKS, find_dataset
from codtdq.errors import DataError

CAM, NON_CAM = "COD10K-CAM-1-Aquatic-7-Flounder-247", "COD10K-NonCAM-1-Aquatic-2-Crab-9"


def test_expected_counts_are_the_published_ones():
    counts = {name: item.expected for name, item in BENCHMARKS.items()}
    assert counts == {"CAMO": 250, "CHAMELEON": 76, "COD10K": 2026, "NC4K": 4121}


@pytest.mark.parametrize(
    ("where", "images", "masks"),
    [
        ("CAMO", "Imgs", "GT"),
        ("camo-test", "Imgs", "GT"),
        ("CAMO_TestingDataset/../CAMO_Test", "Imgs", "GT"),
        ("TestDataset/CAMO", "Imgs", "GT"),
        ("Dataset/TestDataset/camo", "Imgs", "GT"),
        ("test/Camo", "Image", "GT_Object"),
        ("CAMO/Test", "Image", "GT_Object"),
    ],
)
def test_found_in_every_usual_place(
    tmp_path: Path, make_folder: MakeFolder, where: str, images: str, masks: str
):
    (tmp_path / "CAMO_TestingDataset").mkdir()
    make_folder(where, ["camourflage_00012"], images, masks)
    data = find_dataset("camo", tmp_path)
    assert data.name == "CAMO" and data.names() == ["camourflage_00012"]
    assert data.notes == [
        "CAMO: 1 images found, 250 expected; results are not comparable with published ones"
    ]


def test_root_may_be_the_set_or_the_test_folder(tmp_path: Path, make_folder: MakeFolder):
    make_folder("TestDataset/NC4K", ["1058"])
    assert find_dataset("NC4K", tmp_path / "TestDataset").names() == ["1058"]
    assert find_dataset("NC4K", tmp_path / "TestDataset" / "NC4K").names() == ["1058"]


def test_train_folder_is_not_the_test_set(tmp_path: Path, make_folder: MakeFolder):
    make_folder("CAMO-train", ["a"])
    make_folder("CAMOUFLAGE", ["a"])
    with pytest.raises(DataError, match=r"CAMO not found .*folders there: CAMO-train, CAMOUFLAGE"):
        find_dataset("CAMO", tmp_path)
    make_folder("CAMO-test", ["b"])
    assert find_dataset("CAMO", tmp_path).names() == ["b"]


def test_explicit_test_folder_wins_and_the_other_is_noted(tmp_path: Path, make_folder: MakeFolder):
    make_folder("CAMO", ["whole"])
    make_folder("CAMO-test", ["part"])
    data = find_dataset("CAMO", tmp_path)
    assert data.names() == ["part"]
    assert any("ignored" in note and note.endswith("CAMO") for note in data.notes)


def test_right_count_gives_no_note(tmp_path: Path, make_folder: MakeFolder):
    make_folder("CHAMELEON", [f"animal-{i}" for i in range(76)])
    assert find_dataset("CHAMELEON", tmp_path).notes == []
    limited = find_dataset("CHAMELEON", tmp_path, limit=4)
    assert limited.notes == ["CHAMELEON: 4 of 76 images used"], "the count is checked before it"


def test_cod10k_keeps_camouflaged_images_only(tmp_path: Path, make_folder: MakeFolder):
    root = make_folder("COD10K-v3/Test", [CAM, NON_CAM], "Image", "GT_Object")
    (root / "GT_Object" / f"{NON_CAM}.png").unlink()
    data = find_dataset("COD10K", tmp_path)
    assert data.names() == [CAM]
    assert data.notes[0] == "COD10K: 1 images of another kind left out"


def test_allow_missing_reaches_the_folder(tmp_path: Path, make_folder: MakeFolder):
    root = make_folder("NC4K", ["1", "2"])
    (root / "GT" / "2.png").unlink()
    with pytest.raises(DataError, match=r"NC4K at .*1 images without mask \(2\)"):
        find_dataset("NC4K", tmp_path)
    assert find_dataset("NC4K", tmp_path, allow_missing=True).names() == ["1"]


def test_bad_name_and_bad_root(tmp_path: Path):
    with pytest.raises(DataError, match="choose one of CAMO, CHAMELEON, COD10K, NC4K"):
        find_dataset("CAMEL", tmp_path)
    with pytest.raises(DataError, match="give the folder that holds CAMO"):
        find_dataset("CAMO", tmp_path / "gone")
    with pytest.raises(DataError, match=r"folders there: none.*expected e\.g\. TestDataset/CAMO"):
        find_dataset("CAMO", tmp_path)
