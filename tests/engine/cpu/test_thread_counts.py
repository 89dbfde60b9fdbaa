"""Results depend neither on the number of threads nor on batch mates, where the engine runs."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

import codtdq
from codtdq.engine import cpu

THREADS = (1, 2, 3, 4, 7)
needs_engine = pytest.mark.skipif(
    cpu.unavailable_reason() is not None, reason=str(cpu.unavailable_reason())
)


class Interior(nn.Module):
    """Operators of every kind with nothing between them that torch sums in parallel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 40, 3, stride=2, padding=1)
        self.depthwise = nn.Conv2d(40, 40, 3, padding=1, groups=40)
        self.fc1, self.fc2 = nn.Linear(40, 96), nn.Linear(96, 40)
        self.head = nn.Conv2d(40, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.depthwise(self.stem(x))
        t = x.flatten(2).transpose(1, 2)
        t = self.fc2(torch.relu(self.fc1(t)))
        return self.head(t.transpose(1, 2).reshape(x.shape))


def interior():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Interior().eval()


def images(count, seed=0):
    return torch.randn(count, 3, 24, 24, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def made():
    """Models by method, quantized once."""
    kept = {}

    def get(method):
        if method not in kept:
            config = codtdq.config(method)
            kept[method] = codtdq.quantize(
                interior(), config, calibration=[images(2, seed=1)], backend="auto"
            )
        return kept[method]

    return get


# What the engine executes sums integers, whose order does not matter; methods that are simulated
# are asked the same in tests/methods/test_methods_and_threads.py.
NATIVE = ("w4a4", "cod-tdq", "cod-tdq-guarded", "dstg-everywhere", "cod-tdq-plus")


@needs_engine
@pytest.mark.parametrize("method", NATIVE)
def test_every_number_of_threads_gives_the_same_bits(method, made, threads):
    model, x = made(method), images(2)
    found = []
    for count in THREADS:
        threads(count)
        with torch.no_grad():
            found.append(model(x))
    for count, other in zip(THREADS[1:], found[1:]):
        assert torch.equal(found[0], other), f"{count} threads differ from 1"


@needs_engine
@pytest.mark.parametrize("method", ["cod-tdq", "cod-tdq-guarded", "dstg-everywhere"])
def test_an_image_alone_gives_what_it_gives_in_a_batch(method, made):
    """Ranges per token, and an interior that is the engine's: bit for bit."""
    model, x = made(method), images(3)
    assert not codtdq.backend_of(model).fallbacks
    with torch.no_grad():
        batch = model(x)
        alone = torch.cat([model(image[None]) for image in x])
    assert torch.equal(batch, alone)


@needs_engine
def test_a_range_over_the_batch_is_said_to_be_one(made):
    """The convolutions of `w4a4` have a range per tensor: batch mates change each other."""
    model = made("w4a4")
    shared = [op for op in model.modules() if getattr(op, "input_scheme", None) is not None]
    assert any(op.input_scheme.shares_batch for op in shared)


@needs_engine
def test_eight_threads_on_one_model_give_what_one_does(made):
    """Calls from many threads at once: no state is shared between them."""
    model, batches = made("cod-tdq-plus"), [images(1, seed=seed) for seed in range(16)]
    with torch.no_grad():
        wanted = [model(batch) for batch in batches]

    def call(index):
        with torch.no_grad():
            return index, model(batches[index % 16])

    with ThreadPoolExecutor(8) as pool:
        for index, found in pool.map(call, range(96)):
            assert torch.equal(found, wanted[index % 16])
