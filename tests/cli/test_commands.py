"""Every verb as a user types it, and every way in which input can be wrong."""

import json

import numpy as np
import pytest
import tiny_model
import torch
from PIL import Image

import codtdq
from codtdq.engine import cpu as native
from small_nets import simulate

NAMED = ["--model", tiny_model.NAME]
TINY = [*NAMED, "--untrained"]
PAPER = [*NAMED, "--method", "cod-tdq"]


@pytest.fixture
def folder(tmp_path):
    """Six small images with masks."""
    root = tmp_path / "set"
    codtdq.data.export_synth("test-easy", root, 6, 40)
    return root


def test_list_and_doctor(run):
    for what in ("models", "methods", "presets", "datasets"):
        code, out, _ = run("list", what)
        assert code == 0 and "name" in out
        rows = json.loads(run("list", what, "--json")[1])
        assert len(rows) >= 5
    assert "cfrn" in run("list", "models")[1] and "NC4K" in run("list", "datasets")[1]
    facts = json.loads(run("doctor", "--json")[1])
    assert facts["environment"]["torch"] == torch.__version__
    assert "reference" in run("doctor")[1]
    engine, choice = facts["backends"]["cpu"], facts["backends"]["auto"]
    reason, name = native.unavailable_reason(), native.instruction_set()
    assert f"engine, {name}" in engine if reason is None else reason in engine
    assert ("cpu" if reason is None else "reference") == choice.split()[1].rstrip(",")
    with native.disabled():
        facts = json.loads(run("doctor", "--json")[1])
    assert facts["backends"]["cpu"] == "not available: turned off"
    assert facts["backends"]["auto"].startswith("takes reference, because")


def test_plan_prints_the_api_plan(run):
    changes = ["--set", "first_layer=quantize", "--set", "zero_ratio=0.4"]
    model = codtdq.create_model(tiny_model.NAME, pretrained=False)
    paper = codtdq.config("cod-tdq", first_layer="quantize", zero_ratio=0.4)
    for argv, config in (([], "cod-tdq-plus"), (["--method", "cod-tdq", *changes], paper)):
        code, out, _ = run("plan", *NAMED, *argv)
        plan, backend, *_ = out.strip().rpartition("\nbackend")
        assert code == 0 and plan == str(codtdq.plan(model, config)) and backend
    data = json.loads(run("plan", *NAMED, "--preset", "w4a4", "--json")[1])
    assert data["config"]["name"] == "w4a4" and len(data["sites"]) == 2
    assert data["backend"]["name"] in ("cpu", "reference") and data["backend"]["reason"]


def test_plan_of_a_method_prints_its_effective_bits(run):
    argv = ["plan", *NAMED, "--method", "cod-tdq-plus", "--set", "weight_group_size=8"]
    code, out, _ = run(*argv)
    data = json.loads(run(*argv, "--json")[1])
    assert code == 0 and data["config"]["weight_group_size"] == 8 and len(data["sites"]) == 2
    cost = data["totals"]["bits_per_weight"]
    assert f"effective     {cost:.2f} bits per quantized weight" in out
    plain = json.loads(run("plan", *NAMED, "--method", "cod-tdq-plus", "--json")[1])
    assert cost > plain["totals"]["bits_per_weight"] > 4  # more multipliers than in groups of 32
    assert "\nbackend       " in out and data["backend"]["name"] in ("cpu", "reference")


def test_plan_of_a_method_whose_formats_follow_from_images_says_so(run):
    code, out, _ = run("plan", *NAMED, "--method", "ptq4vit")
    assert code == 0 and "2 of 2 quantized" in out and "known once the method is calibrated" in out
    assert json.loads(run("plan", *NAMED, "--method", "ptq4vit", "--json")[1])["backend"] is None


def test_a_config_file_of_any_method_goes_into_plan_and_quantize(run, tmp_path):
    for fields in ({"name": "cod-tdq-plus", "trials": 3}, {"name": "smoothquant", "act_bits": 8}):
        file = write(tmp_path / "c.json", fields)
        used = json.loads(run("plan", *NAMED, "--config", file, "--json")[1])["config"]
        assert fields.items() <= used.items()
        code, out, _ = run(
            "quantize",
            *TINY,
            "--config",
            file,
            "--calibration-images",
            2,
            "--out",
            tmp_path / fields["name"],
            "--json",
        )
        assert code == 0 and json.loads(out)["config"] == used


def test_quantize_eval_and_predict_agree_with_the_api(run, folder, tmp_path):
    code, out, err = run("quantize", *TINY, "--preset", "cod-tdq", "--out", tmp_path / "packed")
    assert (code, err) == (0, "") and "2 of 2 operators" in out
    result = tmp_path / "r.json"
    args = ["--dataset", folder, "--out", result, "--json"]
    code, out, err = run("eval", "--model", tmp_path / "packed", *args)
    assert (code, err) == (0, "")
    data = json.loads(result.read_text())
    quantized = simulate(codtdq.create_model(tiny_model.NAME, pretrained=False), "cod-tdq")
    direct = codtdq.evaluate(quantized, codtdq.data.ImageMaskFolder(folder))
    assert data["metrics"] == pytest.approx({k: direct.metrics[k] for k in data["metrics"]})
    assert data["count"] == 6 and data["provenance"]["config"]["name"] == "cod-tdq"
    assert json.loads(out)["metrics"] == data["metrics"]
    assert not list(tmp_path.glob("*.partial"))
    same = json.loads(run("eval", *TINY, "--preset", "cod-tdq", "--dataset", folder, "--json")[1])
    assert same["metrics"] == data["metrics"]

    image = next((folder / "Imgs").iterdir())
    code, out, err = run(
        "predict", image, "--model", tmp_path / "packed", "--overlay", "--out", tmp_path / "masks"
    )
    assert code == 0
    mask = np.asarray(Image.open(tmp_path / "masks" / f"{image.stem}.png"))
    assert np.array_equal(mask, codtdq.predict(quantized, image))
    overlay = Image.open(tmp_path / "masks" / f"{image.stem}-overlay.png")
    assert overlay.size == Image.open(image).size and overlay.mode == "RGB"


def test_quantize_calibrates_by_default_and_goes_on_where_it_was_stopped(
    run, tmp_path, monkeypatch
):
    from codtdq.methods.plus import sequence

    arguments = ["quantize", *TINY, "--calibration-images", "4", "--out", tmp_path / "packed"]
    fitted, fit_layer = [], sequence.fit_layer

    def stopped(*args):
        if len(fitted) == 1:
            raise KeyboardInterrupt
        fitted.append(fit_layer(*args))
        return fitted[-1]

    monkeypatch.setattr(sequence, "fit_layer", stopped)
    assert run(*arguments)[0] == 130
    kept = tmp_path / "packed.unfinished"
    assert len(list(kept.rglob("*.safetensors"))) == 1 and not (tmp_path / "packed").exists()
    later = []
    monkeypatch.setattr(sequence, "fit_layer", lambda *args: later.append(1) or fit_layer(*args))
    code, out, err = run(*arguments, "--resume")
    assert (code, err) == (0, "") and len(later) == 1 and not kept.exists()
    assert "cod-tdq-plus" in out and "bits per value: weights 5.91," in out
    assert run(*arguments)[0] == 0 and len(later) == 3  # from the beginning


def test_predict_takes_folders_and_globs(run, folder, tmp_path):
    for source in (folder / "Imgs", str(folder / "Imgs" / "*.png")):
        out_dir = tmp_path / "m"
        code, out, _ = run("predict", source, *TINY, "--out", out_dir, "--overwrite", "--json")
        assert code == 0 and len(json.loads(out)["written"]) == 6
        assert len(list(out_dir.glob("*.png"))) == 6


def test_eval_limits_and_presets_with_calibration(run, folder):
    code, out, _ = run(
        "eval", *TINY, "--preset", "per-tensor", "--dataset", folder, "--limit", 2, "--json"
    )
    assert code == 0 and json.loads(out)["count"] == 2
    code, out, _ = run("eval", *TINY, "--limit", 4)
    assert code == 0 and "camosynth" in out and "MAE" in out


def test_the_backend_can_be_chosen_for_packed_models_and_on_the_fly(run, folder, tmp_path):
    run("quantize", *TINY, "--method", "cod-tdq", "--out", tmp_path / "packed")
    for source in (["--model", tmp_path / "packed"], [*TINY, "--method", "cod-tdq"]):
        argv = ["eval", *source, "--dataset", folder, "--json", "--backend"]
        used = json.loads(run(*argv, "reference")[1])["provenance"]["backend"]
        assert used["name"] == "reference" and used["reason"] == "asked for"
        with native.disabled():
            code, out, err = run(*argv, "cpu")
        assert code == 2 and out == "" and "turned off" in err and err.count("\n") == 1


def test_untrained_models_are_refused_unless_asked_for(run):
    code, _, err = run("eval", *NAMED, "--limit", 1)
    assert code == 2 and "--untrained" in err


def test_a_model_of_the_users_own_comes_in_by_a_file(run, tmp_path):
    file = tmp_path / "leaf_net.py"
    file.write_text(
        "import codtdq, torch\n"
        "class Leaf(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.c = torch.nn.Conv2d(3, 1, 3, padding=1)\n"
        "    def forward(self, x):\n"
        "        return self.c(x)\n"
        "@codtdq.register_model('leaf-net', description='own', input_size=32)\n"
        "def leaf():\n"
        "    return Leaf()\n"
    )
    code, out, err = run("--import", file, "plan", "--model", "leaf-net")
    assert (code, err) == (0, "") and "1 of 1 quantized" in out
    broken = tmp_path / "broken.py"
    broken.write_text("1/0")
    for path, message in ((broken, "ZeroDivisionError"), (tmp_path / "no.py", "no such file")):
        code, out, err = run("--import", path, "list", "models")
        assert code == 2 and message in err and err.count("\n") == 1


def test_eval_names_the_setting_of_a_packed_model(run, folder, tmp_path):
    run("quantize", *TINY, "--preset", "dstg-only", "--out", tmp_path / "packed")
    code, out, _ = run("eval", "--model", tmp_path / "packed", "--dataset", folder)
    assert code == 0 and "dstg-only" in out
    assert "fp32" in run("eval", *TINY, "--dataset", folder)[1]


def test_export_synth(run, tmp_path):
    code, out, _ = run("export-synth", "--count", 3, "--size", 32, "--out", tmp_path / "s")
    assert code == 0 and "synthetic" in out
    assert len(list((tmp_path / "s" / "Imgs").iterdir())) == 3


def test_train_runs_and_resumes(run, folder, tmp_path):
    args = [
        "train",
        *NAMED,
        "--out",
        tmp_path / "run",
        "--source",
        f"pairs:{folder}",
        "--steps",
        4,
        "--batch",
        2,
        "--warmup",
        1,
        "--val-every",
        4,
        "--save-every",
        2,
        "--workers",
        0,
        "--val-images",
        2,
        "--json",
    ]
    code, out, err = run(*args, "--stop-at", 2)
    assert code == 0, err
    assert json.loads(out)["step"] == 2
    code, out, _ = run(*args, "--resume", "--export", tmp_path / "w.safetensors")
    assert code == 0 and json.loads(out)["step"] == 4
    for weights in (tmp_path / "w.safetensors", tmp_path / "run" / "best.pt"):
        code, out, err = run("eval", *NAMED, "--checkpoint", weights, "--dataset", folder)
        assert code == 0, err


def write(path, data):
    path.write_text(json.dumps(data) if not isinstance(data, str) else data)
    return path


def truncated(folder):
    image = sorted((folder / "Imgs").iterdir())[2]
    image.write_bytes(image.read_bytes()[:300])


def other_size(folder):
    mask = sorted((folder / "GT").iterdir())[1]
    Image.new("L", (7, 7)).save(mask)


def no_mask(folder):
    sorted((folder / "GT").iterdir())[0].unlink()


def nan_weights(tmp_path):
    state = codtdq.create_model(tiny_model.NAME, pretrained=False).state_dict()
    state["head.bias"] = torch.tensor([float("nan")])
    torch.save(state, tmp_path / "nan.pth")
    return tmp_path / "nan.pth"


def wrong_weights(tmp_path):
    torch.save({"other.weight": torch.ones(2)}, tmp_path / "wrong.pth")
    return tmp_path / "wrong.pth"


FAILURES = {
    "unknown verb": (lambda t, f: ["evil"], "invalid choice"),
    "no verb": (lambda t, f: [], "VERB"),
    "unknown model": (lambda t, f: ["eval", "--model", "cfnr"], "did you mean 'cfrn"),
    "missing directory": (lambda t, f: ["eval", "--model", t / "none"], "does not exist"),
    "unknown preset": (lambda t, f: ["eval", *TINY, "--preset", "cod"], "did you mean 'cod-tdq'?"),
    "unknown data set": (lambda t, f: ["eval", *TINY, "--dataset", "NC4"], "unknown data set"),
    "benchmark without root": (lambda t, f: ["eval", *TINY, "--dataset", "NC4K"], "root folder"),
    "benchmark not found": (
        lambda t, f: ["eval", *TINY, "--dataset", "NC4K", "--data-root", t],
        "NC4K",
    ),
    "old option of eval": (lambda t, f: ["eval", *TINY, "--data", t], "--data-root"),
    "old option of quantize": (
        lambda t, f: ["quantize", *TINY, f"--data={t}", "--out", t / "o"],
        "there is no --data: use --dataset or --calibration",
    ),
    "old option of select": (lambda t, f: ["select", "--data", t], "--calibration"),
    "old limit of select": (lambda t, f: ["select", "--limit", 1], "use --calibration-images"),
    "old option of diagnose": (
        lambda t, f: ["diagnose", "--data", "camosynth/val", "--out", t / "o"],
        "--dataset",
    ),
    "old option of bench": (
        lambda t, f: ["bench", "accuracy", "--out", t / "o", "--data", t],
        "--data-root",
    ),
    "zero limit": (lambda t, f: ["eval", *TINY, "--limit", 0], "limit is 0"),
    "unknown field": (lambda t, f: ["plan", *PAPER, "--set", "zero_ration=1"], "zero_ratio"),
    "field of another method": (
        lambda t, f: ["plan", *NAMED, "--set", "tau=1"],
        "PlusConfig has no field 'tau'",
    ),
    "wrong type": (lambda t, f: ["plan", *PAPER, "--set", "tau=abc"], "positive"),
    "bad value": (lambda t, f: ["plan", *PAPER, "--set", "tau=-1"], "positive"),
    "no value": (lambda t, f: ["plan", *NAMED, "--set", "tau"], "FIELD=VALUE"),
    "unmatched pattern": (
        lambda t, f: ["plan", *NAMED, "--set", 'skip_patterns=["x"]'],
        "matches no operator",
    ),
    "config key": (
        lambda t, f: ["plan", *NAMED, "--config", write(t / "c.json", {"taus": 1})],
        "did you mean 'tau'",
    ),
    "config json": (lambda t, f: ["plan", *NAMED, "--config", write(t / "c.json", "{")], "JSON"),
    "both": (
        lambda t, f: ["plan", *NAMED, "--preset", "w4a4", "--config", write(t / "c", {})],
        "exclude",
    ),
    "override layer": (
        lambda t, f: ["plan", *NAMED, "--overrides", write(t / "o.json", {"x": {"tau": 1}})],
        "layer_overrides",
    ),
    "method and preset": (
        lambda t, f: ["plan", *PAPER, "--preset", "w4a4"],
        "--method and --preset are one option; give it once",
    ),
    "set without method": (lambda t, f: ["eval", *TINY, "--set", "tau=1"], "--method"),
    "resume without out": (lambda t, f: ["eval", *TINY, "--resume"], "--out"),
    "no checkpoint": (lambda t, f: ["eval", *TINY, "--checkpoint", t / "none.pth"], "none.pth"),
    "wrong checkpoint": (lambda t, f: ["eval", *TINY, "--checkpoint", wrong_weights(t)], "missing"),
    "NaN checkpoint": (lambda t, f: ["eval", *TINY, "--checkpoint", nan_weights(t)], "NaN"),
    "not a checkpoint": (
        lambda t, f: ["quantize", *TINY, "--checkpoint", write(t / "a.pth", "x"), "--out", t / "o"],
        "a.pth",
    ),
    "truncated image": (
        lambda t, f: [truncated(f), "eval", *TINY, "--dataset", f, "--out", t / "o"][1:],
        "test-easy",
    ),
    "mask size": (
        lambda t, f: [other_size(f), "eval", *TINY, "--dataset", f, "--out", t / "o"][1:],
        "size",
    ),
    "missing mask": (
        lambda t, f: [no_mask(f), "eval", *TINY, "--dataset", f, "--out", t / "o"][1:],
        "mask",
    ),
    "predict nothing": (
        lambda t, f: ["predict", t / "none.jpg", *TINY, "--out", t / "o"],
        "none.jpg",
    ),
    "packed with checkpoint": (
        lambda t, f: ["eval", "--model", t, "--checkpoint", t / "x.pth"],
        "registered model",
    ),
    "not packed": (lambda t, f: ["eval", "--model", t], "no codtdq checkpoint"),
    "out is a file": (
        lambda t, f: ["quantize", *TINY, "--out", write(t / "file", "x")],
        "is a file",
    ),
    "unknown split": (lambda t, f: ["export-synth", "--split", "none", "--out", t / "o"], "none"),
    "occupied export": (lambda t, f: ["export-synth", "--out", f], "empty"),
    "bad source": (
        lambda t, f: ["train", *NAMED, "--out", t / "o", "--steps", 1, "--source", "files:x"],
        "unknown",
    ),
}


@pytest.mark.parametrize(("argv", "message"), FAILURES.values(), ids=FAILURES.keys())
def test_wrong_input_is_one_line_and_leaves_nothing(run, folder, tmp_path, argv, message):
    code, out, err = run(*argv(tmp_path, folder))
    assert code == 2
    assert message in err and "Traceback" not in err
    assert err.count("\n") == 1 and out == ""
    left = list((tmp_path / "o").rglob("*")) if (tmp_path / "o").is_dir() else []
    finished_masks = [p for p in left if p.suffix == ".png" and not p.name.startswith(".")]
    assert [p for p in left if p not in finished_masks and p.is_file()] == []
    assert not (tmp_path / "o").is_file()


def test_allow_missing_skips_and_says_so(run, folder):
    no_mask(folder)
    code, out, _ = run("eval", *TINY, "--dataset", folder, "--allow-missing")
    assert code == 0 and "note:" in out and " 5 " in out


def test_interrupt_keeps_finished_work_and_resume_goes_on(run, folder, tmp_path, monkeypatch):
    from codtdq.data.folder import ImageMaskFolder

    plain = ImageMaskFolder.__getitem__

    def interrupted(self, index):
        if index == 4:
            raise KeyboardInterrupt
        return plain(self, index)

    args = ["eval", *TINY, "--dataset", folder, "--batch", 1, "--out", tmp_path / "r.json"]
    monkeypatch.setattr(ImageMaskFolder, "__getitem__", interrupted)
    code, _, err = run(*args)
    assert code == 130 and "interrupted" in err and err.count("\n") == 1
    assert (tmp_path / "r.json.partial").exists() and not (tmp_path / "r.json").exists()
    monkeypatch.setattr(ImageMaskFolder, "__getitem__", plain)
    assert run(*args, "--resume")[0] == 0
    assert json.loads((tmp_path / "r.json").read_text())["count"] == 6
    assert not (tmp_path / "r.json.partial").exists()


@pytest.mark.parametrize(
    "name",
    [
        "demo",
        "list",
        "plan",
        "doctor",
        "quantize",
        "eval",
        "predict",
        "train",
        "import-encoder",
        "export-synth",
    ],
)
def test_help_has_examples(run, name):
    code, out, _ = run(name, "--help")
    assert code == 0 and f"codtdq {name}" in out and "examples:" in out
