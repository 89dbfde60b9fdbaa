"""`codtdq demo` on a few images: settings of all models, the worst layers and a picture."""

import json

import pytest
from PIL import Image

from codtdq.cli import main
from codtdq.engine import cpu as native
from codtdq.evaluation import LayerLoss
from codtdq.lab.demo import SETTINGS, SUBJECTS, DemoResult, conclusions
from codtdq.resolve import quantize_for


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """One run for all tests: it takes a while, though weights are only rounded here."""
    import contextlib
    import io

    out = tmp_path_factory.mktemp("demo")
    stdout = io.StringIO()
    quick = {"transforms": (), "ridges": (), "compensate": False, "sweeps": 0, "equalize": False}
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(stdout):
        patch.setattr(
            "codtdq.lab.demo.quantize_for",
            lambda model, config, count: quantize_for(model, config.replace(**quick), count=2),
        )
        code = main(["demo", "--limit", "4", "--out", str(out), "--json"])
    assert code == 0
    return json.loads(stdout.getvalue()), out


def test_every_setting_of_all_models_is_scored(demo):
    data, _ = demo
    assert list(data["scores"]) == ["vit-cod", "cfrn-small", "escnet-small"]
    for subject in SUBJECTS:
        rows = data["scores"][subject.name]
        assert list(rows) == list(subject.settings)
        assert all(0 <= row["S"] <= 1 and row["MAE"] >= 0 for row in rows.values())
        assert rows["fp32"] != rows["cod-tdq"]
        if subject.settings == SETTINGS:
            assert abs(rows["fp32"]["S"] - rows["w8a8"]["S"]) < 0.03
    assert data["data"] == dict.fromkeys(("cfrn-small", "escnet-small"), "camosynth") | {
        "vit-cod": "samples"
    }
    assert data["images"] == {"vit-cod": 3, "cfrn-small": 4, "escnet-small": 4}


def test_the_large_model_finds_the_animals_at_four_bits(demo):
    scores = demo[0]["scores"]["vit-cod"]
    assert scores["fp32"]["S"] > 0.8
    assert (
        abs(scores["cod-tdq-plus"]["S"] - scores["fp32"]["S"])
        < 0.03
        < 0.1
        < (scores["fp32"]["S"] - scores["w4a4"]["S"])
    )


def test_it_runs_on_the_engine_and_says_how_fast(demo):
    data, _ = demo
    for model in data["scores"]:
        how, speed = data["execution"][model], data["speed"][model]
        assert how["fp32"] == "float32"
        if native.unavailable_reason() is None:
            assert how["cod-tdq-guarded"] == f"native ({native.instruction_set()})"
            assert how.get("w8a8", how["w4a4"]) == how["cod-tdq-guarded"]  # one product
            assert how["cod-tdq-plus"].startswith(how["cod-tdq-guarded"])
        assert speed["ratio"] == pytest.approx(speed["fp32_ms"] / speed["int4_ms"])


def test_the_worst_layers_are_named_with_their_losses(demo):
    data, _ = demo
    for worst in data["worst_layers"].values():
        assert len(worst) == 5
        assert [row["sqnr_db"] for row in worst] == sorted(row["sqnr_db"] for row in worst)


def test_the_picture_has_a_row_per_image_and_a_column_per_setting(demo):
    data, out = demo
    picture = Image.open(out / "demo.png")
    assert data["picture"] == str(out / "demo.png")
    assert picture.width > 6 * 140 and picture.height > 11 * 140


def test_conclusions_follow_the_numbers():
    def result(method):
        row = {"fp32": 0.9, "w4a4": 0.8, "cod-tdq": method, "cod-tdq-guarded": 0.88}
        row["cod-tdq-plus"] = 0.895
        scores = {"m": {k: {"S": v} for k, v in row.items()}}
        loss = LayerLoss("fc2", "mlp", calls=1, clip_rate=0.4)
        return DemoResult({"m": 4}, scores, {"m": [loss]})

    assert "over-clips" in conclusions(result(0.7))[0]
    assert "cod-tdq-plus, calibrated on 32 images, loses 0.005" in conclusions(result(0.7))[0]
    assert (
        "helps" in conclusions(result(0.85))[0] and "over-clips" not in conclusions(result(0.85))[0]
    )
    assert "fc2 (mlp) clips 40%" in conclusions(result(0.7))[1]
