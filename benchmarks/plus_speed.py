"""CPU time of cod-tdq-plus beside cod-tdq on the native engine, full-size networks included.

Calibrating a full-size network takes long, and the time of a product does not depend on its codes:
weights go to the nearest codes here, inputs to the method's own groups. Transforms are those that
calibration gives the small network of the same design, dealt out in its order (`--like`), or a
share of the dense operators gets a whole one (mean, scale, order, rotation), the dearest there is.

    python benchmarks/plus_speed.py --model cfrn --like cfrn-small --threads 1
    python benchmarks/plus_speed.py --model cfrn --transformed 0.3 --threads 1
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time

import torch
from torch import Tensor, nn

import codtdq
from codtdq.data import open_dataset
from codtdq.engine import use_backend
from codtdq.engine.cpu import keep_memory
from codtdq.evaluation import CalibrationImages
from codtdq.methods import apply_method
from codtdq.methods.plus.choosing import KINDS
from codtdq.methods.plus.config import PlusConfig
from codtdq.models import build_model
from codtdq.numerics.affine import nearest
from codtdq.operators.quantized import operator_for, quant_operators
from codtdq.planning.plan import Site
from codtdq.schemes.base import InputScheme
from codtdq.schemes.inputs import StaticUniform
from codtdq.schemes.pixel_groups import PixelGroups
from codtdq.schemes.token_groups import TokenGroups
from codtdq.schemes.transforms import Transform, Transformed
from codtdq.schemes.weight_groups import (
    FEW_CHANNELS,
    GroupedWeight,
    ScaleFormat,
    group_index,
    weight_rows,
)

UNIT = 0.01  # of scales: any, it does not change the time
TRIALS = PlusConfig().trials


def nearest_weight(weight: Tensor, group: int = 32) -> GroupedWeight:
    """Codes to the nearest, scales from the largest weight of each group."""
    rows, index = weight_rows(weight.detach()).float(), group_index(weight.shape, group)
    largest = torch.zeros(len(rows), int(index.max()) + 1)
    largest.scatter_reduce_(1, index.expand_as(rows), rows.abs(), "amax")
    form = ScaleFormat.covering(largest / 7)
    scales = form.round(largest / 7)
    codes = nearest(rows / scales[:, index]).clamp(-8, 7)
    return GroupedWeight.from_codes(codes, scales, form, weight.shape, 4, group)


def dealt(like: str, count: int) -> list[list[str]]:
    """Ingredients of `count` operators' transforms, as calibration chooses them for a network."""
    small = codtdq.create_model(like).eval()
    images = CalibrationImages(small, open_dataset("camosynth/calib", limit=8), count=8)
    quick = {"ridges": [], "compensate": False, "sweeps": 0, "search": False, "images": 8}
    with torch.enable_grad():
        done = apply_method(small, "cod-tdq-plus", images, changes=quick)
    chosen = done.quant_record.notes["transforms"]
    names = list(quant_operators(done))
    return [chosen.get(names[i * len(names) // count], []) for i in range(count)]


def scheme(site: Site, parts: list[str]) -> InputScheme:
    """The method's groups for a site."""
    if site.role == "first":
        return StaticUniform.spanning(torch.tensor([-4.0]), torch.tensor([4.0]), 8)
    if site.kind == "depthwise" or (site.kind != "linear" and site.inputs < FEW_CHANNELS):
        return PixelGroups(4, trials=TRIALS, unit=UNIT)
    groups = TokenGroups(4, trials=TRIALS, unit=UNIT)
    if not parts:
        return groups
    n = site.inputs
    change = Transform(
        torch.randn(n) / 10 if "shift" in parts else None,
        torch.rand(n) + 0.5 if "scale" in parts else None,
        torch.randperm(n) if "order" in parts else None,
        "hadamard" in parts,
    )
    return Transformed(groups, transform=change)


def uncalibrated(model: nn.Module, sites: list[Site], parts: list[list[str]]) -> nn.Module:
    """The network as the method cuts it."""
    model = copy.deepcopy(model)
    for site, chosen in zip(sites, parts, strict=True):
        module = model.get_submodule(site.name)
        assert isinstance(module.weight, Tensor)
        inputs, weight = scheme(site, chosen), nearest_weight(module.weight)
        operator_for(module).adopt(module, site, inputs=inputs, weight=weight)
    return model.eval()


def cpu_time(model: nn.Module, image: Tensor) -> float:
    """Seconds of processor time for one image, all threads together."""
    start = time.process_time()
    model(image)
    return time.process_time() - start


def main() -> None:
    """Times of both, in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="cfrn")
    parser.add_argument("--size", type=int, default=384)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--like", help="small network whose transforms are dealt out")
    parser.add_argument("--transformed", type=float, default=0.0, help="share of operators")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    keep_memory()
    model = build_model(given.model).eval()
    base = codtdq.quantize(model, "cod-tdq-per-tensor-conv", backend="reference")
    sites = [operator.site for operator in quant_operators(base).values()]
    count, share = len(sites), given.transformed
    whole = [int((i + 1) * share) > int(i * share) for i in range(count)]
    parts = dealt(given.like, count) if given.like else [list(KINDS) if w else [] for w in whole]
    plus = uncalibrated(model, sites, parts)
    records = [use_backend(one, "cpu") for one in (base, plus)]
    image = torch.randn(1, 3, given.size, given.size)
    times = [(cpu_time(base, image), cpu_time(plus, image)) for _ in range(given.rounds + 1)][1:]
    ratios = sorted(a / b for a, b in times)
    result = {
        "model": given.model,
        "like": given.like,
        "transformed": sum(map(bool, parts)) / count,
        "size": given.size,
        "threads": given.threads,
        "instruction_set": records[1].instruction_set,
        "fallbacks": records[1].fallbacks,
        "cod_tdq_s": min(a for a, _ in times),
        "cod_tdq_plus_s": min(b for _, b in times),
        "median_ratio": ratios[len(ratios) // 2],
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
