"""`codtdq predict` as somebody uses it the first time: nothing is lost, nothing is silent."""

import io
import json
import os
import types

import numpy as np
import pytest
import tiny_model
from PIL import Image

import codtdq
from codtdq.cli import main
from codtdq.engine import cpu as native
from codtdq.evaluation.pictures import cutout_of, overlay_of

TINY = ["--model", tiny_model.NAME, "--untrained"]


@pytest.fixture
def photos(tmp_path):
    """Three photographs, as PNG."""
    codtdq.data.export_synth("test-easy", tmp_path / "set", 3, 40)
    folder = tmp_path / "photos"
    (tmp_path / "set" / "Imgs").rename(folder)
    for place, file in enumerate(sorted(folder.iterdir())):
        file.rename(folder / f"{'abc'[place]}.png")
    return folder


def contents(folder):
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


@pytest.mark.parametrize("more", [[], ["--overwrite"], ["--resume"]], ids=" ".join)
def test_photographs_are_never_replaced_by_their_masks(run, photos, tmp_path, more):
    before = contents(photos)
    (tmp_path / "link").symlink_to(photos)
    for out in (photos, tmp_path / "link", photos / "a.png"):
        images = photos / "a.png" if out.suffix else photos
        code, shown, err = run("predict", images, *TINY, "--out", out, *more)
        assert code == 2 and "is one of the images" in err and err.count("\n") == 1 and not shown
    os.link(photos / "b.png", tmp_path / "b.png")  # the same file under another name
    code, _, err = run("predict", photos, *TINY, "--out", tmp_path, *more)
    assert code == 2 and "is one of the images" in err
    assert contents(photos) == before


def test_files_that_are_there_stay_unless_they_may_go(run, photos, tmp_path):
    out = tmp_path / "masks"
    argv = ["predict", photos, *TINY, "--out", out]
    assert run(*argv)[0] == 0
    made = contents(out)
    (out / "b.png").write_bytes(b"precious")
    code, _, err = run(*argv)
    assert code == 2 and "3 of the files to write are in" in err and "--overwrite" in err
    assert (out / "b.png").read_bytes() == b"precious"
    code, _, err = run(*argv, "--resume")
    assert code == 2 and "b.png was not made by this model" in err
    assert run(*argv, "--overwrite")[0] == 0 and contents(out) == made
    assert "exclude each other" in run(*argv, "--overwrite", "--resume")[2]


def test_one_bad_file_does_not_stop_the_others_and_resume_does_the_rest(run, photos, tmp_path):
    whole = (photos / "b.png").read_bytes()
    (photos / "b.png").write_bytes(whole[:300])
    (photos / "d.jpg").write_text("no image")
    out = tmp_path / "masks"
    argv = ["predict", photos, *TINY, "--overlay", "--out", out]
    code, shown, err = run(*argv)
    assert code == 1 and "4 files written" in shown
    assert "2 of 4 images failed" in err and "  b: " in err and "  d: " in err
    assert sorted(contents(out)) == ["a-overlay.png", "a.png", "c-overlay.png", "c.png"]
    (photos / "b.png").write_bytes(whole)
    (photos / "d.jpg").unlink()
    kept = {name: (out / name).stat().st_mtime_ns for name in contents(out)}
    code, shown, err = run(*argv, "--resume")
    assert (code, err) == (0, "")
    assert "2 files written" in shown and "2 images were done before" in shown
    assert {name: (out / name).stat().st_mtime_ns for name in kept} == kept
    code, _, err = run(*argv, "--resume", "--threshold", 0.5)
    assert code == 2 and "not made by this model with these settings" in err
    found = json.loads(run(*argv, "--resume", "--json")[1])
    assert found["kept"] == ["a", "b", "c"] and found["written"] == [] and found["failed"] == {}


def test_masks_are_checked_before_the_model_is_opened(run, photos, tmp_path, monkeypatch):
    monkeypatch.setattr("codtdq.cli.predict.opened_model", lambda args: pytest.fail("opened"))
    assert run("predict", photos, *TINY, "--out", photos)[0] == 2


def test_thresholds_cutouts_and_overlays(run, photos, tmp_path):
    out = tmp_path / "m"
    argv = ["predict", photos, *TINY, "--threshold", 0.5, "--cutout", "--overlay", "--out", out]
    assert run(*argv)[0] == 0
    model = codtdq.create_model(tiny_model.NAME, pretrained=False)
    soft = codtdq.predict(model, photos / "a.png")
    image = np.asarray(Image.open(photos / "a.png"))
    mask = np.asarray(Image.open(out / "a.png"))
    assert set(np.unique(mask)) <= {0, 255} and np.array_equal(mask == 255, soft >= 127.5)
    cutout = np.asarray(Image.open(out / "a-cutout.png"))
    assert np.array_equal(cutout, cutout_of(image, mask)) and cutout.shape[2] == 4
    assert np.array_equal(cutout[..., :3], image) and np.array_equal(cutout[..., 3], mask)
    overlay = np.asarray(Image.open(out / "a-overlay.png"))
    assert np.array_equal(overlay, overlay_of(image, mask))
    for wrong in (0, 1.5, -1):
        code, _, err = run(*argv, "--overwrite", "--threshold", wrong)
        assert code == 2 and "accepted: more than 0, at most 1" in err


@pytest.mark.parametrize("colour", [(255, 64, 32), (0, 0, 0), (255, 255, 255), (128, 128, 128)])
def test_the_contour_shows_on_animals_of_any_colour(colour):
    image = np.full((60, 60, 3), colour, np.uint8)
    mask = np.zeros((60, 60), np.uint8)
    mask[20:40, 20:40] = 255
    shown = overlay_of(image, mask).astype(int)
    line = np.abs(shown[20, 18:22] - image[20, 18:22]).sum(-1)  # across the left edge
    assert line.max() > 200
    assert np.array_equal(shown[:15], image[:15])  # the ground stays as it is
    filled = overlay_of(image, np.full((60, 60), 255, np.uint8))
    assert len(np.unique(filled.reshape(-1, 3), axis=0)) == 1  # an image has no contour of its own


def test_photographs_are_turned_upright(run, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = np.random.default_rng(0).integers(0, 256, (30, 50, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "phone.jpg", exif=exif)
    assert run("predict", tmp_path / "phone.jpg", *TINY, "--out", tmp_path / "mask.png")[0] == 0
    assert Image.open(tmp_path / "mask.png").size == (30, 50)


def test_folders_below_and_other_formats(run, photos, tmp_path):
    (photos / "day").mkdir()
    picture = Image.open(photos / "a.png")
    for suffix in ("gif", "webp", "tif", "bmp"):
        picture.save(photos / "day" / f"x-{suffix}.{suffix}")
    code, shown, _ = run("predict", photos, *TINY, "--out", tmp_path / "flat")
    assert code == 0 and "note: photos: 4 images in folders below it left out; --recursive" in shown
    code, shown, err = run("predict", photos, *TINY, "--recursive", "--out", tmp_path / "deep")
    assert (code, err) == (0, "") and "7 files" in shown
    assert (tmp_path / "deep" / "day" / "x-gif.png").is_file()
    assert "3 files" in run("predict", photos, *TINY, "--limit", 3, "--out", tmp_path / "some")[1]
    assert sorted(contents(tmp_path / "some")) == ["a.png", "b.png", "c.png"]  # the first


def test_a_limit_counts_all_arguments(run, photos, tmp_path):
    files = sorted(photos.glob("*.png"))  # as a shell passes photos/*.png
    code, shown, _ = run("predict", *files, *TINY, "--limit", 2, "--out", tmp_path / "two")
    assert code == 0 and "2 files" in shown
    assert sorted(contents(tmp_path / "two")) == [path.name for path in files[:2]]
    assert f"note: {len(files) - 2} images of later arguments left out (--limit)" in shown
    wrong = ["predict", *files, "nowhere.png", *TINY, "--limit", 2, "--out", tmp_path / "no"]
    assert run(*wrong)[0] == 2 and not (tmp_path / "no").exists()
    assert "limit is 0" in run("predict", *files, *TINY, "--limit", 0, "--out", tmp_path / "no")[2]


def test_one_image_may_name_its_file(run, photos, tmp_path):
    mask = tmp_path / "new" / "mask.png"
    assert run("predict", photos / "a.png", *TINY, "--overlay", "--out", mask)[0] == 0
    assert sorted(contents(mask.parent)) == ["mask-overlay.png", "mask.png"]
    code, _, err = run("predict", photos, *TINY, "--out", tmp_path / "m.png")
    assert code == 2 and "one file, for 3 images" in err
    (tmp_path / "notes").write_text("x")
    assert "is a file" in run("predict", photos, *TINY, "--out", tmp_path / "notes")[2]


def stream(data):
    return types.SimpleNamespace(buffer=io.BytesIO(data))


def test_standard_input_and_output(photos, tmp_path, monkeypatch, capfdbinary):
    mask = tmp_path / "mask.png"
    main(["predict", str(photos / "a.png"), *TINY, "--out", str(mask)])
    monkeypatch.setattr("sys.stdin", stream((photos / "a.png").read_bytes()))
    capfdbinary.readouterr()
    assert main(["predict", "-", *TINY, "--out", "-"]) == 0
    out, err = capfdbinary.readouterr()
    assert np.array_equal(Image.open(io.BytesIO(out)), Image.open(mask))
    assert err == b"executed: float32\n"
    monkeypatch.setattr("sys.stdin", stream((photos / "a.png").read_bytes()))
    assert main(["predict", "-", *TINY, "--cutout", "--out", "-"]) == 0
    assert Image.open(io.BytesIO(capfdbinary.readouterr()[0])).mode == "RGBA"
    monkeypatch.setattr("sys.stdin", stream(b"no image"))
    assert main(["predict", "-", *TINY, "--out", str(tmp_path / "m")]) == 2
    assert b"standard input holds no image" in capfdbinary.readouterr()[1]
    assert main(["predict", str(photos), *TINY, "--out", "-"]) == 2
    assert b"give one image (3 found)" in capfdbinary.readouterr()[1]


def test_predict_and_eval_say_how_they_executed(run, photos, tmp_path):
    quantized = [*TINY, "--method", "cod-tdq"]
    predict = ["predict", photos / "a.png", "--out", tmp_path / "m.png", "--overwrite"]
    data = ["eval", "--limit", 1, "--dataset", "camosynth/test-easy"]
    for verb in (predict, data):
        assert "executed: float32\n" in run(*verb, *TINY)[1]
        out = run(*verb, *quantized, "--backend", "reference")[1]
        assert "executed: simulated in PyTorch (asked for)\n" in out
        with native.disabled():
            assert "executed: simulated in PyTorch (turned off)\n" in run(*verb, *quantized)[1]
        if native.unavailable_reason() is None:
            out = run(*verb, *quantized)[1]
            assert f"executed: native ({native.instruction_set()}), 2 operators\n" in out
    assert json.loads(run(*predict, *quantized, "--json")[1])["execution"]


def test_threads_are_those_asked_for(run, photos, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("torch.set_num_threads", asked.append)
    run("predict", photos, *TINY, "--threads", 1, "--out", tmp_path / "m")
    run("eval", *TINY, "--threads", 1, "--limit", 1)
    assert asked == [1, 1]
    for verb in (["predict", photos, "--out", tmp_path / "m"], ["eval"]):
        assert "1 or more" in run(*verb, *TINY, "--threads", 0)[2]


def test_a_wrong_name_in_the_environment_is_an_error():
    import subprocess
    import sys

    for value in ("foo", "avx9000"):
        done = subprocess.run(
            [sys.executable, "-m", "codtdq", "eval", "--limit", "1", "--method", "cod-tdq"],
            env=os.environ | {"CODTDQ_NATIVE": value},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2 and done.stdout == ""
        assert f"CODTDQ_NATIVE={value}: no such instruction set" in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.skipif(native.unavailable_reason() is not None, reason="no native engine")
def test_the_packed_model_of_the_package_is_the_default_and_runs_natively(
    run, photos, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vit-cod-w4a4").mkdir()  # somebody's own folder is not taken for the package's
    code, out, err = run("predict", photos / "a.png", "--out", tmp_path / "m.png")
    assert code == 0, err
    assert f"executed: native ({native.instruction_set()})" in out
    mask = Image.open(tmp_path / "m.png")
    assert mask.mode == "L" and mask.size == Image.open(photos / "a.png").size
    low, high = mask.getextrema()
    assert low < 64 and high > 0  # a ground, and something on it
    (tmp_path / "vit-cod-w4a4").rmdir()
    named = ["--model", "vit-cod-w4a4", "--out", tmp_path / "n.png"]
    assert run("predict", photos / "a.png", *named)[0] == 0
    assert (tmp_path / "n.png").read_bytes() == (tmp_path / "m.png").read_bytes()


def test_a_setting_or_weights_mean_the_float_model(run, photos, tmp_path):
    for more in (["--method", "nonsense"], ["--checkpoint", tmp_path / "none.pth"]):
        code, _, err = run("predict", photos, *more, "--out", tmp_path / "m")
        assert code == 2 and "--checkpoint goes with" not in err
    assert "none.pth: no such checkpoint file" in err


def test_size_feeds_the_model_at_another_side(run, photos, tmp_path):
    argv = ["predict", photos, *TINY, "--seed", 0, "--out", tmp_path / "m"]
    code, _, err = run(*argv, "--size", 33)
    assert code == 2 and "multiples of" in err and not (tmp_path / "m").exists()
    assert run(*argv, "--size", 64)[0] == 0
    code, _, err = run(*argv, "--size", 96, "--resume")  # made at another size
    assert code == 2 and "not made by this model with these settings" in err
    assert run(*argv, "--size", 64, "--resume")[0] == 0


def test_quantize_and_eval_take_a_size(run, photos, tmp_path):
    argv = ["quantize", *TINY, "--method", "per-tensor", "--calibration", photos]
    assert run(*argv, "--size", 64, "--out", tmp_path / "q")[0] == 0
    code, _, err = run(
        *("eval", "--model", tmp_path / "q", "--size", 64, "--dataset", "samples"),
        *("--out", tmp_path / "r.json"),
    )
    assert code == 0, err
    assert json.loads((tmp_path / "r.json").read_text())["settings"]["input_size"] == 64
