"""At eight bits every method must be next to float: a check of all code paths but the width.

Slow: run with `-m slow`. Reconstruction gets few steps: at this width it has little to do.
"""

import dataclasses
from functools import cache

import pytest

import codtdq
from codtdq.data import open_dataset
from codtdq.evaluation import CalibrationImages, evaluate
from codtdq.methods import apply_method, list_methods
from codtdq.methods.registry import find_method
from codtdq.methods.rivals import reconstruction
from codtdq.planning import CodTdqConfig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

METHODS = [
    name for name in list_methods() if not isinstance(find_method(name).config, CodTdqConfig)
]
IMAGES = 48  # of calibration: a clipping that is searched on 12 fits those 12
TEST_IMAGES = 40  # ten of each test split: fewer, and single masks decide
TOLERANCE = 0.01  # of the S-measure
LITTLE = {
    "steps": 5,
    "fast_steps": 5,
    "rank": 1,
    "fisher_images": 2,
}  # where a method has the field


@pytest.fixture(scope="module", autouse=True)
def few_steps():
    with pytest.MonkeyPatch.context() as patch:
        few = dataclasses.replace(reconstruction.BUDGETS["fast"], images=4, steps=5)
        patch.setitem(reconstruction.BUDGETS, "fast", few)
        yield


@cache
def float_model(name):
    return codtdq.create_model(name).eval()


@cache
def calibration(name):
    data = open_dataset("camosynth/calib", limit=IMAGES)
    return list(CalibrationImages(float_model(name), data, count=IMAGES))


def score(model):
    return evaluate(model, open_dataset("camosynth", limit=TEST_IMAGES)).metrics["S"]


@cache
def float_score(name):
    return score(float_model(name))


@pytest.mark.parametrize("model", ["cfrn-small", "escnet-small"])
@pytest.mark.parametrize("method", METHODS)
def test_eight_bits_are_next_to_float(method, model):
    config = find_method(method).config
    fields = {field.name for field in dataclasses.fields(config)}
    changes = {k: v for k, v in LITTLE.items() if k in fields}
    changes |= {"weight_bits": 8, "act_bits": 8}
    quantized = apply_method(float_model(model), method, calibration(model), changes=changes)
    assert score(quantized) == pytest.approx(float_score(model), abs=TOLERANCE)
