"""`codtdq diagnose`: the folder it writes, and what it refuses."""

import csv
import itertools
import json
import sys

import pytest

from codtdq.cli.main import main
from codtdq.errors import DataError
from codtdq.lab import figures
from codtdq.lab.diagnosis import Diagnosis
from codtdq.lab.pages import folder
from codtdq.lab.pages.folder import write_folder
from handmade_diagnosis import handmade


def test_the_folder_has_everything(tmp_path, monkeypatch):
    made = handmade(images=2)
    whole = figures.draw_figures  # all of them are drawn in tests/figures
    monkeypatch.setattr(figures, "draw_figures", lambda d: itertools.islice(whole(d), 2))
    files = write_folder(made, tmp_path / "new" / "run")
    names = {str(f.relative_to(tmp_path / "new" / "run")) for f in files}
    assert {"diagnosis.json", "layers.csv", "weights.csv", "report.html"} <= names
    drawn = {n for n in names if n.startswith("figures/")}
    assert drawn == {
        f"figures/{n}.{form}"
        for n in ("failure-mechanism", "token-ranges")
        for form in ("png", "svg")
    }
    read = Diagnosis.from_json(tmp_path / "new" / "run" / "diagnosis.json")
    assert read.command == made.command and read.method("w4a4").metrics["S"] == 0.55
    pictures = read.images[1].files
    assert pictures["ground-truth"] == "images/01-scene-1/ground-truth.png"
    assert all((tmp_path / "new" / "run" / path).is_file() for path in pictures.values())
    with open(tmp_path / "new" / "run" / "layers.csv", newline="") as stream:
        assert len(list(csv.DictReader(stream))) == 18
    page = (tmp_path / "new" / "run" / "report.html").read_text()
    assert page.count("data:image/png") > 20 and len(page) < 5e6
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["run"]  # no draft is left


def test_a_folder_with_something_in_it_is_refused(tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "mine.txt").write_text("x")
    with pytest.raises(DataError, match="not empty; choose another folder, or pass --overwrite"):
        write_folder(handmade(1), out, figures=False)
    (out / "images").mkdir()
    (out / "images" / "old.png").write_text("stale")
    write_folder(handmade(1), out, figures=False, overwrite=True)
    assert (out / "mine.txt").read_text() == "x" and (out / "report.html").is_file()
    assert not (out / "images" / "old.png").exists()
    with pytest.raises(DataError, match="is a file; --out takes a folder"):
        write_folder(handmade(1), out / "mine.txt", figures=False)


def test_a_failure_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "diagnosis_page", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_folder(handmade(1), tmp_path / "run", figures=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "w4a5"], "unknown method 'w4a5'"),
        (["--method", "fp32"], "names no quantized method"),
        (["--images", "-1"], "--images is -1; accepted: 0 or more"),
        (["--limit", "0"], "0"),
        (["--layers", "*.qkw"], "--layers *.qkw: no Linear or Conv of the model has such a name"),
        (["--model", "nothing"], "unknown model 'nothing'"),
        (["--dataset", "camosynth/nothing"], "camosynth/nothing"),
    ],
)
def test_wrong_input_is_one_line_before_any_work(words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.modules["codtdq.lab.diagnosis.diagnose"], "_Run", None)
    assert main(["diagnose", "--no-figures", "--out", str(tmp_path / "run"), *words]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1 and list(tmp_path.iterdir()) == []


def test_a_real_diagnosis_from_the_command_line(tmp_path, capsys, browser):
    out = tmp_path / "run"
    words = [
        "diagnose",
        "--method",
        "w4a4",
        "--dataset",
        "camosynth/test-easy",
        "--limit",
        "1",
        "--images",
        "1",
        "--r-in",
        "2",
        "--no-figures",
        "--out",
        str(out),
    ]
    assert main(words) == 0
    said = capsys.readouterr()
    assert "W4A4 (naive)" in said.out and "largest zero-bin mass" in said.out and not said.err
    data = json.loads((out / "diagnosis.json").read_text())
    assert data["settings"]["r_in"] == 2 and data["command"] == "codtdq " + " ".join(words)
    browser.open(out / "report.html")
    layers = len(Diagnosis.from_json(out / "diagnosis.json").method("w4a4").layers)
    assert browser.text("#layer-count") == f"{layers} of {layers} layers" and layers > 100
    assert browser.run("document.querySelectorAll('#tiles figure').length") == 5
    assert browser.errors == [] and not (out / "figures").exists()
    assert main(words) == 2 and "is not empty" in capsys.readouterr().err
