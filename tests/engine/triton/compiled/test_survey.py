"""The work of a network from shapes alone, which the roofline sheets are made of."""

import gpu_cases
import pytest
import torch

from codtdq.lab.bench.speed.coverage import count_work
from codtdq.lab.bench.speed.gpu_layers import (
    float_survey,
    launch_bytes,
    launch_int8_ops,
    quantized_survey,
)
from codtdq.models.registry import build_model

pytestmark = gpu_cases.compiled


@pytest.mark.parametrize("name", ["cfrn-small", "escnet-small"])
def test_arithmetic_is_that_of_a_forward_pass(name):
    survey = float_survey(name, 2)
    images = torch.zeros(1, 3, survey.size, survey.size)
    expected = 2 * 2 * count_work(build_model(name), images).total
    found = sum(work.flops for work in survey.rest)
    assert found == pytest.approx(expected, rel=1e-3)
    assert any(work.name == "attention" for work in survey.rest)  # one kernel, as on a GPU
    assert not any("view" in work.name for work in survey.rest)


def test_bytes_and_operations_of_a_launch():
    survey = quantized_survey("cfrn-small", 1)
    launches = [one for launches in survey.launches.values() for one in launches]
    product = next(one for one in launches if one.kernel.__name__ == "product")
    given = product.arguments
    depth = given["taps"] * given["slabs"] * 32
    assert launch_int8_ops(product) == 2 * given["rows"] * given["outputs"] * depth
    assert launch_bytes(product) >= given["y"].numel() * 4 + given["packed"].numel()
