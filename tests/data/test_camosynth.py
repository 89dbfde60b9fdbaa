"""camosynth: determinism, fairness of the scenes and the data set wrapper."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from codtdq.data import SPLITS, TEST_SPLITS, CamoSynth, Dataset, Sample, generate
from codtdq.data.camosynth import MIN_SIZE, VERSION, move_cues, random_specks
from codtdq.data.splits import PROFILES
from codtdq.data.textures import random_texture_params
from codtdq.errors import DataError

GOLDEN = Path(__file__).with_name("camosynth_golden.json")


def digest(split: str, index: int, size: int) -> str:
    sample = generate(split, index, size)
    return hashlib.sha256(sample.image.tobytes() + sample.mask.tobytes()).hexdigest()


def thumbnail(pixels: np.ndarray, cells: int = 8) -> np.ndarray:
    block = pixels.shape[0] // cells
    shape = (cells, block, cells, block, *pixels.shape[2:])
    return pixels.astype(np.float64).reshape(shape).mean(axis=(1, 3))


def test_sample_has_declared_types_and_values():
    sample = generate("train", 3, 64)
    assert sample.name == "train-00003"
    assert sample.image.shape == (64, 64, 3) and sample.image.dtype == np.uint8
    assert sample.mask.shape == (64, 64) and sample.mask.dtype == np.uint8
    assert set(np.unique(sample.mask)) == {0, 255}


def test_matches_stored_thumbnails():
    """Golden values with a tolerance: other FFT or SIMD builds differ in the last bit only."""
    golden = json.loads(GOLDEN.read_text())
    assert golden["version"] == VERSION, "new content needs a new VERSION and new thumbnails"
    for entry in golden["samples"]:
        sample = generate(entry["split"], entry["index"], golden["size"])
        image, mask = thumbnail(sample.image), thumbnail(sample.mask)
        np.testing.assert_allclose(image, entry["image"], atol=1.5, err_msg=sample.name)
        np.testing.assert_allclose(mask, entry["mask"], atol=8.0, err_msg=sample.name)


def test_content_does_not_depend_on_call_order_or_global_seed():
    first = [digest("val", index, 48) for index in (0, 1, 2)]
    np.random.seed(5)
    state = np.random.get_state()[1].copy()
    assert [digest("val", index, 48) for index in (2, 0, 1)] == [first[2], first[0], first[1]]
    assert np.array_equal(state, np.random.get_state()[1]), "global random state was touched"


def test_content_is_the_same_in_another_process():
    code = (
        "import hashlib; from codtdq.data.camosynth import generate; s = generate('calib', 7, 48);"
        "print(hashlib.sha256(s.image.tobytes() + s.mask.tobytes()).hexdigest())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == digest("calib", 7, 48)


def test_every_split_index_and_size_differs():
    digests = [digest(split, 0, 48) for split in SPLITS]
    digests += [digest("train", 1, 48), digest("train", 0, 64)]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize("split", list(SPLITS))
def test_area_share_is_in_the_split_range(split: str):
    shares = [np.mean(generate(split, index, 64).mask > 0) for index in range(40)]
    profiles = [PROFILES[name] for name in SPLITS[split].profiles]
    largest = max(profile.area[1] * profile.objects[1] for profile in profiles)
    smallest = min(profile.area[0] for profile in profiles)
    assert min(shares) > 0.6 * smallest and max(shares) < 1.1 * largest
    low, high = (0.015, 0.08) if split == "test-small" else (0.08, 0.22)
    assert low < np.mean(shares) < high


def test_mask_border_lies_on_the_image_border():
    """Colour steps are larger along the mask's border than along the same border moved aside."""

    def step(sample: Sample, shift: int) -> float:
        pixels = sample.image.astype(np.float64)
        inside = np.roll(sample.mask > 0, shift, axis=1)
        changes = inside[:, 1:] != inside[:, :-1]
        return float(np.abs(np.diff(pixels, axis=1)).mean(axis=2)[changes].mean())

    samples = [generate("test-easy", index, 192) for index in range(40)]
    steps = {shift: np.mean([step(s, shift) for s in samples]) for shift in (-8, -2, 0, 2, 8)}
    assert all(steps[0] > 1.15 * value for shift, value in steps.items() if shift), steps


def test_texture_split_hides_the_colour_cue():
    def mean_gap(split: str) -> float:
        gaps = []
        for index in range(60):
            sample = generate(split, index, 96)
            inside = sample.mask > 0
            pixels = sample.image.astype(np.float64)
            gaps.append(np.abs(pixels[inside].mean(axis=0) - pixels[~inside].mean(axis=0)).mean())
        return float(np.median(gaps))

    assert mean_gap("test-texture") < 0.7 * mean_gap("test-easy")


def test_spike_split_has_heavy_tailed_specks_mostly_off_the_object():
    rng = np.random.Generator(np.random.Philox(3))
    alpha = np.zeros((192, 192), np.float32)
    alpha[:, :96] = 1.0
    rough = [random_specks(rng, alpha, PROFILES["spikes"]) for _ in range(20)]
    calm = [random_specks(rng, alpha, PROFILES["easy"]) for _ in range(20)]

    def energy(fields: list[np.ndarray]) -> float:
        return float(np.mean([np.abs(field).mean() for field in fields]))

    assert energy(rough) > 10 * energy(calm)
    assert energy([f[:, 96:] for f in rough]) > 2 * energy([f[:, :96] for f in rough])
    values = np.concatenate([field.ravel() for field in rough])
    kurtosis = np.mean(values**4) / np.mean(values**2) ** 2
    assert kurtosis > 20, "a Gaussian field has 3"


def test_cues_grow_with_the_budget():
    wide, narrow = PROFILES["easy"], PROFILES["texture"]
    rng = np.random.Generator(np.random.Philox(1))
    tints = {"easy": [], "texture": []}
    for _ in range(200):
        params = random_texture_params(rng)
        tints["easy"].append(np.linalg.norm(move_cues(rng, params, wide)[1]))
        tints["texture"].append(np.linalg.norm(move_cues(rng, params, narrow)[1]))
    assert np.mean(tints["easy"]) > 5 * np.mean(tints["texture"])


@pytest.mark.parametrize(
    ("split", "index", "size", "message"),
    [
        ("tset-easy", 0, 64, "unknown camosynth split 'tset-easy'; choose one of train"),
        ("calib", 128, 64, "valid indices: 0 to 127"),
        ("val", -1, 64, "no image -1"),
        ("train", 0, MIN_SIZE - 1, f"use {MIN_SIZE} or more"),
    ],
)
def test_bad_requests_raise_one_line(split: str, index: int, size: int, message: str):
    with pytest.raises(DataError, match=message) as caught:
        generate(split, index, size)
    assert "\n" not in str(caught.value)


def test_split_table_is_complete():
    assert [SPLITS[name].count for name in TEST_SPLITS] == [250] * 4
    assert SPLITS["calib"].count == 128 and SPLITS["val"].count >= 200
    assert SPLITS["train"].count is None
    assert all(split.description for split in SPLITS.values())


def test_dataset_hands_out_the_generated_samples():
    data = CamoSynth("test-small", size=48, limit=5)
    assert isinstance(data, Dataset)
    assert data.name == "camosynth/test-small" and data.version == VERSION
    assert len(data) == 5 and len(list(data)) == 5
    assert data.names() == [sample.name for sample in data]
    assert np.array_equal(data[-1].image, generate("test-small", 4, 48).image)
    assert data.notes == ["camosynth/test-small: 5 of 250 images used"]
    with pytest.raises(IndexError):
        data[5]


def test_dataset_length_is_the_smaller_of_limit_and_count():
    assert len(CamoSynth("calib", limit=1000)) == 128
    assert len(CamoSynth("calib")) == 128
    assert len(CamoSynth("train", limit=1000)) == 1000


def test_endless_split_needs_a_limit():
    with pytest.raises(DataError, match="no end; give a limit"):
        CamoSynth("train")
    with pytest.raises(DataError, match="limit is 0"):
        CamoSynth("val", limit=0)


@pytest.mark.slow
def test_speed_is_enough_for_training():
    import time

    generate("train", 0)
    start = time.process_time()
    for index in range(100):
        generate("train", index)
    assert 100 / (time.process_time() - start) > 50
