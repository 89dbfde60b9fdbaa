"""One group without a worker process: rows, parts, cached images."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import codtdq
from codtdq.data import open_dataset
from codtdq.lab.bench import cache as cache_module
from codtdq.lab.bench import prepare, shard
from codtdq.lab.bench.cache import CachedSynth, Shard, open_cached
from codtdq.lab.bench.cells import make_grid, make_groups
from codtdq.lab.bench.diagnosis import diagnose
from codtdq.lab.bench.group import run_group
from codtdq.lab.bench.settings import RunSettings
from codtdq.schemes.base import InputScheme
from small_nets import simulate

EASY = "camosynth/test-easy"
COLUMNS = {"name", "S", "wF", "E_mean", "F_mean", "MAE"}


@pytest.fixture
def settings(tmp_path, plugin):
    made = RunSettings(out=str(tmp_path), untrained=True, calibration_images=2)
    made.cache_dir.mkdir()
    return made


def rows_of(settings, tmp_path, method="cod-tdq", datasets=(EASY,), limit=5, **grid):
    (group,) = make_groups(make_grid(["test-bench"], [method], datasets, limit=limit, **grid))
    images = dict.fromkeys(datasets, limit)
    return list(run_group(group, settings, images, tmp_path / "group"))


def test_a_row_has_what_is_needed_to_trust_it(settings, tmp_path):
    (row,) = rows_of(settings, tmp_path)
    model = simulate(codtdq.create_model("test-bench", pretrained=False), "cod-tdq")
    direct = codtdq.evaluate(model, open_dataset(EASY, limit=5))
    assert row["status"] == "ok" and row["error"] is None and row["count"] == 5
    assert row["metrics"] == {k: v for k, v in direct.metrics.items() if k != "count"}
    assert set(row["per_image"]) == COLUMNS
    assert row["per_image"]["name"] == [image["name"] for image in direct.per_image]
    assert row["per_image"]["wF"] == [round(image["wF"], 5) for image in direct.per_image]
    assert row["hashes"]["quantized_model"] == direct.provenance["model_sha256"]
    assert row["hashes"]["float_model"] != row["hashes"]["quantized_model"]
    assert row["bits"]["weight"] < 6 and row["info"]["name"] == "cod-tdq"
    assert row["config"]["name"] == "cod-tdq" and row["environment"]["torch"] == torch.__version__
    assert set(row["calibration"]) >= {"images", "seconds", "steps"}
    assert 0 < row["diagnosis"]["sqnr_db"] < 60
    assert 0 < row["harness_share"] < 1 and row["peak_memory_mb"] > 50
    assert 0 < row["wall_seconds"] and 0 < row["cpu_seconds"] and row["timed_images"] == 5


def test_the_hash_of_a_data_set_is_that_of_its_pixels(settings, tmp_path, monkeypatch):
    a, b = (
        row["hashes"]["dataset"]
        for row in rows_of(settings, tmp_path, datasets=(EASY, "camosynth/test-small"))
    )
    assert a != b
    whole = open_dataset(EASY, limit=5)
    pixels = [sample.image.copy() for sample in whole]
    first = Shard(whole, 0, 5).hashes()
    pixels[3][0, 0, 0] ^= 1
    changed = type(
        "D",
        (),
        {
            "name": "d",
            "notes": [],
            "__len__": lambda s: 5,
            "__getitem__": lambda s, i: codtdq.data.Sample("n", pixels[i], whole[i].mask),
        },
    )()
    assert [x == y for x, y in zip(first, Shard(changed, 0, 5).hashes())] == [True] * 3 + [
        False,
        True,
    ]


def test_parts_add_up_to_the_whole_and_finished_ones_are_not_done_again(
    settings, tmp_path, monkeypatch
):
    (whole,) = rows_of(settings, tmp_path / "whole")
    monkeypatch.setattr(shard, "SHARD_IMAGES", 2)
    (parts,) = rows_of(settings, tmp_path / "parts")
    assert parts["per_image"] == whole["per_image"] and parts["hashes"] == whole["hashes"]
    assert parts["metrics"] == pytest.approx(whole["metrics"], abs=1e-12)
    assert len(list((tmp_path / "parts/group").glob("part-*.json"))) == 3

    def forbidden(*args, **kwargs):
        raise AssertionError("evaluated again")

    monkeypatch.setattr(shard, "evaluate", forbidden)
    (again,) = rows_of(settings, tmp_path / "parts")
    assert again == parts


def test_an_interrupted_cell_goes_on_where_it_stopped(settings, tmp_path, monkeypatch):
    (whole,) = rows_of(settings, tmp_path / "whole", method="w4a4", limit=9)
    real = Shard.__getitem__

    def stops(self, index):
        if index == 8:
            raise KeyboardInterrupt
        return real(self, index)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Shard, "__getitem__", stops)
        rows_of(settings, tmp_path / "parts", method="w4a4", limit=9)
    (row,) = rows_of(settings, tmp_path / "parts", method="w4a4", limit=9)
    assert 0 < row["timed_images"] < 9 == whole["timed_images"]
    for field in ("metrics", "per_image", "hashes"):
        assert row[field] == whole[field]


def test_a_failing_data_set_leaves_the_others_and_calibration_happens_once(
    settings, tmp_path, monkeypatch
):
    calls = []
    real = prepare.quantize
    monkeypatch.setattr(prepare, "quantize", lambda *a, **k: calls.append(1) or real(*a, **k))
    names = (EASY, "camosynth/nothing", "camosynth/test-small")
    rows = rows_of(settings, tmp_path, datasets=names, limit=2)
    assert [row["status"] for row in rows] == ["ok", "error", "ok"]
    assert "unknown data set" in rows[1]["error"] and rows[1]["metrics"] is None
    assert set(rows[0]) == set(rows[1])
    rows_of(settings, tmp_path, datasets=(EASY,), limit=2)  # from the model on disk
    assert calls == [1]


def test_a_model_that_cannot_be_loaded_is_calibrated_again(settings, tmp_path):
    (row,) = rows_of(settings, tmp_path, limit=2)
    for file in (tmp_path / "group/model").iterdir():
        file.write_bytes(b"damaged")
    (failed,) = rows_of(settings, tmp_path, datasets=("camosynth/val",), limit=2)
    assert failed["status"] == "error" and failed["error"].startswith("CheckpointError")
    (again,) = rows_of(settings, tmp_path, limit=2)
    assert again["metrics"] == row["metrics"] and again["hashes"] == row["hashes"]


def test_what_is_scored_is_what_was_calibrated(settings, tmp_path, monkeypatch):
    real = prepare.save

    def lossy(model, directory):
        with torch.no_grad():
            model.head.bias.add_(1)
        real(model, directory)
        with torch.no_grad():
            model.head.bias.sub_(1)

    monkeypatch.setattr(prepare, "save", lossy)
    (row,) = rows_of(settings, tmp_path, limit=2)
    assert "does not hold the model that was calibrated" in row["error"]


def test_outliers_are_planted_and_recorded(settings, tmp_path, monkeypatch):
    stress = pytest.importorskip("codtdq.lab.stress")
    asked = []

    def planted(model, batch, *, seed):
        asked.append((tuple(batch.shape), seed))
        model.stress = {"kind": "outliers"}
        with torch.no_grad():
            model.head.weight.mul_(2)
        return model

    monkeypatch.setattr(stress, "plant_outliers", planted)
    (plain,) = rows_of(settings, tmp_path / "plain", limit=2)
    (row,) = rows_of(settings, tmp_path / "planted", limit=2, stress=["outliers"], seeds=[3])
    assert asked == [((2, 3, 32, 32), 3)]
    assert row["stress"] == "outliers" and row["planted"] == {"kind": "outliers"}
    assert row["hashes"]["float_model"] != plain["hashes"]["float_model"]


def test_diagnosis_of_a_methods_own_operators(plugin):
    from codtdq.operators import QuantConv2d, quant_operators

    model = codtdq.create_model("test-bench", pretrained=False)
    batches = [torch.rand(1, 3, 32, 32) for _ in range(2)]
    assert diagnose(model, batches) is None

    class Halves(InputScheme):
        kind = "test-halves"

        def forward(self, tokens):
            return torch.where(tokens > 0.5, tokens, torch.zeros_like(tokens))

    QuantConv2d.adopt(model.stem, codtdq.plan(model, "w4a4").site("stem"), inputs=Halves())
    found = diagnose(model, batches)
    x = torch.cat(batches).double()
    lost = x[x <= 0.5]
    ratio = x.square().sum() / lost.square().sum()
    assert found["sqnr_db"] == pytest.approx(10 * ratio.log10().item(), abs=1e-3)
    assert found["zero_mass"] == pytest.approx(len(lost) / x.numel(), abs=1e-5)
    assert all(op.listener is None for op in quant_operators(model).values())


def test_a_failing_calibration_is_a_row_per_data_set(settings, tmp_path, monkeypatch):
    monkeypatch.setenv("BENCH_TEST_BROKEN", "1")
    rows = rows_of(settings, tmp_path, method="test-fails", datasets=(EASY, "camosynth/val"))
    assert [row["error"] for row in rows] == ["RuntimeError: two lines"] * 2


def test_cached_images_are_the_made_ones(tmp_path, monkeypatch):
    source = open_dataset(EASY, limit=3)
    cached = open_cached(EASY, None, 3, tmp_path)
    assert isinstance(cached, CachedSynth) and cached.names() == source.names()
    for _ in range(2):  # made, then read back
        for mine, theirs in zip(cached, source):
            assert mine.name == theirs.name
            assert np.array_equal(mine.image, theirs.image)
            assert np.array_equal(mine.mask, theirs.mask)

    def forbidden(*args):
        raise AssertionError("made again")

    monkeypatch.setattr(codtdq.data.camosynth, "generate", forbidden)
    assert open_cached(EASY, None, 3, tmp_path)[2].name == source.names()[2]
    monkeypatch.setattr(cache_module, "CACHE_BYTES", 10)
    assert not isinstance(open_cached(EASY, None, 3, tmp_path), CachedSynth)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux resets the mark")
def test_peak_memory_is_that_of_the_block():
    """In a process of its own: one that keeps freed memory would serve the block from it."""
    code = """
import numpy as np
from codtdq.lab.bench.usage import Usage
with Usage() as large:
    block = np.ones(40 << 20, np.uint8)
del block
with Usage() as small:
    pass
assert large.peak_memory_mb - small.peak_memory_mb > 30, "the mark was not reset"
"""
    subprocess.run([sys.executable, "-c", code], check=True)
