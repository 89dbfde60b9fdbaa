"""Networks as program files, exported once for all tests of the runtime."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import codtdq

sys.path.append(str(Path(__file__).parents[1] / "engine" / "cpu"))


@pytest.fixture(scope="session")
def image():
    """A picture with structure: a disc on stripes, and noise."""
    rows, columns = np.mgrid[:211, :300]
    base = 90 + 60 * np.sin(columns / 7) + 70 * ((rows - 90) ** 2 + (columns - 150) ** 2 < 2500)
    noise = np.random.default_rng(0).normal(0, 12, (211, 300, 3))
    return np.clip(base[..., None] + noise, 0, 255).astype(np.uint8)


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """(model, path) of a registered model under the paper's method; each is made once."""
    made = {}

    def export(name, method="cod-tdq"):
        if (name, method) not in made:
            with torch.random.fork_rng():
                torch.manual_seed(0)
                model = codtdq.create_model(name)
            quantized = codtdq.quantize(model, codtdq.config(method, model=model), backend="cpu")
            path = tmp_path_factory.mktemp("programs") / f"{name}.codtdq"
            codtdq.export(quantized, path)
            made[name, method] = quantized, path
        return made[name, method]

    return export
