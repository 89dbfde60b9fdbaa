"""`codtdq score` as a user runs it: numbers, layouts, files, resuming, errors."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import py_sod_metrics
import pytest
from PIL import Image

from codtdq.cli import main
from codtdq.lab.score import run as score_run

SCORES = ("S", "wF", "E_mean", "E_max", "E_adp", "F_mean", "F_max", "F_adp", "MAE")


def run_json(capsys, *words: object) -> dict:
    assert main(["score", *map(str, words), "--json", "--workers", "1"]) == 0
    return json.loads(capsys.readouterr().out)


def failure(capsys, *words: object) -> str:
    assert main(["score", *map(str, words), "--workers", "1"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    return captured.err


def read(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path).convert("L"))


def reference(masks: Path, maps: Path) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Scores and curves of PySODMetrics."""
    s, wf, mae = py_sod_metrics.Smeasure(), py_sod_metrics.WeightedFmeasure(), py_sod_metrics.MAE()
    e, f = py_sod_metrics.Emeasure(), py_sod_metrics.Fmeasure()
    for path in sorted(masks.iterdir()):
        for metric in (s, wf, mae, e, f):
            metric.step(read(maps / path.name), read(path))
    em, fm, pr = e.get_results()["em"], f.get_results()["fm"], f.get_results()["pr"]
    scores = {
        "S": s.get_results()["sm"],
        "wF": wf.get_results()["wfm"],
        "MAE": mae.get_results()["mae"],
        "E_mean": em["curve"].mean(),
        "E_max": em["curve"].max(),
        "E_adp": em["adp"],
        "F_mean": fm["curve"].mean(),
        "F_max": fm["curve"].max(),
        "F_adp": fm["adp"],
    }
    curves = {"e": em["curve"], "f": fm["curve"], "precision": pr["p"], "recall": pr["r"]}
    return {key: float(value) for key, value in scores.items()}, curves


def test_all_scores_equal_pysodmetrics(maps: Path, capsys):
    found = run_json(
        capsys,
        *("--pred", maps / "results" / "good", "--pred", maps / "results" / "poor"),
        *("--gt", maps / "TestDataset"),
    )
    assert [(r["method"], r["dataset"], r["count"]) for r in found["results"]] == [
        ("good", "CAMO", 5),
        ("poor", "CAMO", 5),
        ("good", "Pond", 3),
        ("poor", "Pond", 3),
    ]
    for row in found["results"]:
        masks = maps / "TestDataset" / row["dataset"] / "GT"
        expected, _ = reference(masks, maps / "results" / row["method"] / row["dataset"])
        for key in SCORES:
            assert row[key] == pytest.approx(expected[key], abs=1e-6), key
    assert found["notes"] == [
        "CAMO: 5 masks found, 250 expected; scores are not comparable with published ones"
    ]


def test_curves_equal_pysodmetrics(maps: Path):
    from codtdq.lab.score.sources import of_folders

    sources = of_folders([str(maps / "results" / "good")], [str(maps / "TestDataset")])
    curves = score_run.score(sources).cells["good", "CAMO"].curves()
    _, expected = reference(maps / "TestDataset/CAMO/GT", maps / "results/good/CAMO")
    for name, values in expected.items():  # recorded from threshold 255 down to 0, as PySODMetrics
        np.testing.assert_allclose(getattr(curves, name)[::-1], values, atol=1e-6, err_msg=name)


def test_several_processes_give_the_same_numbers(maps: Path, capsys, monkeypatch):
    monkeypatch.setattr(score_run, "CHUNK", 2)
    words = ["--pred", f"{maps}/results/good", "--gt", f"{maps}/TestDataset", "--json"]
    assert main(["score", *words, "--workers", "1"]) == 0
    alone = capsys.readouterr().out
    assert main(["score", *words, "--workers", "2"]) == 0
    assert capsys.readouterr().out == alone


@pytest.mark.parametrize(
    ("images", "masks"), [("Image", "GT_Object"), ("im", "gt"), ("images", "masks"), (None, "GT")]
)
def test_layouts(maps: Path, capsys, images: str | None, masks: str):
    pond = maps / "TestDataset" / "Pond"
    expected = run_json(capsys, "--pred", maps / "results/good/Pond", "--gt", pond)["results"]
    moved = maps / "other" / "Pond"
    moved.mkdir(parents=True)
    if images is not None:
        (pond / "Imgs").rename(moved / images)
    (pond / "GT").rename(moved / masks)
    for truth in (moved, moved / masks, maps / "other"):
        found = run_json(capsys, "--pred", maps / "results/good", "--gt", truth)["results"]
        assert found == expected, truth
    assert found[0]["dataset"] == "Pond" and found[0]["method"] == "good"


def test_files_of_pysodevaltoolkit(maps: Path, capsys, rename, monkeypatch):
    plain = run_json(capsys, "--pred", maps / "results/good", "--gt", maps / "TestDataset/Pond")
    rename("results/good/Pond", "pond_", "_fused.png")
    rename("TestDataset/Pond/GT", "gt-", ".png")
    datasets = {
        "Pond": {
            "image": {"path": "TestDataset/Pond/Imgs", "suffix": ".png"},
            "mask": {"path": "TestDataset/Pond/GT", "prefix": "gt-", "suffix": ".png"},
        }
    }
    methods = {
        "Ours": {
            "Pond": {"path": "results/good/Pond", "prefix": "pond_", "suffix": "_fused.png"},
            "Sea": {"path": "results/sea", "suffix": ".png"},
        },
        "Theirs": {"Pond": {"path": "results/poor/Pond", "suffix": ".png"}},
        "Absent": {"Pond": None},
    }
    (maps / "datasets.json").write_text(json.dumps(datasets))
    (maps / "methods.json").write_text(json.dumps(methods))
    words = ("--dataset-json", maps / "datasets.json", "--method-json", maps / "methods.json")
    found = run_json(capsys, *words)  # paths count from the files, or from where one stands
    assert [row["method"] for row in found["results"]] == ["Ours", "Theirs"]
    assert {k: found["results"][0][k] for k in SCORES} == {
        k: plain["results"][0][k] for k in SCORES
    }
    assert found["notes"] == [
        "Ours: no masks are given for Sea; left out",
        "Absent: no maps on Pond; left out",
    ]
    monkeypatch.chdir(maps)
    assert run_json(capsys, *words, "--methods", "Theirs")["results"] == found["results"][1:]
    assert "no method Nobody; there are: Ours, Theirs" in failure(
        capsys, *words, "--methods", "Nobody"
    )


def test_files_that_are_written(maps: Path, capsys):
    openpyxl = pytest.importorskip("openpyxl")
    out = maps / "out"
    words = ["--pred", f"{maps}/results/poor", "--pred", f"{maps}/results/good", "--workers", "1"]
    words += ["--gt", f"{maps}/TestDataset", "--out", str(out), "--xlsx", "--curves"]
    assert main(["score", *words, "--metric", "S,MAE"]) == 0
    shown = capsys.readouterr().out
    assert "Method" in shown and "excludes 0" in shown and "yes, better" in shown
    for kind in ("scores", "stats"):
        for suffix in ("txt", "md", "csv", "tex"):
            assert (out / f"{kind}.{suffix}").stat().st_size > 80
    assert "\\begin{tabular}" in (out / "scores.tex").read_text()
    with (out / "per_image.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 16 and {"dataset", "method", "name", *SCORES} == set(rows[0])
    for dataset in ("CAMO", "Pond"):
        picture = Image.open(out / f"curves-{dataset}.png")
        assert picture.width > 800 and len(np.unique(np.asarray(picture.convert("RGB")))) > 10
    book = openpyxl.load_workbook(out / "scores.xlsx", read_only=True)
    assert book.sheetnames == ["scores", "stats", "CAMO", "Pond"]
    header, *lines = book["CAMO"].iter_rows(values_only=True)
    assert header[:2] == ("method", "name") and len(lines) == 10
    csv_s = {(r["method"], r["name"]): float(r["S"]) for r in rows if r["dataset"] == "CAMO"}
    assert {(line[0], line[1]): line[header.index("S")] for line in lines} == pytest.approx(csv_s)


@pytest.mark.parametrize("style", ["markdown", "latex", "csv"])
def test_styles(maps: Path, capsys, style: str):
    words = ["--pred", f"{maps}/results/good", "--gt", f"{maps}/TestDataset/Pond", "--workers", "1"]
    assert main(["score", *words, "--style", style]) == 0
    start = {"markdown": "### Scores", "latex": "% needs", "csv": "method,dataset,S"}[style]
    assert capsys.readouterr().out.startswith(start)


def test_scores_alone_need_no_torch(maps: Path, tmp_path: Path):
    words = ["--pred", f"{maps}/results/good", "--gt", f"{maps}/TestDataset/Pond", "--workers", "1"]
    code = (
        "import sys; from codtdq.cli import main; "
        f"sys.argv = {['codtdq', 'score', *words, '--out', str(tmp_path / 'out')]}; "
        "assert main() == 0 and 'torch' not in sys.modules"  # as the command is called
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_a_second_run_scores_only_what_changed(maps: Path, capsys, monkeypatch):
    measured: list[str] = []
    work = score_run.measure_tasks

    def watched(tasks, resize):
        measured.extend(f"{t.dataset}/{t.name}/{m}" for t in tasks for m in t.maps)
        if len(measured) > stop_after:
            raise KeyboardInterrupt
        return work(tasks, resize)

    monkeypatch.setattr(score_run, "measure_tasks", watched)
    monkeypatch.setattr(score_run, "CHUNK", 1)
    words = ["score", "--pred", f"{maps}/results/good", "--gt", f"{maps}/TestDataset"]
    words += ["--out", f"{maps}/out", "--workers", "1", "--json"]
    stop_after = 3
    assert main(words) == 130  # interrupted in the fourth image
    capsys.readouterr()
    measured.clear()
    stop_after = 99
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(measured) == 5 and found["resumed"] == 3
    measured.clear()
    changed = maps / "results/good/CAMO/camo-2.png"
    Image.fromarray(255 - read(changed)).save(changed)
    assert main(words) == 0
    again = json.loads(capsys.readouterr().out)
    assert measured == ["CAMO/camo-2/good"] and again["resumed"] == 7
    assert again["results"][0]["S"] < found["results"][0]["S"]
    fresh = run_json(capsys, "--pred", f"{maps}/results/good", "--gt", f"{maps}/TestDataset")
    assert fresh["results"] == again["results"]


def test_a_damaged_state_is_said_and_scored_again(maps: Path, capsys):
    words = ["--pred", maps / "results/good", "--gt", maps / "TestDataset/Pond"]
    first = run_json(capsys, *words, "--out", maps / "out")
    (maps / "out/state/Pond--good.npz").write_bytes(b"no archive")
    again = run_json(capsys, *words, "--out", maps / "out")
    assert again["results"] == first["results"] and again["resumed"] == 0
    assert "is damaged" in again["notes"][0]


def test_sizes_are_checked_and_resize_brings_them_to_the_mask(maps: Path, capsys):
    folder = maps / "results/good/Pond"
    for path in folder.iterdir():
        Image.fromarray(read(path)).resize((24, 20)).save(path)
    words = ["--pred", folder, "--gt", maps / "TestDataset/Pond"]
    message = failure(capsys, *words)
    assert "3 maps of another size than their mask (pond-0 24x20 mask 48x48," in message
    assert "--resize" in message
    found = run_json(capsys, *words, "--resize")["results"][0]
    enlarged = maps / "enlarged"
    enlarged.mkdir()
    for path in folder.iterdir():
        Image.fromarray(read(path)).resize((48, 48), Image.Resampling.BILINEAR).save(
            enlarged / path.name
        )
    expected, _ = reference(maps / "TestDataset/Pond/GT", enlarged)
    assert {key: found[key] for key in SCORES} == pytest.approx(expected, abs=1e-6)


def test_missing_maps(maps: Path, capsys):
    (maps / "results/good/Pond/pond-1.png").unlink()
    words = ["--pred", maps / "results/good", "--gt", maps / "TestDataset/Pond"]
    assert "good on Pond: 1 masks without map (pond-1)" in failure(capsys, *words)
    found = run_json(capsys, *words, "--allow-missing")
    assert found["results"][0]["count"] == 2 and "left out" in found["notes"][0]
    # statistics take the images that both have
    both = run_json(capsys, *words, "--pred", maps / "results/poor", "--allow-missing")
    assert [row["images"] for row in both["statistics"]] == [2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--pred", "results/good"], "--pred and --gt go together"),
        ([], "give --pred and --gt, or --dataset-json and --method-json"),
        (["--pred", "nowhere", "--gt", "TestDataset"], "nowhere: no such folder"),
        (["--pred", "TestDataset/CAMO/GT", "--gt", "TestDataset"], "a folder of maps per data set"),
        (["--pred", "results/good", "--gt", "TestDataset", "--metric", "IoU"], "metric IoU"),
        (["--pred", "results/good", "--gt", "TestDataset", "--xlsx"], "--out DIR"),
        (["--pred", "results", "--gt", "TestDataset/Pond"], "holds no image"),
        (["--pred", "TestDataset/CAMO/GT", "--gt", "TestDataset/Pond"], "no name agrees"),
        (["--pred", "results/good", "--gt", "TestDataset", "--reference", "x"], "is no method"),
        (["--dataset-json", "no.json", "--method-json", "no.json"], "no.json: no such file"),
    ],
)
def test_errors_are_one_line(maps: Path, capsys, monkeypatch, words: list[str], message: str):
    monkeypatch.chdir(maps)
    assert message in failure(capsys, *words)


def test_chosen_metrics_are_those_of_every_form(maps: Path, capsys):
    words = ["score", "--pred", f"{maps}/results/good", "--gt", f"{maps}/TestDataset"]
    words += ["--metric", "S,MAE", "--workers", "1"]
    assert main([*words, "--style", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "method,dataset,S,MAE,count"
    assert main([*words, "--json"]) == 0
    for row in json.loads(capsys.readouterr().out)["results"]:
        assert list(row) == ["method", "dataset", "S", "MAE", "count"]


def test_paired_statistics_name_reference_metric_and_direction(maps: Path, capsys):
    words = ["--pred", maps / "results/good", "--pred", maps / "results/poor"]
    found = run_json(
        capsys, *words, "--gt", maps / "TestDataset", "--compare", "MAE", "--reference", "poor"
    )["statistics"]
    assert [row["dataset"] for row in found] == ["CAMO", "Pond", "all data sets (2)"]
    results = run_json(capsys, *words, "--gt", maps / "TestDataset")["results"]
    mae = {(r["method"], r["dataset"]): r["MAE"] for r in results}
    for row in found[:2]:
        assert (row["method"], row["reference"]) == ("good", "poor") and row["won"] == 1.0
        gap = mae["good", row["dataset"]] - mae["poor", row["dataset"]]
        assert row["difference"] == pytest.approx(gap) and row["high"] < 0
    assert found[2]["images"] == 8
