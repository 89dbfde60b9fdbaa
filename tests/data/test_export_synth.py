"""Exported scenes can be read back and never overwrite anything."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from codtdq.data import VERSION, ImageMaskFolder, export_synth, generate
from codtdq.errors import DataError


def test_export_reads_back_identical(tmp_path: Path):
    written = export_synth("test-small", tmp_path / "out" / "small", 3, 48)
    data = ImageMaskFolder(tmp_path / "out" / "small")
    assert data.names() == [path.stem for path in written]
    for index, sample in enumerate(data):
        expected = generate("test-small", index, 48)
        assert sample.name == expected.name
        assert np.array_equal(sample.image, expected.image)
        assert np.array_equal(sample.mask, expected.mask)
    info = json.loads((tmp_path / "out" / "small" / "camosynth.json").read_text())
    assert info == {"version": VERSION, "split": "test-small", "count": 3, "size": 48}
    assert not list(tmp_path.rglob("*.partial"))


def test_export_refuses_a_folder_in_use(tmp_path: Path):
    (tmp_path / "keep.txt").write_text("x")
    with pytest.raises(DataError, match="is not empty; give a new or empty folder"):
        export_synth("val", tmp_path, 1, 48)
    with pytest.raises(DataError, match="is a file"):
        export_synth("val", tmp_path / "keep.txt", 1, 48)
    assert [path.name for path in tmp_path.iterdir()] == ["keep.txt"]


def test_export_checks_the_request_before_writing(tmp_path: Path):
    with pytest.raises(DataError, match="valid indices: 0 to 127"):
        export_synth("calib", tmp_path / "out", 129, 48)
    with pytest.raises(DataError, match="count is 0"):
        export_synth("calib", tmp_path / "out", 0, 48)
    with pytest.raises(DataError, match="unknown camosynth split"):
        export_synth("nope", tmp_path / "out", 1, 48)
    assert not (tmp_path / "out").exists()


def test_failed_write_leaves_no_partial_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(DataError, match=r"cannot be written \(No space left on device"):
        export_synth("val", tmp_path / "out", 1, 48)
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
