import json

import numpy as np
import pytest
import tiny_model
import torch
from PIL import Image

import codtdq
from codtdq.data import CamoSynth, Sample
from codtdq.errors import ConfigError, DataError
from codtdq.evaluation import CalibrationImages, evaluate, layer_losses, predict, predict_batch
from codtdq.evaluation.masks import to_mask
from codtdq.metrics import MetricSuite
from small_nets import simulate


def model():
    return codtdq.create_model(tiny_model.NAME, pretrained=False)


@pytest.fixture(scope="module")
def images():
    return CamoSynth("test-easy", size=48, limit=10)


def test_scores_are_those_of_predicting_one_image_after_the_other(images):
    net = model()
    suite = MetricSuite()
    for sample in images:
        suite.update(predict(net, sample.image), sample.mask, name=sample.name)
    result = evaluate(net, images, batch_size=1)
    assert result.metrics == suite.compute()
    assert [row["name"] for row in result.per_image] == images.names()
    batched = evaluate(net, images, batch_size=4)
    assert batched.metrics == pytest.approx(suite.compute(), abs=1e-3)


def test_result_carries_its_provenance(images):
    quantized = simulate(model(), "cod-tdq")
    data = evaluate(quantized, images).to_dict()
    assert json.loads(json.dumps(data)) == data
    assert data["count"] == 10 and len(data["per_image"]) == 10
    assert data["provenance"]["config"]["name"] == "cod-tdq"
    assert data["provenance"]["execution"] == "simulated"
    assert len(data["provenance"]["model_sha256"]) == 64
    assert data["provenance"]["environment"]["torch"] == torch.__version__
    other = evaluate(simulate(model(), "w4a4"), images).to_dict()
    assert (
        other["provenance"]["model_sha256"] != evaluate(model(), images).provenance["model_sha256"]
    )


class Interrupted:
    """A data set that is interrupted at one image, once."""

    def __init__(self, inner, at, error):
        self.inner, self.at, self.error = inner, at, error
        self.name, self.notes = inner.name, inner.notes
        self.loaded = []

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        self.loaded.append(index)
        if index == self.at:
            self.at = None
            raise self.error
        return self.inner[index]

    def names(self):
        return self.inner.names()


def test_an_interrupted_run_goes_on_where_it_was(images, tmp_path):
    net, state = model(), tmp_path / "run.partial"
    broken = Interrupted(images, 6, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        evaluate(net, broken, batch_size=1, state_file=state)
    done = len(json.loads(state.read_text())["suite"]["per_image"])
    assert 0 < done <= 6
    broken.loaded.clear()
    result = evaluate(net, broken, batch_size=1, state_file=state, resume=True)
    assert min(broken.loaded) == done  # finished images are not loaded again
    assert result.metrics == evaluate(net, images, batch_size=1).metrics
    assert not state.exists()


def test_resuming_another_run_is_refused(images, tmp_path):
    state = tmp_path / "run.partial"
    with pytest.raises(KeyboardInterrupt):
        evaluate(
            model(), Interrupted(images, 8, KeyboardInterrupt()), batch_size=1, state_file=state
        )
    with pytest.raises(DataError, match=r"another run .*model"):
        evaluate(
            simulate(model(), "dstg-only"), images, batch_size=1, state_file=state, resume=True
        )
    state.write_text("{")
    with pytest.raises(DataError, match="cannot be resumed"):
        evaluate(model(), images, batch_size=1, state_file=state, resume=True)


def test_shared_dynamic_ranges_are_evaluated_one_image_at_a_time(images):
    naive = simulate(model(), "w4a4")
    assert evaluate(naive, images).settings["batch_size"] == 1
    with pytest.raises(ConfigError, match="batch size 1"):
        evaluate(naive, images, batch_size=4)
    assert evaluate(simulate(model(), "cod-tdq"), images).settings["batch_size"] > 1
    fixed = simulate(model(), "per-tensor", calibration=CalibrationImages(model(), images))
    assert evaluate(fixed, images).settings["batch_size"] > 1


def test_bad_samples_name_the_image(images):
    class NoMask(Interrupted):
        def __getitem__(self, index):
            sample = self.inner[index]
            return Sample(sample.name, sample.image) if index == 3 else sample

    with pytest.raises(DataError, match=r"test-easy.*has no mask"):
        evaluate(model(), NoMask(images, None, None))
    net = model()
    with torch.no_grad():
        net.head.bias.fill_(float("nan"))
    with pytest.raises(DataError, match="NaN"):
        evaluate(net, images)


def test_predict_takes_files_and_arrays_and_keeps_their_size(images, tmp_path):
    from PIL import Image

    net, sample = model(), images[0]
    Image.fromarray(sample.image).save(tmp_path / "a.png")
    mask = predict(net, tmp_path / "a.png")
    assert mask.dtype == np.uint8 and mask.shape == sample.image.shape[:2]
    assert np.array_equal(mask, predict(net, sample.image))
    wide = sample.image[:, :20]
    assert [m.shape for m in predict_batch(net, [sample.image, wide])] == [(48, 48), (48, 20)]


def test_predict_gives_one_mask_whatever_the_image_comes_as(images, tmp_path):
    from PIL import Image

    net, pixels = model(), images[0].image
    Image.fromarray(pixels).save(tmp_path / "a.png")
    tensor = torch.from_numpy(pixels)
    alpha = np.full((*pixels.shape[:2], 1), 7, np.uint8)
    files = [str(tmp_path / "a.png"), tmp_path / "a.png", Image.fromarray(pixels)]
    arrays = [pixels, pixels / 255, np.concatenate([pixels, alpha], axis=2)]
    kinds = [*files, *arrays, tensor, tensor.permute(2, 0, 1), tensor / 255]
    expected = predict(net, pixels)
    assert len(np.unique(expected)) > 1
    for mask in [*(predict(net, kind) for kind in kinds), *predict_batch(net, kinds)]:
        assert np.array_equal(mask, expected)
    gray = pixels[..., 0]
    same = np.repeat(gray[..., None], 3, axis=2)
    assert np.array_equal(predict(net, gray), predict(net, same))


def test_predict_refuses_what_is_no_image():
    with pytest.raises(DataError, match="NaN"):
        predict(model(), np.full((8, 8, 3), np.nan))


def test_predict_needs_an_input_size_for_an_undeclared_model(images):
    plain = tiny_model.Tiny()
    with pytest.raises(ConfigError, match="input_size"):
        predict(plain, images[0].image)
    assert predict(plain, images[0].image, input_size=32).shape == (48, 48)


def test_postprocesses_do_what_the_releases_do():
    logits = torch.tensor([[[-2.0, 0.0], [1.0, 3.0]]])
    soft = to_mask(logits, (2, 2), "sigmoid")
    assert soft.tolist() == np.floor(logits[0].sigmoid().numpy() * 255).astype(int).tolist()
    assert to_mask(logits, (2, 2), "binary").tolist() == [[0, 255], [255, 255]]
    stretched = to_mask(logits, (2, 2), "sigmoid-minmax")
    assert stretched.min() == 0 and stretched.max() == 255
    assert to_mask(logits, (5, 7), "sigmoid").shape == (5, 7)
    assert to_mask(logits, (3, 3), "sigmoid")[0, 0] == soft[0, 0]  # corners are aligned


def test_layer_losses_are_sorted_and_leave_no_listener(images):
    quantized = simulate(model(), "cod-tdq")
    losses = layer_losses(quantized, CalibrationImages(quantized, images, count=2))
    assert {loss.name for loss in losses} == {"stem", "head"}
    assert losses[0].sqnr_db <= losses[1].sqnr_db and losses[0].calls == 2
    assert quantized.stem.listener is None
    exact = layer_losses(simulate(model(), "w8a8"), CalibrationImages(quantized, images))
    assert min(loss.sqnr_db for loss in exact) > 30


def test_calibration_images_are_bounded_and_batched(images):
    batches = CalibrationImages(model(), images, count=7, batch_size=3)
    assert len(batches) == 3
    assert [len(batch) for batch in batches] == [3, 3, 1]
    assert next(iter(batches)).shape == (3, 3, 32, 32)


@pytest.fixture
def photos(tmp_path):
    """Three photographs with their masks."""
    codtdq.data.export_synth("test-easy", tmp_path / "set", 3, 40)
    return tmp_path / "set"


def test_predict_takes_whatever_holds_images(photos):
    net, files = model(), sorted((photos / "Imgs").iterdir())
    exact = [predict(net, file) for file in files]
    pixels = [np.array(Image.open(file)) for file in files]
    kinds = {
        "folder": photos / "Imgs",
        "folder as text": str(photos / "Imgs"),
        "glob": str(photos / "Imgs" / "*.png"),
        "list of files": files,
        "tuple of names": tuple(map(str, files)),
        "PIL images": [Image.open(file) for file in files],
        "arrays": pixels,
        "floats": [one / 255 for one in pixels],
        "with alpha": [np.dstack([one, one[..., 0]]) for one in pixels],
        "tensors": [torch.from_numpy(one).permute(2, 0, 1) for one in pixels],
        "a data set": codtdq.data.ImageFolder(photos),
        "a generator": (file for file in files),
    }
    for name, images in kinds.items():
        masks = codtdq.predict(net, images)
        assert len(masks) == 3 and all(map(np.array_equal, masks, exact)), name
    assert codtdq.predict(net, photos).names == [file.stem for file in files]
    gray = codtdq.predict(net, pixels[0][..., 0])
    assert gray.shape == (40, 40) and gray.dtype == np.uint8
    with pytest.raises(DataError, match="empty"):
        codtdq.predict(net, [])
    for wrong in (3, None):
        with pytest.raises(DataError, match="accepted: a path"):
            codtdq.predict(net, wrong)


def test_a_threshold_gives_clean_masks(photos):
    net, file = model(), sorted((photos / "Imgs").iterdir())[0]
    soft, hard = predict(net, file), predict(net, file, threshold=0.5)
    assert np.array_equal(hard, np.where(soft >= 127.5, 255, 0)) and hard.dtype == np.uint8
    with pytest.raises(ConfigError, match="at most 1"):
        predict(net, file, threshold=127)


def test_evaluate_takes_names_folders_and_pairs(photos):
    net = model()
    exact = evaluate(net, codtdq.data.ImageMaskFolder(photos), batch_size=1).metrics
    pairs = list(zip(sorted((photos / "Imgs").iterdir()), sorted((photos / "GT").iterdir())))
    arrays = [(np.array(Image.open(i)), np.array(Image.open(m)) > 128) for i, m in pairs]
    for data in (photos, str(photos), pairs, arrays):
        assert evaluate(net, data, batch_size=1).metrics == exact
    assert evaluate(net, "camosynth/test-easy", limit=2).metrics["count"] == 2
    assert evaluate(net, photos, limit=1).notes == ["set: 1 of 3 images used"]
    with pytest.raises(DataError, match="unknown data set"):
        evaluate(net, "nowhere")
    for wrong, message in ((3, "accepted: a data set"), ([1, 2], "pairs")):
        with pytest.raises((ConfigError, DataError), match=message):
            evaluate(net, wrong)


def test_results_and_masks_show_themselves(images):
    net = model()
    result = evaluate(net, images)
    assert len(repr(result)) < 200 and "10 images: S 0." in repr(result)
    page = result._repr_html_()
    assert f"{result.metrics['S']:.4f}" in page and page.count("<table>") == 1
    mask = predict(net, images[0].image)
    assert mask._repr_html_().startswith('<img alt="mask, 48 x 48"')
    assert (mask > 9)._repr_html_() is None and mask[0]._repr_html_() is None
    several = predict(net, images)
    assert repr(several).startswith("10 masks (") and len(repr(several)) < 200
    assert several._repr_html_().count("<img") == 10
