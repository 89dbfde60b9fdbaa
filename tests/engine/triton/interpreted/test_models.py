"""Both small models on the kernels, end to end, in Triton's interpreter."""

import gpu_cases
import pytest
import torch

import codtdq
from codtdq.data import open_dataset
from codtdq.engine import backend_of, use_backend
from codtdq.engine.triton import reference
from codtdq.evaluation import evaluate
from codtdq.operators import quant_operators
from codtdq.schemes.weight_groups import GroupedWeight, ScaleFormat
from small_nets import simulate

pytestmark = gpu_cases.interpreted

TOLERANCE = 2e-3  # of a metric
IMAGES = 4


class InStep:
    """The executor of an operator, beside its simulation on the same input.

    The network goes on with the simulated values, so a code that flips at a tie in one operator
    does not reach the next. Products are given the codes of the reference: they have no ties.
    """

    def __init__(self, operator):
        self.operator, self.run = operator, operator.executor
        self.errors, self.fused_errors, self.other_codes = [], [], 0.0
        if operator.site.activation.mode == "per_token_group":
            self.encode, self.run._encode = self.run._encode, self.codes_of_the_reference

    def codes_of_the_reference(self, x):
        found = self.encode(x)
        codes, step = reference.quantize_groups(x, self.operator.site.activation)
        self.other_codes = float((found.codes != codes).float().mean())
        return found._replace(codes=codes.contiguous(), step=step.contiguous())

    def __call__(self, x):
        backend, self.operator.backend = self.operator.backend, None
        expected = self.operator(x)
        self.operator.backend = backend

        def error():
            return float((self.run(x) - expected).norm() / expected.norm().clamp(min=1e-12))

        if getattr(self.run, "_fused", False):  # both ways: as it is, and apart with given codes
            self.fused_errors.append(error())
            self.run._fused = False
            self.errors.append(error())
            self.run._fused = True
        else:
            self.errors.append(error())
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
    called = {place: pair for place, pair in pairs.items() if pair.errors}
    assert len(called) > 0.9 * len(pairs)  # a few are never called
    for place, pair in called.items():
        assert max(pair.errors) <= 1e-5, place
        assert pair.other_codes <= 1e-3, place
        # inside one kernel the codes are not to be had: a few at a tie may differ
        assert max(pair.fused_errors, default=0.0) <= 1e-2, place
    fused = [max(pair.fused_errors) for pair in called.values() if pair.fused_errors]
    assert fused and sorted(fused)[int(0.8 * len(fused))] <= 1e-5
    for metric, value in expected.items():
        assert abs(found[metric] - value) <= TOLERANCE, metric


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
    assert record.execution == "native int4 (triton, interpreted)"
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


def test_scales_of_weight_groups_are_multiplied_by_their_unit(shape_sized_blocks):
    """A weight whose scales are E4M3 numbers times one float, behind ranges of token groups."""
    net = torch.nn.Sequential(torch.nn.Linear(64, 24)).eval()
    quantized = simulate(net, codtdq.preset("dstg-only"))
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(-8, 8, (24, 64), generator=generator).float()
    scales = torch.rand(24, 2, generator=generator) + 0.5
    unit = ScaleFormat(torch.tensor([0.037]))
    weight = GroupedWeight.from_codes(codes, scales * 0.037, unit, (24, 64), 4, 32)
    quantized[0].exchange(weight=weight)
    x = torch.randn(5, 64, generator=generator)
    with torch.no_grad():
        expected = quantized(x)
        record = use_backend(quantized, "triton", example=x)
        assert not record.fallbacks
        torch.testing.assert_close(quantized(x), expected, rtol=1e-5, atol=1e-5)
