"""Calibration and predictions of every method with 1, 2, 3, 4 and 7 threads: the same bits.

What runs on the engine sums integers, or floats in one order. Everything else of a quantized model
is torch's, which cuts its sums by threads: it gets one (`numerics/threads.py`).
"""

import dataclasses
import threading

import pytest
import torch
from torch import Tensor, nn

import codtdq
from codtdq.evaluation.masks import to_mask
from codtdq.methods import list_methods
from codtdq.methods.registry import find_method
from codtdq.numerics.threads import one_thread, wanted_threads
from codtdq.operators import quant_operators
from codtdq.operators.forward import Forward
from small_nets import images, small_net

THREADS = (1, 2, 3, 4, 7)
LITTLE = {"rank": 1, "fisher_images": 2, "init_rounds": 1, "rounds": 1}
SEVERAL = (1, 3)  # of a calibration, which is slow
X = images(3, seed=9)
DOORS = ("cod-tdq-plus", "cod-tdq", "smoothquant-static", "ptq4vit", "nvfp4", "noisyquant")


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


class Wide(nn.Module):
    """Sums and maps that are large enough for torch to cut: 24x24 images."""

    def __init__(self, width: int = 160) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.norm = nn.GroupNorm(4, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x))
        t = x.flatten(2).transpose(1, 2)
        t = t + self.fc2(nn.functional.gelu(self.fc1(t)))
        t = torch.softmax(t @ t.transpose(1, 2) / 40, -1) @ t
        return self.head(t.transpose(1, 2).reshape(x.shape)).sigmoid()


def wide():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Wide().eval()


def pictures(count, seed=0):
    return torch.randn(count, 3, 24, 24, generator=torch.Generator().manual_seed(seed))


def quantized(name, model, calibration=None, **options):
    config, changes = find_method(name).config, {}
    if config is not None:
        fields = {field.name for field in dataclasses.fields(config)}
        changes = {key: value for key, value in LITTLE.items() if key in fields}
    return codtdq.quantize(
        model,
        codtdq.config(name, **changes),
        calibration=calibration or [images(2, seed=i) for i in range(2)],
        budget="least",
        **options,
    )


def runs_native(model):
    record = codtdq.backend_of(model)
    return record is not None and bool(record.native) and not record.fallbacks


def assert_same_results(model, x, threads, name):
    found = {}
    for count in THREADS:
        threads(count)
        with torch.no_grad():
            found[count] = model(x)
        assert torch.get_num_threads() == count
    for count in THREADS[1:]:
        assert torch.equal(found[1], found[count]), f"{name}: {count} threads differ from 1"


@pytest.mark.parametrize("name", list_methods())
def test_the_number_of_threads_does_not_matter(name, threads):
    threads(1)
    assert_same_results(quantized(name, small_net()), X, threads, name)


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("name", DOORS)
def test_nor_does_it_where_torch_cuts_its_sums(name, backend, threads):
    threads(1)
    model = quantized(name, wide(), [pictures(2)], backend=backend)
    assert_same_results(model, pictures(3, seed=1), threads, f"{name} on {backend}")


def test_the_float_network_shows_why(threads):
    """With all of torch's threads its results do depend on how many there are."""
    model, x, found = wide(), pictures(3, seed=1), []
    for count in THREADS:
        threads(count)
        with torch.no_grad():
            found.append(model(x))
    if all(torch.equal(found[0], other) for other in found[1:]):
        pytest.skip("this torch gives the same bits with every number of threads")


@pytest.mark.parametrize("name", DOORS)
def test_calibration_gives_the_same_model_with_any_number(name, threads):
    states = []
    for count in SEVERAL:
        threads(count)
        states.append(quantized(name, wide(), [pictures(2)], backend="reference").state_dict())
    assert states[0].keys() == states[1].keys()
    for key, value in states[0].items():
        assert torch.equal(value, states[1][key]), f"{name}: {key}"


@pytest.mark.parametrize("postprocess", ["sigmoid", "sigmoid-minmax", "binary"])
def test_masks_are_the_same(postprocess, threads):
    logits = torch.randn(1, 352, 352, generator=torch.Generator().manual_seed(0))
    found = []
    for count in THREADS:
        threads(count)
        found.append(to_mask(logits, (501, 333), postprocess))
    assert all((found[0] == other).all() for other in found[1:])


def test_the_engine_keeps_its_threads_inside(threads):
    threads(3)
    with one_thread():
        assert (torch.get_num_threads(), wanted_threads()) == (1, 3)
        with one_thread():
            assert (torch.get_num_threads(), wanted_threads()) == (1, 3)
        assert torch.get_num_threads() == 1
    assert (torch.get_num_threads(), wanted_threads()) == (3, 3)


def test_a_failing_forward_gives_the_threads_back(threads):
    model = quantized("ptq4vit", small_net())
    threads(4)
    with pytest.raises(RuntimeError):
        model(torch.zeros(1, 5, 8, 8))
    assert torch.get_num_threads() == 4


def test_threads_of_other_python_threads_stay(threads):
    """One is in there while others come and go: each gets back what it had."""
    threads(3)
    inside, go, seen = threading.Event(), threading.Event(), []

    def other(count):
        torch.set_num_threads(count)
        with one_thread():
            inside.set()
            go.wait(10)
        seen.append((count, torch.get_num_threads()))

    workers = [threading.Thread(target=other, args=(count,)) for count in (2, 4)]
    for worker in workers:
        worker.start()
    inside.wait(10)
    assert wanted_threads() == 3
    go.set()
    for worker in workers:
        worker.join()
    assert sorted(seen) == [(2, 2), (4, 4)] and torch.get_num_threads() == 3


def test_every_quantized_model_has_it():
    model = quantized("ptq4vit", small_net(), backend="reference")
    assert isinstance(vars(model)["forward"], Forward) and quant_operators(model)
    codtdq.use_backend(model, "auto")
    assert isinstance(vars(model)["forward"], Forward)


def test_the_methods_of_the_engine_are_among_them(threads):
    for name in ("w4a4", "dstg-only", "cod-tdq", "cod-tdq-guarded", "dstg-everywhere"):
        assert runs_native(quantized(name, small_net())), name
