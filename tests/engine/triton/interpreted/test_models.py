"""Both small models on the kernels, end to end, in Triton's interpreter."""

import gpu_cases
import pytest
import torch

import codtdq
from codtdq.data import open_dataset
from codtdq.engine import backend_of, use_backend
from codtdq.evaluation import evaluate
from codtdq.operators import quant_operators
from small_nets import simulate

pytestmark = gpu_cases.interpreted

TOLERANCE = 2e-3  # of a metric
IMAGES = 4


class InStep:
    """The executor of an operator, beside its simulation on the same input."""

    def __init__(self, operator):
        self.operator, self.run, self.same = operator, operator.executor, []

    def __call__(self, x):
        backend, self.operator.backend = self.operator.backend, None
        expected = self.operator(x)
        self.operator.backend = backend
        found = self.run(x)
        if self.operator.followers:  # a norm is folded, GELU has another polynomial
            self.same.append(torch.allclose(found, expected, rtol=1e-4, atol=1e-4))
        else:
            self.same.append(torch.equal(found, expected))
        return expected


@pytest.mark.parametrize(
    ("name", "preset"),
    [("cfrn-small", "cod-tdq-per-tensor-conv"), ("escnet-small", "cod-tdq-guarded")],
)
def test_every_operator_in_step_with_the_simulation(name, preset, shape_sized_blocks):
    """All operators inside the fused network, each on the input that the simulation has there."""
    model = simulate(codtdq.create_model(name), preset)
    data = open_dataset("camosynth", limit=1)
    expected = evaluate(model, data).metrics
    record = use_backend(model, "triton")
    assert not record.fallbacks and record.fused and record.sharing
    for operator in quant_operators(model).values():
        operator.executor = InStep(operator)
    found = evaluate(model, data).metrics
    pairs = {place: operator.executor for place, operator in quant_operators(model).items()}
    called = {place: pair for place, pair in pairs.items() if pair.same}
    assert len(called) > 0.9 * len(pairs)  # a few are never called
    assert all(all(pair.same) for pair in called.values()), [
        place for place, pair in called.items() if not all(pair.same)
    ]
    # folded norms move codes at ties, so that masks agree in the large only
    assert abs(found["S"] - expected["S"]) <= 0.02


# Free to drift apart, with 8-bit inputs, where few images are enough; `test_free_models.py` has
# 4-bit ones.
@pytest.mark.parametrize("name", ["cfrn-small", "escnet-small"])
def test_metrics_are_those_of_the_simulation(name, tmp_path, quick):
    config = codtdq.preset("cod-tdq-guarded", model=name, act_bits=8)
    codtdq.save(simulate(codtdq.create_model(name), config), tmp_path / "q")
    scores = {}
    for backend in ("reference", "triton"):
        model = codtdq.load(tmp_path / "q", backend=backend)
        data = open_dataset("camosynth", limit=IMAGES)
        scores[backend] = evaluate(model, data, batch_size=IMAGES).metrics
    record = backend_of(model)
    assert record.name == "triton" and not record.fallbacks and record.fused
    assert record.execution == "native (triton, interpreted)"
    assert scores["triton"] != scores["reference"]  # it did run
    for metric, value in scores["reference"].items():
        assert abs(scores["triton"][metric] - value) <= TOLERANCE, metric


def test_one_dimensional_convolutions(shape_sized_blocks):
    net = torch.nn.Sequential(torch.nn.Conv1d(20, 12, 3, stride=2, padding=1)).eval()
    quantized = simulate(net, codtdq.preset("cod-tdq", first_layer="quantize"))
    x = torch.randn(2, 20, 11)
    with torch.no_grad():
        expected = quantized(x)
        record = use_backend(quantized, "triton", example=x)
        assert not record.fallbacks
        torch.testing.assert_close(quantized(x), expected, rtol=1e-5, atol=1e-5)
