"""Predictions of every method with 1, 2, 3, 4 and 7 threads.

What runs on the engine sums integers, or floats in one order: the same bits. A simulated operator
and the float network are torch's, which cuts its sums by threads: the last digits differ, and a
code next to a boundary may flip.
"""

import dataclasses

import pytest
import torch

import codtdq
from codtdq.methods import list_methods
from codtdq.methods.registry import find_method
from small_nets import images, small_net

THREADS = (1, 2, 3, 4, 7)
LITTLE = {"rank": 1, "fisher_images": 2, "init_rounds": 1, "rounds": 1}
X = images(3, seed=9)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def quantized(name, model):
    config, changes = find_method(name).config, {}
    if config is not None:
        fields = {field.name for field in dataclasses.fields(config)}
        changes = {key: value for key, value in LITTLE.items() if key in fields}
    return codtdq.quantize(
        model,
        codtdq.config(name, **changes),
        calibration=[images(2, seed=i) for i in range(2)],
        budget="least",
    )


def runs_native(model):
    record = codtdq.backend_of(model)
    return record is not None and bool(record.native) and not record.fallbacks


@pytest.mark.parametrize("name", list_methods())
def test_the_number_of_threads_does_not_matter(name, threads):
    threads(1)
    model = quantized(name, small_net())
    found = {}
    for count in THREADS:
        threads(count)
        with torch.no_grad():
            found[count] = model(X)
    for count in THREADS[1:]:
        if runs_native(model):
            assert torch.equal(found[1], found[count]), f"{name}: {count} threads differ from 1"
        apart = (found[1] - found[count]).abs().mean() / found[1].std()
        assert float(apart) < 0.02, f"{name}: {count} threads give another result ({apart:.1e})"


def test_the_methods_of_the_engine_are_among_them(threads):
    for name in ("w4a4", "dstg-only", "cod-tdq", "cod-tdq-guarded", "dstg-everywhere"):
        assert runs_native(quantized(name, small_net())), name
