"""Everything that asks which pixels of a mask are object gets the same answer: those above 128."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from codtdq.data.sample import Sample
from codtdq.lab.diagnosis.boundary import boundary_band
from codtdq.lab.pages.images import outline_uri
from codtdq.lab.training.validate import validate
from codtdq.metrics import foreground, measure
from codtdq.models.registry import ModelInfo

LEVELS = [(0, False), (127, False), (128, False), (129, True), (255, True)]


def square(level):
    """An object of one grey level, 4 x 4 pixels in the middle of 8 x 8."""
    mask = np.zeros((8, 8), np.uint8)
    mask[2:6, 2:6] = level
    return mask


@pytest.mark.parametrize(("level", "is_object"), LEVELS)
def test_foreground_begins_above_128(level, is_object):
    found = foreground(square(level))
    assert found.dtype == bool and found.sum() == 16 * is_object


@pytest.mark.parametrize(("level", "is_object"), LEVELS)
def test_the_metrics_and_the_boundary_band_agree(level, is_object):
    mask = square(level)
    assert boundary_band(mask, 1, 1).any() == is_object
    empty = np.zeros_like(mask)
    assert (measure(empty, mask).as_dict()["MAE"] > 0) == is_object


@pytest.mark.parametrize(("level", "is_object"), LEVELS)
def test_the_outline_of_a_page_agrees(level, is_object):
    uri = outline_uri(square(level))
    picture = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))
    assert np.asarray(picture).any() == is_object


class Everywhere(nn.Module):
    """Finds an object in every pixel."""

    def forward(self, x):
        return torch.full((len(x), 1, *x.shape[-2:]), 9.0)


@pytest.mark.parametrize(("level", "is_object"), LEVELS)
def test_the_validation_of_a_training_agrees(level, is_object):
    info = ModelInfo(name="n", input_size=8, description="")
    sample = Sample("a", np.zeros((8, 8, 3), np.uint8), square(level))
    assert (validate(Everywhere(), info, [sample])["IoU"] > 0) == is_object
