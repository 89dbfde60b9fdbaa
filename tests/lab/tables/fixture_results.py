"""Synthetic results of a benchmark: random numbers, nothing measured."""

import json

import numpy as np

METRICS = ("S", "wF", "E_mean", "E_max", "E_adp", "F_mean", "F_max", "F_adp", "MAE")
PER_IMAGE = ("S", "wF", "E_mean", "F_mean", "MAE")

# title, mean quality, evidence, ranges, granularity, calibration images, gradients, A bits
METHODS = {
    "fp32": ("FP32", 0.85, "this project", "-", "-", 0, False, "32"),
    "w8a8": ("Naive W8A8", 0.84, "this project", "dynamic", "per tensor", 0, False, "8"),
    "w4a8": ("Naive W4A8", 0.82, "this project", "dynamic", "per tensor", 0, False, "8"),
    "w4a4": ("Naive W4A4", 0.45, "this project", "dynamic", "per tensor", 0, False, "4"),
    "ptq4vit": ("PTQ4ViT", 0.5, "released code", "static", "per tensor", 32, False, "4"),
    "orq-vit": (
        "ORQ-ViT",
        0.55,
        "re-implemented from the abstract",
        "static",
        "per channel",
        32,
        True,
        "4 + 16/C",
    ),
    "fima-q": ("FIMA-Q", 0.66, "released code", "static", "per tensor", 128, True, "4"),
    "repq-vit": ("RepQ-ViT", 0.7, "released code", "static", "per channel", 32, False, "4"),
    "smoothquant": ("SmoothQuant", 0.52, "released code", "static", "per tensor", 128, False, "4"),
    "arcquant": ("ARCQuant", 0.68, "paper text", "dynamic", "per block", 128, False, "4 + 0.5"),
    "dstg-only": ("DSTG only", 0.6, "paper text", "dynamic", "token group", 0, False, "4 + 1"),
    "dcrp-only": ("DCRP only", 0.5, "paper text", "dynamic", "per tensor", 0, False, "4"),
    "cod-tdq": ("COD-TDQ", 0.78, "paper text", "dynamic", "token group", 0, False, "4 + 32/g"),
    "cod-tdq-guarded": (
        "COD-TDQ guarded",
        0.8,
        "this project",
        "dynamic",
        "token group",
        0,
        False,
        "4 + 32/g",
    ),
    "my-own": ("My own", 0.58, "user", "static", "per tensor", 8, False, "4"),
}

ENVIRONMENT = {
    "codtdq": "0.1.0",
    "python": "3.12.3",
    "torch": "2.9.0",
    "numpy": "2.3.0",
    "cpu": "Imaginary CPU",
    "cores": 2,
    "threads": 1,
}


def row(
    model="cfrn-small",
    method="w4a4",
    dataset="camosynth/test-easy",
    seed=0,
    *,
    images=24,
    stress=None,
    limit=None,
    budget="fast",
    shift=0.0,
    error=None,
    **changes,
):
    """One random cell; images share their difficulty over methods, so that pairing matters."""
    title, quality, evidence, ranges, granularity, calibration, gradients, bits = METHODS[method]
    shared = np.random.default_rng(sum(map(ord, dataset))).normal(0, 0.08, images)
    rng = np.random.default_rng([sum(map(ord, model + method + dataset)), seed, bool(stress)])
    s = np.clip(quality + shift + shared + rng.normal(0, 0.03, images), 0, 1)
    table = {"S": s, "wF": s - 0.05, "E_mean": s + 0.04, "F_mean": s - 0.02, "MAE": (1 - s) / 5}
    per_image = {k: [round(float(x), 5) for x in v] for k, v in table.items()}
    means = {k: float(np.mean(v)) for k, v in per_image.items()}
    info = {
        "name": method,
        "title": title,
        "source": "",
        "evidence": evidence,
        "ranges": ranges,
        "granularity": granularity,
        "calibration_images": calibration,
        "gradients": gradients,
        "act_bits": bits,
        "weight_bits": bits.split()[0],
        "description": "",
        "reconstructs": gradients,
    }
    grid = float(bits.split()[0])
    cell = {
        "model": model,
        "method": method,
        "dataset": dataset,
        "seed": seed,
        "stress": stress,
        "budget": budget,
        "limit": limit,
        "status": "ok",
        "error": None,
        "count": images,
        "metrics": {m: means.get(m, means["F_mean"] + 0.01) for m in METRICS},
        "per_image": {"name": [f"image_{i:03d}" for i in range(images)], **per_image},
        "bits": {"weight": grid + 0.13, "activation": grid + 0.51},
        "info": info,
        "config": {},
        "diagnosis": None,
        "calibration": {"images": calibration, "seconds": 1.0, "steps": 0},
        "hashes": {"float_model": model + str(stress), "quantized_model": "", "dataset": dataset},
        "environment": ENVIRONMENT,
        "started": "2025-01-01T00:00:00Z",
    }
    if error:
        for name in ("count", "metrics", "per_image", "bits", "info", "config", "calibration"):
            cell[name] = None
        cell |= {"status": "error", "error": error}
    return cell | changes


def benchmark():
    """Two models, two data sets, three seeds of what is random, a failure, stressed rows."""
    rows = []
    for model in ("cfrn-small", "escnet-small"):
        for dataset in ("camosynth/test-easy", "camosynth/test-hard"):
            for method in METHODS:
                info = METHODS[method]
                for seed in range(3 if info[5] else 1):
                    failed = method == "fima-q" and dataset.endswith("hard")
                    error = "CalibrationError: loss is not finite at step 12" if failed else None
                    rows.append(row(model, method, dataset, seed, error=error))
    for method in ("fp32", "w4a4", "repq-vit", "cod-tdq"):
        rows.append(row("cfrn-small", method, stress="outliers", shift=-0.1))
    return rows


def paper_rows(**changes):
    """Rows under the names of the paper's models and data; the numbers are random."""
    counts = {"CAMO": 250, "NC4K": 4121}
    return [
        row(model, method, dataset, images=images, **changes)
        for model in ("cfrn", "escnet")
        for dataset, images in counts.items()
        for method in ("fp32", "w4a4", "repq-vit", "dcrp-only", "cod-tdq", "my-own")
    ]


def write(path, rows):
    """Write JSON lines."""
    path.write_text("".join(json.dumps(item) + "\n" for item in rows), encoding="utf-8")
    return path
