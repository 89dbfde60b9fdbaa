"""What a newcomer does first, over all verbs: each of these once went wrong or was silent."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_model
import torch
from PIL import Image

import codtdq
from codtdq.cli import main
from codtdq.errors import DataError

TINY = ["--model", tiny_model.NAME, "--untrained"]
FAST = ["--calibration-images", 2]


@pytest.fixture
def photos(tmp_path):
    """A folder of plain JPGs: no masks, no layout."""
    codtdq.data.export_synth("test-easy", tmp_path / "set", 3, 40)
    folder = tmp_path / "photos"
    folder.mkdir()
    for file in (tmp_path / "set" / "Imgs").iterdir():
        Image.open(file).save(folder / f"{file.stem}.jpg")
    return folder


def calibrations(photos):
    first, second, *_ = sorted(photos.iterdir())
    deep = photos.parent / "deep"
    (deep / "inner").mkdir(parents=True, exist_ok=True)
    (deep / "inner" / "x.jpg").write_bytes(first.read_bytes())
    return {
        "folder": str(photos),
        "glob": f"{photos}/*.jpg",
        "list": f"{first},{second}",
        "one file": str(first),
        "folders below": str(deep),
    }


@pytest.mark.parametrize("kind", ["folder", "glob", "list", "one file", "folders below"])
def test_calibration_takes_any_images(run, photos, tmp_path, kind):
    source = calibrations(photos)[kind]
    for verb in (["quantize", "--out", tmp_path / "q"], ["eval", "--limit", 1]):
        argv = [*verb, *TINY, "--method", "per-tensor", "--calibration", source, *FAST]
        code, _, err = run(*argv)
        assert (code, err) == (0, ""), verb
    model = codtdq.create_model(tiny_model.NAME, pretrained=False)
    codtdq.quantize(model, "per-tensor", calibration=source)


@pytest.mark.parametrize("method", ["cod-tdq-plus", "smoothquant", "per-tensor"])
def test_every_method_calibrates_on_plain_photographs(run, photos, tmp_path, method):
    argv = ["quantize", *TINY, "--method", method, "--calibration", photos, *FAST]
    code, out, err = run(*argv, "--out", tmp_path / "q", "--json")
    assert (code, err) == (0, "") and json.loads(out)["name"] == method


def test_python_calibrates_on_images_of_any_kind(photos):
    model = codtdq.create_model(tiny_model.NAME, pretrained=False)
    files = sorted(photos.iterdir())
    exact = codtdq.quantize(model, "per-tensor", calibration=photos).state_dict()
    for images in (files, [Image.open(file) for file in files], codtdq.data.ImageFolder(photos)):
        found = codtdq.quantize(model, "per-tensor", calibration=images).state_dict()
        assert all(torch.equal(found[name], value) for name, value in exact.items())
    with pytest.raises(DataError, match="unknown data set"):
        codtdq.quantize(model, "per-tensor", calibration="nowhere")


def test_load_leaves_the_float_model_as_it_is(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.LayerNorm(64))
    codtdq.save(codtdq.quantize(model, "cod-tdq"), tmp_path / "q")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    types, shown = [type(m) for m in model.modules()], repr(model)
    again = codtdq.load(tmp_path / "q", model=model)
    assert again is not model and [type(m) for m in model.modules()] == types
    assert repr(model) == shown
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("option", ["--method", "--preset"])
def test_the_flagship_goes_by_one_name_everywhere(run, photos, tmp_path, option):
    named, out = [option, "cod-tdq-plus"], tmp_path / "q"
    calibrated = [*TINY, *named, "--calibration", photos, *FAST]
    assert run("plan", "--model", tiny_model.NAME, *named)[0] == 0
    assert run("quantize", *calibrated, "--out", out)[0] == 0
    assert run("eval", *calibrated, "--limit", 1)[0] == 0
    assert run("predict", photos, *calibrated, "--out", tmp_path / "masks")[0] == 0
    code, shown, err = run("bench", "storage", "--packed", out, "--json")
    assert (code, err) == (0, "")
    split = json.loads(shown)["splits"][str(out)]
    stored = sum(file.stat().st_size for file in out.iterdir() if file.is_file())
    assert split["total"] == stored


def test_foreign_files_beside_a_checkpoint_are_neither_counted_nor_touched(run, tmp_path):
    out = tmp_path / "q"
    (out / "notes").mkdir(parents=True)
    (out / "notes" / "diary.txt").write_text("mine")
    (out / "video.mp4").write_bytes(b"x" * 4_000_000)
    argv = ["quantize", *TINY, "--method", "cod-tdq", "--out", out, "--json"]
    code, shown, _ = run(*argv)
    found = json.loads(shown)
    assert code == 0 and found["bytes"] < 1_000_000
    assert (out / "video.mp4").stat().st_size == 4_000_000
    assert (out / "notes" / "diary.txt").read_text() == "mine"


def stop_at(monkeypatch, where, call=1):
    """Have the nth call of a function interrupted, as by Ctrl-C."""
    module, _, name = where.rpartition(".")
    target = __import__(module, fromlist=[name])
    calls, real = [], getattr(target, name)

    def stopped(*args, **kwargs):
        calls.append(1)
        if len(calls) == call:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(target, name, stopped)


def test_an_early_stop_says_truthfully_what_is_kept(run, photos, tmp_path, monkeypatch):
    argv = ["quantize", *TINY, "--calibration", photos, *FAST, "--out", tmp_path / "q"]
    with monkeypatch.context() as early:
        stop_at(early, "codtdq.methods.plus.method.choose_all")
        code, _, err = run(*argv)
    assert code == 130 and err.endswith("before anything was finished; nothing is kept\n")
    assert not list(tmp_path.glob("q*"))
    with monkeypatch.context() as late:
        stop_at(late, "codtdq.methods.plus.sequence.fit_layer", 2)
        code, _, err = run(*argv)
    assert code == 130 and "1 finished parts are kept in" in err and "--resume goes on" in err
    assert (tmp_path / "q.unfinished").is_dir()


def test_a_stopped_eval_and_predict_say_what_is_kept(run, photos, tmp_path, monkeypatch):
    data = ["eval", *TINY, "--dataset", tmp_path / "set", "--batch", 1]
    with monkeypatch.context() as early:
        stop_at(early, "codtdq.evaluation.evaluate.mask_logits", 1)
        assert run(*data)[2].endswith("interrupted; nothing is kept\n")
    with monkeypatch.context() as late:
        stop_at(late, "codtdq.evaluation.evaluate.mask_logits", 3)
        code, _, err = run(*data, "--out", tmp_path / "r.json")
    assert code == 130 and f"kept in {tmp_path / 'r.json.partial'}" in err
    assert (tmp_path / "r.json.partial").is_file()
    with monkeypatch.context() as late:
        stop_at(late, "codtdq.evaluation.masks_to_files.predict", 2)
        code, _, err = run("predict", photos, *TINY, "--out", tmp_path / "m")
    assert code == 130 and "--resume goes on" in err and len(list((tmp_path / "m").iterdir())) == 1
    assert run("predict", photos, *TINY, "--out", tmp_path / "m", "--resume")[0] == 0


def test_a_demo_that_cannot_end_well_does_not_begin(run, tmp_path, monkeypatch):
    monkeypatch.setattr("codtdq.lab.demo.create_model", lambda name: pytest.fail("began"))
    code, _, err = run("demo", "--limit", 0)
    assert code == 2 and "1 or more" in err
    (tmp_path / "file").write_text("x")
    for out in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/demo")):
        code, _, err = run("demo", "--out", out)
        assert code == 2 and f"--out {out} cannot be written" in err and err.count("\n") == 1


def test_a_folder_is_not_taken_for_a_benchmark_of_its_name(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    codtdq.data.export_synth("test-easy", tmp_path / "camo", 2, 40)
    argv = ["bench", "accuracy", "--models", "cfrn-small", "--methods", "fp32"]
    code, out, err = run(*argv, "--dataset", "camo", "--limit", 1, "--out", "runs")
    assert (code, err) == (0, "") and "./camo" in out and " CAMO " not in out
    assert "note: camo: 1 of 2 images used" in out
    row = json.loads(Path("runs/results.jsonl").read_text().splitlines()[0])
    assert row["dataset"] == "./camo" and row["count"] == 1
    (tmp_path / "camo").rename(tmp_path / "CAMO")
    code, out, _ = run(*argv, "--dataset", "CAMO", "--data-root", tmp_path, "--out", "real")
    assert code == 0 and "CAMO: 2 images found, 250 expected; results are not comparable" in out


def test_a_training_goes_on_with_its_own_settings(run, tmp_path):
    out = tmp_path / "run"
    begin = ["train", "--model", tiny_model.NAME, "--out", out, "--source", "camosynth-warmup"]
    begin += ["--steps", 4, "--batch", 2, "--warmup", 1, "--val-images", 2, "--workers", 0]
    assert run(*begin, "--stop-at", 2)[0] == 0
    kept = json.loads((out / "config.json").read_text())
    code, shown, err = run("train", "--out", out, "--resume", "--json")
    assert (code, err) == (0, "") and json.loads(shown)["step"] == 4
    assert json.loads((out / "config.json").read_text()) == kept
    code, _, err = run("train", "--out", out, "--resume", "--lr", 1)
    assert code == 2 and "cannot resume" in err and "lr was" in err


def test_going_on_with_a_training_that_is_not_there_begins_none(tmp_path, capsys):
    assert main(["train", "--out", str(tmp_path / "typo"), "--resume"]) == 2
    assert "holds no training run to go on with" in capsys.readouterr().err
    assert not (tmp_path / "typo").exists()


def test_ctrl_c_while_torch_is_loading_is_one_line(tmp_path):
    """The slow start of a verb lies behind the place where interrupts become one line."""
    code = (
        "import sys, builtins, codtdq.cli as cli\n"
        "real = builtins.__import__\n"
        "def slow(name, *args, **kwargs):\n"
        "    if name == 'torch': raise KeyboardInterrupt\n"
        "    return real(name, *args, **kwargs)\n"
        "builtins.__import__ = slow\n"
        "sys.exit(cli.main(['eval']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 130
    assert done.stderr == "codtdq eval: error: interrupted; nothing is kept\n"


@pytest.mark.parametrize("count", ["0", "-1", "many"])
def test_no_images_to_calibrate_with_is_no_wish_for_the_default(count, run, tmp_path):
    """Zero once meant 128, silently."""
    code, _, err = run("quantize", *TINY, "--calibration-images", count, "--out", tmp_path / "q")
    assert code == 2 and err.count("\n") == 1
    assert f"--calibration-images: {count!r}: expected a whole number, 1 or more" in err
    assert not (tmp_path / "q").exists()
