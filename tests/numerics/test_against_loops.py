"""The tensor code agrees bit for bit with scalar loops, 1,000 random groups per mode."""

import numpy as np
import pytest
import torch
from slow_reference import quantize_group

from codtdq.numerics import ActivationSpec, Active, quantize

READINGS = {
    "default": {},
    "literal": {"literal": True},
    "guarded": {"projection": "guarded"},
    "dstg-only": {"tau": None, "zero_ratio": None},
    "c1-only": {"zero_ratio": None, "tau": 0.5},
    "c2-only": {"tau": None, "zero_ratio": 0.4},
    "percentile": {"percentile": 0.9},
    "8-bit": {"bits": 8},
    "3-bit": {"bits": 3},
    "strict-tau": {"tau": 0.2},
}


def groups_of_every_kind(count, size, seed):
    """Gaussian, GELU-like, sparse, offset, constant, one-outlier and tiny groups."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, size, generator=g)
    kind = torch.arange(count) % 8
    x[kind == 1] = torch.nn.functional.gelu(3 * x[kind == 1])
    x[kind == 2] = x[kind == 2].relu()
    x[kind == 3] = 5 + 0.1 * x[kind == 3]
    x[kind == 4] = x[kind == 4][:, :1].expand(-1, size)
    x[kind == 5, 0] *= 100
    x[kind == 6] *= 1e-8
    x[kind == 7] = (x[kind == 7] * 4).round() / 4
    return x


@pytest.mark.parametrize("fields", READINGS.values(), ids=READINGS.keys())
@pytest.mark.parametrize("channels", [32, 27])
def test_token_groups_equal_the_loops(fields, channels):
    x = groups_of_every_kind(1000, channels, seed=channels)
    spec = ActivationSpec(**fields)
    result = quantize(x, spec)
    padded = 32 - channels
    for i, row in enumerate(x.numpy()):
        radius, step, codes, active = quantize_group(
            [*row, *[0.0] * padded],
            bits=spec.bits,
            tau=spec.tau,
            zr=spec.zero_ratio,
            percentile=spec.percentile,
            literal=spec.literal,
            padded=padded,
            guarded=spec.projection == "guarded",
        )
        assert result.radius[i, 0].item() == radius, (i, active)
        assert result.step[i, 0].item() == step
        assert result.q[i].tolist() == codes[:channels]
        assert Active(int(result.active[i, 0])).name == active
        expected = np.array(codes[:channels], dtype=np.float32) * step
        assert np.array_equal(result.x_hat[i].numpy(), expected)


@pytest.mark.parametrize("mode", ["per_tensor", "per_channel"])
@pytest.mark.parametrize("literal", [False, True])
def test_shared_ranges_equal_the_loops(mode, literal):
    """Per channel every column is a group, per tensor everything is: 1,000 of each."""
    count = 1000 if mode == "per_channel" else 1
    for trial in range(1 if mode == "per_channel" else 1000):
        x = groups_of_every_kind(8, count, seed=trial)
        result = quantize(x, ActivationSpec(mode=mode, literal=literal))
        columns = x.t() if mode == "per_channel" else x.reshape(1, -1)
        codes = result.q.t() if mode == "per_channel" else result.q.reshape(1, -1)
        for i, values in enumerate(columns.numpy()):
            radius, step, expected, _ = quantize_group(list(values), literal=literal)
            assert result.radius[i].item() == radius
            assert result.step[i].item() == step
            assert codes[i].tolist() == expected
