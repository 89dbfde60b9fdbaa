"""Opening data sets by one word, and the table of names."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_image_files import MakeFolder

from codtdq.data import (
    TEST_SPLITS,
    CamoSynth,
    Dataset,
    JoinedDataset,
    expand_dataset,
    list_datasets,
    open_dataset,
    open_images,
)
from codtdq.errors import DataError


def test_table_lists_every_name_once_with_a_description():
    rows = {row.name: row for row in list_datasets()}
    assert len(rows) == len(list_datasets())
    assert rows["camosynth"].expected == 1000
    assert rows["camosynth/test-easy"].expected == 250 and rows["NC4K"].expected == 4121
    assert rows["camosynth/train"].expected is None
    assert {row.kind for row in rows.values()} == {"synthetic", "pictures", "benchmark"}
    assert all(row.description for row in rows.values())


def test_every_synthetic_row_opens():
    for row in list_datasets():
        if row.kind == "synthetic":
            data = open_dataset(row.name, limit=4, size=48)
            assert isinstance(data, Dataset) and len(data) == 4 and data.name == row.name


def test_samples_come_with_the_package_unless_a_folder_is_meant(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = open_dataset("samples")
    assert data.names() == ["bricks", "grass", "gravel"] and len(open_dataset("Samples")) == 3
    for index in range(3):
        sample = data[index]
        assert sample.image.shape == (448, 448, 3) and sample.mask.shape == (448, 448)
        assert 0.1 < (sample.mask == 255).mean() < 0.3 and set(sample.mask.flat) == {0, 255}
    (tmp_path / "samples").mkdir()
    with pytest.raises(DataError, match="samples"):
        open_dataset("samples")


def test_camosynth_is_the_four_test_splits():
    data = open_dataset("camosynth", size=48)
    assert isinstance(data, JoinedDataset) and len(data) == 1000
    assert len(set(data.names())) == 1000
    assert data[250].name == "test-texture-00000" and data[-1].name == "test-spikes-00249"
    with pytest.raises(IndexError):
        data[1000]


@pytest.mark.parametrize(("limit", "shares"), [(1, [1]), (6, [2, 2, 1, 1]), (8, [2, 2, 2, 2])])
def test_limit_is_shared_among_the_test_splits(limit: int, shares: list[int]):
    data = open_dataset("camosynth", limit=limit, size=48)
    assert isinstance(data, JoinedDataset)
    assert [len(part) for part in data.parts] == shares
    assert [sample.name for sample in data] == data.names()


def test_expand_gives_one_name_per_result_row():
    assert expand_dataset("CamoSynth") == [f"camosynth/{name}" for name in TEST_SPLITS]
    assert expand_dataset("camosynth/val") == ["camosynth/val"]
    assert expand_dataset("CAMO") == ["CAMO"]


def test_size_reaches_the_generator():
    data = open_dataset("camosynth/val", size=40, limit=1)
    assert isinstance(data, CamoSynth) and data[0].image.shape == (40, 40, 3)


def test_benchmark_by_name_needs_root(tmp_path: Path, make_folder: MakeFolder):
    make_folder("TestDataset/NC4K", ["1", "2"])
    assert open_dataset("nc4k", tmp_path, limit=1).names() == ["1"]
    with pytest.raises(DataError, match="NC4K is read from disk; give the root folder"):
        open_dataset("NC4K")


def test_folder_by_path_and_below_root(tmp_path: Path, make_folder: MakeFolder):
    root = make_folder("mine", ["a", "b"])
    assert open_dataset(str(root)).names() == ["a", "b"]
    assert open_dataset("mine", tmp_path).names() == ["a", "b"]
    (root / "GT" / "a.png").unlink()
    with pytest.raises(DataError, match="1 images without mask"):
        open_dataset(str(root))
    assert open_dataset(str(root), allow_missing=True).names() == ["b"]


@pytest.mark.parametrize(
    ("spec", "near"),
    [
        ("camosynth/test-esay", "camosynth/test-easy"),
        ("test-small", "camosynth/test-small"),
        ("camosint", "camosynth"),
        ("COD-10K", "COD10K"),
    ],
)
def test_unknown_name_suggests_the_nearest(spec: str, near: str):
    with pytest.raises(DataError) as caught:
        open_dataset(spec)
    text = str(caught.value)
    assert f"did you mean '{near}'?" in text and "accepted: camosynth," in text
    assert "\n" not in text


def test_hopeless_name_and_bad_limit():
    with pytest.raises(DataError, match="unknown data set 'zzz'; accepted"):
        open_dataset("zzz")
    with pytest.raises(DataError, match="limit is -1"):
        open_dataset("camosynth", limit=-1)


def test_several_names_are_joined_and_share_a_limit(make_folder: MakeFolder):
    root = make_folder("set", ["a", "b"])
    spec = f"camosynth/val, {root}"
    data = open_dataset(spec, limit=3, size=48)
    assert isinstance(data, JoinedDataset) and data.name == spec
    assert [len(part) for part in data.parts] == [2, 1]
    assert expand_dataset("CAMO,camosynth/val") == ["CAMO", "camosynth/val"]
    with pytest.raises(DataError, match="unknown data set 'nothing'"):
        open_dataset("camosynth/val,nothing")


def test_a_folder_with_a_comma_in_its_name_is_one_folder(make_folder: MakeFolder):
    comma = make_folder("x,y", ["a"])
    assert len(open_dataset(str(comma))) == 1
    assert expand_dataset(str(comma)) == [str(comma)]


def test_images_need_no_masks(make_folder: MakeFolder):
    root = make_folder("photos", ["a", "b"])
    (root / "GT" / "b.png").unlink()
    with pytest.raises(DataError):
        open_dataset(str(root))
    data = open_images(str(root))
    assert data.names() == ["a", "b"] and data[1].mask is None
    assert open_images(root.name, root.parent).names() == ["a", "b"]
    assert open_images("camosynth/calib", limit=2, size=48).names() == [
        "calib-00000",
        "calib-00001",
    ]
    joined = open_images(f"{root},camosynth/calib", limit=3, size=48)
    assert isinstance(joined, JoinedDataset) and [len(p) for p in joined.parts] == [2, 1]
    with pytest.raises(DataError, match="unknown data set 'nothing'"):
        open_images("nothing")
    with pytest.raises(DataError, match="read from disk"):
        open_images("NC4K")


def test_a_folder_that_is_not_there_is_no_misspelt_data_set():
    with pytest.raises(DataError, match="unknown data set 'nothere'; accepted"):
        open_dataset("nothere")
