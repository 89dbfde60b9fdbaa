"""Scores and sizes beside times: by hand, in the table, and as a user asks for them."""

import json

import pytest
import tiny_model
import torch
from PIL import Image

import codtdq
from codtdq.cli import main
from codtdq.data import open_dataset
from codtdq.errors import ConfigError
from codtdq.evaluation.predict import info_of
from codtdq.lab.bench.speed import competitors
from codtdq.lab.bench.speed.accuracy import score_candidates
from codtdq.lab.bench.speed.latency import run_latency
from codtdq.lab.commands.bench_speed_latency_tables import latency_tables
from codtdq.models.weights import save_weights


@pytest.fixture
def val():
    return open_dataset("camosynth/val", limit=2)


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "tiny.safetensors"
    save_weights(codtdq.create_model(tiny_model.NAME, pretrained=False), path, torch.float32)
    return path


@pytest.fixture
def run(capsys):
    def call(*argv):
        code = main(["bench", "latency", "--model", tiny_model.NAME, *map(str, argv)])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_distances_by_hand_and_scores_of_the_evaluation(val):
    model = codtdq.create_model(tiny_model.NAME, pretrained=False)
    info = info_of(model)

    def exact(images):
        return model(images).detach()

    found = score_candidates(
        {
            "fp32": exact,
            "same": exact,
            "half": lambda images: torch.zeros(1, 1, 32, 32),
            "broken": lambda images: 1 / 0,
        },
        info,
        val,
    )
    assert found["fp32"]["distance"] == found["same"]["distance"] == 0.0
    inputs = [
        codtdq.data.transforms.to_input(val[i].image, 32, info.mean, info.std)[None]
        for i in range(2)
    ]
    by_hand = torch.stack([(0.5 - exact(x).sigmoid()).abs().mean() for x in inputs]).mean()
    assert found["half"]["distance"] == pytest.approx(float(by_hand), rel=1e-5)
    scores = codtdq.evaluate(model, val, batch_size=1).metrics
    assert found["same"]["S"] == scores["S"] and found["same"]["MAE"] == scores["MAE"]
    assert found["same"]["images"] == 2 and found["same"]["dataset"] == "camosynth/val"
    assert found["broken"] == {"failed": "ZeroDivisionError: division by zero"}


def test_a_broken_baseline_is_an_error(val):
    info = info_of(codtdq.create_model(tiny_model.NAME, pretrained=False))
    with pytest.raises(ZeroDivisionError):
        score_candidates({"fp32": lambda images: 1 / 0}, info, val)


def test_scores_stand_in_every_row_and_are_taken_once(tiny, val, fake_rival, monkeypatch):
    with pytest.raises(ConfigError, match="trained weights, and test-tiny has random ones"):
        run_latency(tiny, accuracy=val)
    tiny.trained = True
    built = []
    plain = competitors.Bench.build
    monkeypatch.setattr(competitors.Bench, "build", lambda *a: built.append(a[1:]) or plain(*a))
    rows = run_latency(tiny, batches=[1, 2], compare=["fake"], seconds=0, accuracy=val)["rows"]
    assert built == [("fake", 1), ("fake", 1)]  # once for each batch size, none more for scores
    by_name = {name: [r for r in rows if r["candidate"] == name] for name in ("fp32", "fake")}
    for same in by_name.values():
        assert len(same) == 2 and same[0]["accuracy"] == same[1]["accuracy"]
    fake = by_name["fake"][0]
    assert fake["weight_bytes"] == 1000 and fake["accuracy"]["distance"] > 0
    assert fake["precision"] == "int8" and fake["execution"] == "fake 1.0"
    # where batch 1 is not timed, it is built for the scores
    built.clear()
    other = run_latency(tiny, batches=[2], compare=["fake"], seconds=0, accuracy=val)["rows"]
    assert len(built) == 2 and other[-1]["accuracy"] == fake["accuracy"]


def test_one_table_has_size_speed_and_loss():
    def row(name, **more):
        spread = {"median": 2.0, "q1": 1.0, "q3": 3.0}
        plain = {
            "candidate": name,
            "batch": 1,
            "threads": 1,
            "wall_ms": spread,
            "speedup": spread,
            "ms_per_image": 2.0,
            "images_per_second": 500.0,
            "cpu_speedup": 1.5,
            "weight_bytes": 2_500_000,
            "precision": "int8",
            "execution": "x 1",
            "held": "avx2",
        }
        return plain | more

    scores = {"dataset": "d", "images": 7, "S": 0.81234, "MAE": 0.05, "distance": 0.0123}
    result = {
        "model": "m",
        "weights": "shipped",
        "input_size": 32,
        "coverage": {},
        "held": {
            "set": "avx2",
            "families": {"onnxruntime": {"held": False, "evidence": "it has no switch"}},
        },
        "rows": [
            row("a", accuracy=scores, difference=0.01, build_seconds=12.0, note="on 4 images"),
            row(
                "b",
                difference=None,
                build_seconds=1.0,
                accuracy={"failed": "NaN"},
                weight_bytes=None,
                held="not held",
            ),
            {"candidate": "c", "batch": 1, "threads": 1, "skipped": "died of SIGILL"},
        ],
    }
    (title, header, lines), _, holding = latency_tables(result, memory=False, first_mask=False)
    assert title.endswith("scores on 7 images of d; held to avx2")
    assert all(len(line) == len(header) for line in lines)
    first = dict(zip(header, lines[0]))
    assert first["MB"] == "2.50" and first["S"] == "0.8123" and first["|p - p_fp32|"] == "0.0123"
    said = "x 1; on 4 images; built in 12 s; output differs by 1.0e-02"
    assert first["precision"] == "int8" and first["execution"] == said and first["held"] == "avx2"
    second = dict(zip(header, lines[1]))
    assert second["S"] == "failed" and second["MB"] == "-" and "no scores: NaN" in lines[1][-1]
    assert second["held"] == "not held" and "output not finite" in lines[1][-1]
    assert lines[2][3] == "skipped" and lines[2][-1] == "died of SIGILL"
    assert holding[2] == [["onnxruntime", "not held", "it has no switch"]]


def test_the_command_scores_draws_and_writes(engine, fake_rival, run, checkpoint, tmp_path):
    figure, out_file = tmp_path / "t.png", tmp_path / "t.json"
    argv = ["--checkpoint", checkpoint, "--methods", "cod-tdq", "--threads", 1, "--seconds", 0]
    argv += ["--compare", "torch,fake", "--accuracy", 2, "--calibration-images", 3]
    code, out, err = run(*argv, "--figure", figure, "--out", out_file)
    assert code == 0 and err == "", err
    assert "scores on 2 images of camosynth/val" in out and f"figure written to {figure}" in out
    assert any("fake 1.0; on 3 images of camosynth/calib" in line for line in out.splitlines())
    with Image.open(figure) as picture:
        assert picture.width > 500
    rows = json.loads(out_file.read_text())["rows"]
    assert [row["candidate"] for row in rows] == ["fp32", "cod-tdq", "fake"]
    assert all({"S", "MAE", "distance"} <= row["accuracy"].keys() for row in rows)
    sizes = {row["candidate"]: row["weight_bytes"] for row in rows}
    assert sizes["fp32"] >= 4 * 929 and sizes["fake"] == 1000
    code, out, _ = run(*argv, "--json", "--figure", figure)
    assert code == 0 and json.loads(out)["calibration_images"] == 3


def test_wrong_wishes_fail_before_anything_is_measured(engine, run, tmp_path, monkeypatch):
    monkeypatch.setattr("codtdq.lab.bench.speed.timing.interleaved", None)
    wrong = {
        "accuracy needs trained weights": ["--untrained", "--accuracy", 2],
        "--dataset does nothing without --accuracy": ["--untrained", "--dataset", "CAMO"],
        "ends in .png or .svg": ["--untrained", "--figure", tmp_path / "x.jpg"],
        "accepted: all, torch, torch-bf16": ["--untrained", "--compare", "tensorrt"],
    }
    for text, argv in wrong.items():
        code, out, err = run(*argv)
        assert code == 2 and out == "" and text in err and len(err.splitlines()) == 1, err
    for option in (["--hold", "avx2"], ["--accuracy", 1], ["--figure", "x.png"]):
        code, _, err = run("--backend", "triton", *option)
        assert code == 2 and f"{option[0]} does nothing with --backend triton" in err
