"""The picture of masks side by side."""

import numpy as np

from codtdq.lab.mask_grid import CELL, GAP, PAPER, SIDE, MaskRow, mask_grid


def row(name="a", level=40, scores=None, size=(8, 8)):
    mask = np.full(size, level, np.uint8)
    return MaskRow(name, np.zeros((*size, 3), np.uint8), mask, {"W4": mask}, scores or {})


def pixels(*rows):
    return np.asarray(mask_grid(rows)).astype(int)


def test_every_mask_is_in_the_picture():
    found = pixels(row(level=40), row(level=90))
    for level in (40, 90):  # ground truth and one mask each, without their rims
        assert (found == level).all(2).sum() == 2 * (CELL - 2) ** 2


def test_scores_stand_under_the_masks_that_have_one():
    without, scored = pixels(row()), pixels(row(scores={"W4": 0.25}))
    assert scored.shape[0] > without.shape[0]
    assert not np.array_equal(pixels(row(scores={"W4": 0.5})), scored)


def test_a_name_is_written_once_for_rows_that_follow_each_other():
    def inked(found, number):
        step = CELL + GAP
        side = found[30 + number * step :][:step, :SIDE]
        return (side != PAPER).any()

    same, other = pixels(row("a"), row("a")), pixels(row("a"), row("b"))
    assert inked(same, 0) and not inked(same, 1)
    assert inked(other, 1)


def test_pictures_keep_their_shape():
    found = pixels(row(level=200, size=(10, 20)))
    rows, columns = np.nonzero((found == 200).all(2)[:, : SIDE + 2 * (CELL + GAP)])
    assert np.ptp(columns) + 1 == CELL - 2 and np.ptp(rows) + 1 == CELL // 2 - 2


def test_long_names_and_titles_stay_on_the_picture():
    long = "COD10K-CAM-3-Flying-53-Bird-3024 by a long name"
    mask = np.zeros((8, 8), np.uint8)
    found = np.asarray(
        mask_grid([MaskRow(long, np.zeros((8, 8, 3), np.uint8), mask, {long: mask})])
    )
    assert (found[:, -2:] == PAPER).all()
    assert (found[40:, SIDE : SIDE + GAP] == PAPER).all()
