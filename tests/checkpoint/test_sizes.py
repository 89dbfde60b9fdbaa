"""What a plan promises, what storage is split into and what lies on the disk are one number."""

import json

import pytest

import codtdq
from codtdq.cli import main
from codtdq.data import open_dataset
from codtdq.lab.bench.speed.storage import storage_split
from codtdq.models.weights import shipped_weights
from codtdq.operators.record import record_of
from codtdq.planning.planner import counted
from small_nets import images, small_net


def bytes_of(folder):
    """Of the files, and of the tensors in them."""
    split = storage_split(folder)
    files = sum(file.stat().st_size for file in folder.iterdir())
    assert split.total == files
    return files, files - split.metadata


@pytest.mark.parametrize("method", ["cod-tdq", "cod-tdq-guarded"])
def test_a_file_is_its_plan_and_a_header(method, tmp_path):
    """With index tables and masks (cfrn-small has windows), blocks that are not full, scales."""
    model = codtdq.create_model("cfrn-small")
    made = codtdq.quantize(model, method, calibration=open_dataset("camosynth/calib", limit=1))
    _, tensors = bytes_of(codtdq.save(made, tmp_path / "made"))
    assert codtdq.plan(model, method).totals()["packed_bytes"] == tensors
    again = codtdq.load(tmp_path / "made", backend="reference")
    assert record_of(again).plan.totals()["packed_bytes"] == tensors


@pytest.mark.parametrize("storage", ["fp32", "block8", "tables8"])
def test_what_calibration_added_is_in_the_plan_of_the_result(storage, tmp_path):
    """Transforms of inputs and new biases are known once the method has run."""
    batches = [images(2, seed=i) for i in range(2)]
    config = codtdq.config("cod-tdq-plus", float_storage=storage)
    made = codtdq.quantize(small_net(), config, calibration=batches)
    _, tensors = bytes_of(codtdq.save(made, tmp_path / "made"))
    totals = record_of(made).plan.totals()
    assert totals["packed_bytes"] == tensors
    assert totals["buffer_bytes"] > codtdq.plan(small_net(), "cod-tdq").totals()["buffer_bytes"]


def test_the_file_of_the_package_has_the_bytes_of_its_plan():
    """An older header holds no bytes of buffers; counted again they are those of the file."""
    folder = shipped_weights("vit-cod-w4a4")
    model = codtdq.load(folder, backend="reference")
    _, tensors = bytes_of(folder)
    assert counted(record_of(model).plan, model).totals()["packed_bytes"] == tensors


def test_the_commands_say_the_same(tmp_path, capsys):
    settings = ["--model", "cfrn-small", "--method", "cod-tdq", "--json"]
    assert main(["plan", *settings]) == 0
    planned = json.loads(capsys.readouterr().out)["totals"]["packed_bytes"]
    assert main(["quantize", *settings, "--out", str(tmp_path / "made")]) == 0
    written = json.loads(capsys.readouterr().out)
    files, tensors = bytes_of(tmp_path / "made")
    assert planned == written["packed_bytes"] == tensors
    assert written["bytes"] == files == planned + written["header_bytes"]
