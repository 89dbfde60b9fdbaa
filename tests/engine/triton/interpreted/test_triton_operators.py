"""The kernels under torch's names: registered for CUDA, with the shapes that the names promise."""

import gpu_cases
import pytest
import torch
from gpu_cases import awkward

from codtdq.engine.cpu.products import Window
from codtdq.engine.triton import encoders, operators, products, reference
from codtdq.engine.triton.weights import GpuWeights
from codtdq.numerics.affine import step_of
from codtdq.numerics.spec import ActivationSpec

pytestmark = gpu_cases.interpreted
GROUPS = (4, 32, False, False, None, 1.0, 0.2)


@pytest.mark.parametrize(
    "name", ["encode_groups", "encode_fixed", "largest_magnitude", "product", "depthwise"]
)
def test_registered_for_cuda(name):
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"codtdq::{name}", "CUDA")


def _same_shapes(found, promised):
    for one, other in zip(found, promised, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype


def test_encoders(shape_sized_blocks):
    x = awkward(12, 45).unflatten(0, (2, 2, 3)).permute(0, 3, 1, 2)
    found = operators.encode_groups(x, 32, *GROUPS)
    _same_shapes(found, torch.ops.codtdq.encode_groups(x.to("meta"), 32, *GROUPS))
    codes, step = reference.quantize_groups(x.flatten(2), ActivationSpec())
    gpu_cases.assert_same_codes(
        reference.tokens_of(x.flatten(2)), found[0], found[1], codes, step, 32
    )
    assert torch.equal(found[2], found[0].unflatten(1, (-1, 32)).sum(-1, dtype=torch.int32))
    radius = operators.largest_magnitude(x, True)
    assert torch.equal(radius, x.abs().amax((0, 2, 3)))
    assert operators.largest_magnitude(x / 0, False).isnan().all()
    fixed = operators.encode_fixed(x, 32, 4, radius, step_of(radius, 4))
    promised = torch.ops.codtdq.encode_fixed(
        x.to("meta"), 32, 4, radius.to("meta"), radius.to("meta")
    )
    _same_shapes(fixed, promised)


def test_products(shape_sized_blocks):
    window = Window((1, 4, 5), (3, 3), (2, 1), (1, 1))
    x = awkward(20, 40)
    codes = encoders.encode_groups(x, ActivationSpec())
    weight = torch.randint(-8, 8, (7, 9, 40), dtype=torch.int8)
    packed = GpuWeights.pack(weight, torch.ones(7, 1), 32)
    none = torch.empty(0, dtype=torch.int32)
    given = (codes.codes, codes.step, none, 4)
    found = operators.product(
        *given, packed.packed, packed.scales, list(packed.shape), 32, 0, *window, None, "relu"
    )
    assert torch.equal(found, products.product(codes, packed, window, None, "relu"))
    taps = torch.randn(9, 40)
    found = operators.depthwise(*given, 32, taps, *window, None, "gelu")
    assert torch.equal(found, products.depthwise(codes, taps, window, None, "gelu"))
