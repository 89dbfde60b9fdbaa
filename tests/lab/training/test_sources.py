from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from codtdq.data.camosynth import generate
from codtdq.errors import ConfigError, DataError
from codtdq.lab.training.compose import compose_camouflage
from codtdq.lab.training.resize import shrink, squash
from codtdq.lab.training.sources import (
    CamosynthSource,
    ComposeSource,
    PairsSource,
    _crop_both,
    camosynth_validation,
    split_holdout,
)


def draws(source: object, count: int = 12) -> list[tuple[np.ndarray, np.ndarray]]:
    return [source.draw(np.random.default_rng([9, i]), float(i)) for i in range(count)]


def test_every_source_gives_valid_pairs_again_and_again(
    pairs_root: Path, photo_folder: Path
) -> None:
    def build() -> list[object]:
        return [
            CamosynthSource(32, seed=0, reuse=4.0),
            ComposeSource(photo_folder, 32),
            PairsSource(pairs_root, 32, holdout=3),
        ]

    for first, second in zip(build(), build()):
        for (image, mask), (image2, mask2) in zip(draws(first), draws(second)):
            assert image.shape == (32, 32, 3)
            assert mask.shape == (32, 32)
            assert image.dtype == mask.dtype == np.uint8
            np.testing.assert_array_equal(image, image2)
            np.testing.assert_array_equal(mask, mask2)


def test_pairs_keep_image_and_mask_aligned(pairs_root: Path) -> None:
    """The object is the bright part, whatever crop, flip, turn or colours were drawn."""
    for image, mask in draws(PairsSource(pairs_root, 32, holdout=0), 30):
        light = image.astype(float).mean(2)
        assert (mask > 127).any()
        assert light[mask > 250].mean() > light[mask < 5].mean() + 15


def test_camosynth_reuses_images_and_moves_on() -> None:
    source = CamosynthSource(32, seed=0, reuse=2.0)
    fetched: list[int] = []
    source._fetch = lambda index: fetched.append(index) or generate_pair()  # type: ignore
    for position in range(400):
        source.draw(np.random.default_rng(position), float(position))
    assert max(fetched[:40]) < 64 + 20  # the start pool and what reuse has added
    assert max(fetched) > 200
    assert len(set(fetched)) < 264


def generate_pair() -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((32, 32, 3), np.uint8), np.zeros((32, 32), np.uint8)


def test_other_seeds_see_other_synthetic_images() -> None:
    one, two = (CamosynthSource(32, seed=seed, reuse=4.0)._fetch(0)[0] for seed in (0, 1))
    assert not np.array_equal(one, two)


def test_camosynth_validation_is_the_val_split() -> None:
    sample = camosynth_validation(1, 192)[0]
    expected = generate("val", 0)
    assert sample.name == expected.name
    np.testing.assert_array_equal(sample.image, expected.image)


def test_holdout_depends_on_names_only() -> None:
    names = [f"image-{i}" for i in range(20)]
    train, held = split_holdout(names, 5)
    assert len(held) == 5
    assert sorted(train + held) == list(range(20))
    backwards = split_holdout(names[::-1], 5)[1]
    assert {names[::-1][i] for i in backwards} == {names[i] for i in held}
    # a larger holdout only adds images
    assert set(held) < set(split_holdout(names, 8)[1])
    with pytest.raises(ConfigError, match="20 of 20"):
        split_holdout(names, 20)


def test_held_out_images_are_never_drawn(pairs_root: Path) -> None:
    source = PairsSource(pairs_root, 32, holdout=9)
    draws(source, 40)
    assert set(source._pairs) == set(source.train)
    assert len(source.validation()) == 9
    assert {sample.name for sample in source.validation()} == {
        source.folder.names()[i] for i in source.held_out
    }


def test_compositions_differ_from_the_photo_inside_the_mask_only() -> None:
    """On a constant photo only the object is tinted, so the mask is where colours change."""
    photo = np.full((64, 80, 3), 120, dtype=np.uint8)
    for seed in range(6):
        image, mask = compose_camouflage(np.random.default_rng(seed), photo, 48)
        assert set(np.unique(mask)) <= {0, 255}
        assert 0.005 < (mask > 0).mean() < 0.6
        changed = np.abs(image.astype(int) - 120).max(2)
        assert changed[mask > 0].mean() > 3 * max(changed[mask == 0].mean(), 0.1)


def test_crop_that_loses_the_object_is_replaced_by_the_whole_picture() -> None:
    image = np.zeros((40, 40, 3), np.uint8)
    mask = np.zeros((40, 40), np.uint8)
    mask[:8, :8] = 255
    corner = (0.25, 0.0, 30.0, 0.0, 0.25, 30.0)  # the lower right quarter of a quarter
    cropped = _crop_both(image, mask, corner, 40)[1]
    np.testing.assert_array_equal(cropped, mask)


def test_damaged_image_is_named(photo_folder: Path) -> None:
    (photo_folder / "0.png").write_bytes(b"not an image")
    (photo_folder / "1.png").unlink()
    (photo_folder / "2.png").unlink()
    with pytest.raises(DataError, match=r"0\.png"):
        ComposeSource(photo_folder, 32).draw(np.random.default_rng(0), 0.0)


def test_shrink_keeps_aspect_and_never_enlarges() -> None:
    assert shrink(np.zeros((100, 200, 3), np.uint8), 50).shape == (50, 100, 3)
    assert shrink(np.zeros((10, 20, 3), np.uint8), 50).shape == (10, 20, 3)
    assert squash(np.zeros((10, 20), np.uint8), 16).shape == (16, 16)
