"""Add a method: one function that gives every operator two schemes.

codtdq --import examples/add_method.py bench accuracy --models cfrn-small --methods fp32,shrunk
"""

from __future__ import annotations

from dataclasses import dataclass

import codtdq
from codtdq.data import open_dataset
from codtdq.evaluation import CalibrationImages
from codtdq.methods import Workbench
from codtdq.methods.collect import collect_inputs
from codtdq.planning.config import QuantConfig
from codtdq.schemes.inputs import StaticUniform
from codtdq.schemes.weights import UniformWeight


@dataclass(frozen=True, kw_only=True)
class ShrunkConfig(QuantConfig):
    """The common fields, and one of its own."""

    shrink: float = 0.9  # share of the calibrated range that is kept


@codtdq.register_method(
    "shrunk-example",
    config=ShrunkConfig,
    title="Shrunk ranges",
    source="an example",
    evidence="this project",
    ranges="static",
    granularity="per tensor",
)
def shrunk(bench: Workbench) -> None:
    """Keep a fixed share of every calibrated range."""
    seen = collect_inputs(bench)
    for site in bench.sites:
        inputs = weight = None  # what no width asks for stays float
        if site.act_bits is not None:
            rows = seen[site.name].rows * bench.config.shrink
            inputs = StaticUniform.spanning(rows.min(), rows.max(), site.act_bits)
        if site.weight_bits is not None:
            weight = UniformWeight.minmax(
                site.float_weight, site.weight_bits, group=site.weight_group
            )
        bench.install(site, inputs=inputs, weight=weight)


def main(images: int = 4) -> dict[float, float]:
    """S by shrink, at 8 bits."""
    model = codtdq.create_model("cfrn-small")
    calibration = CalibrationImages(model, open_dataset("camosynth/calib", limit=images))
    scenes = open_dataset("camosynth/val", limit=images)
    found = {}
    for shrink in (1.0, 0.5):
        config = ShrunkConfig(name="shrunk-example", weight_bits=8, act_bits=8, shrink=shrink)
        quantized = codtdq.quantize(model, config, calibration=calibration)
        found[shrink] = codtdq.evaluate(quantized, scenes).metrics["S"]
    return found


if __name__ == "__main__":
    print(main())
