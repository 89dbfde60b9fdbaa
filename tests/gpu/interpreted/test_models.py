"""Both small models on the kernels, end to end, in Triton's interpreter."""

import gpu_cases
import pytest
import torch

import codtdq
from codtdq.backends import backend_of, triton, use_backend
from codtdq.convert import quant_operators
from codtdq.data import open_dataset
from codtdq.evaluation import evaluate
from codtdq.evaluation.predict import predict_batch

pytestmark = gpu_cases.interpreted

SIZE, IMAGES = 64, 2  # the interpreter needs many minutes for 160 pixels


@pytest.mark.parametrize("name", ["cfrn-small", "escnet-small"])
def test_every_operator_on_the_input_that_it_has(name, shape_sized_blocks):
    """Each operator alone: a code that flips in one of them does not reach the next."""
    model = codtdq.quantize(codtdq.create_model(name), "cod-tdq")
    seen = {}
    for place, operator in quant_operators(model).items():
        operator.register_forward_hook(
            lambda module, args, y, place=place: seen.update(
                {place: (module, args[0].clone(), y.clone())}  # what follows may work in place
            )
        )
    use_backend(model, "reference")
    with torch.inference_mode():
        predict_batch(model, [open_dataset("camosynth", limit=1)[0].image], input_size=SIZE)
        errors = {}
        for place, (operator, x, y) in seen.items():
            found = triton.executor_for(operator)(x.float())
            errors[place] = float((found - y).norm() / y.norm().clamp(min=1e-12))
    assert len(errors) > 0.9 * len(quant_operators(model))
    assert max(errors.values()) <= 1e-2, max(errors, key=errors.get)  # a code or two at a tie
    assert sorted(errors.values())[int(0.9 * len(errors))] <= 1e-5  # nearly everywhere none


# A code at a tie that flips can move a whole mask. CFRN does so rarely. ESCNet does so on most
# images, on any backend: on these two the native engine is 4e-2 from the simulation with 4-bit
# inputs and 1e-2 with 8-bit ones. Its operators are held to 1e-5 above, its masks only to that.
@pytest.mark.parametrize(
    ("name", "bits", "tolerance"), [("cfrn-small", 4, 2e-3), ("escnet-small", 8, 2e-2)]
)
def test_metrics_are_those_of_the_simulation(name, bits, tolerance, tmp_path, shape_sized_blocks):
    config = codtdq.preset("cod-tdq", model=name, act_bits=bits)
    codtdq.save(codtdq.quantize(codtdq.create_model(name), config), tmp_path / "q")
    data = open_dataset("camosynth", limit=IMAGES)
    scores = {}
    for backend in ("reference", "triton"):
        model = codtdq.load(tmp_path / "q", backend=backend)
        scores[backend] = evaluate(model, data, input_size=SIZE, batch_size=1).metrics
    record = backend_of(model)
    assert record.name == "triton" and not record.fallbacks and record.fused
    assert record.execution == "native int4 (triton, interpreted)"
    for metric, value in scores["reference"].items():
        assert abs(scores["triton"][metric] - value) <= tolerance, metric


def test_one_dimensional_convolutions(shape_sized_blocks):
    net = torch.nn.Sequential(torch.nn.Conv1d(20, 12, 3, stride=2, padding=1)).eval()
    quantized = codtdq.quantize(net, codtdq.preset("cod-tdq", first_layer="quantize"))
    x = torch.randn(2, 20, 11)
    with torch.no_grad():
        expected = quantized(x)
        record = use_backend(quantized, "triton", example=x)
        assert not record.fallbacks
        torch.testing.assert_close(quantized(x), expected, rtol=1e-5, atol=1e-5)
