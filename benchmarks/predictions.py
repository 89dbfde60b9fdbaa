"""The testable predictions of S2.4, each with a verdict per model and the numbers behind it.

    python benchmarks/predictions.py [--models cfrn-small,escnet-small] [--images 16]

Writes results/predictions/predictions.json and predictions.md. Every claim is a number with a 95%
interval: over images for differences (paired, bootstrap), over layers for rank correlations. A
claim is confirmed if its interval lies on the predicted side of 0, refuted if it lies on the other
side, and undecided if it holds 0. What counts as confirmation was written down before the run.
"""

import argparse
import json
import math
import os
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

import codtdq
from codtdq.data import open_dataset
from codtdq.data.transforms import to_input
from codtdq.evaluation.masks import to_mask
from codtdq.evaluation.predict import mask_logits
from codtdq.evaluation.provenance import provenance
from codtdq.lab.diagnosis.boundary import BoundaryProtocol, boundary_band
from codtdq.lab.diagnosis.listening import listening
from codtdq.lab.diagnosis.survey import Labels, Survey
from codtdq.lab.diagnosis.tokens import token_maps
from codtdq.metrics import MetricSuite
from codtdq.progress import track

FAILURE = 0.02  # a setting fails if it loses so much S; below it there is nothing to explain
MODERATE = (0.999, 0.99)  # shares of a tensor's elements kept by moderate tail clipping
SHARED, LOCAL, ACT8, WEIGHT8 = "w4a4", "token groups", "w4a8", "w8a4"
RESAMPLES = 4000


def settings(model):
    """Naive W4A4 with one range per tensor, and one change at a time."""
    naive = codtdq.preset("w4a4", model=model)
    found = {
        SHARED: naive,
        LOCAL: codtdq.preset("dstg-only"),  # without a model: token groups in every layer
        ACT8: naive.replace(act_bits=8),
        WEIGHT8: naive.replace(weight_bits=8),
    }
    return found | {clipped(p): naive.replace(act_percentile=p) for p in MODERATE}


def clipped(share):
    return f"w4a4 clipped at {share:g}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="cfrn-small,escnet-small")
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--out", type=Path, default=Path("results/predictions"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    results = [examine(name, args.images) for name in args.models.split(",")]
    write(args.out / "predictions.json", json.dumps(results, indent=1, allow_nan=False) + "\n")
    write(args.out / "predictions.md", markdown(results, args.images))


def examine(name, count):
    """All predictions on one model."""
    model = codtdq.create_model(name)
    data = open_dataset("camosynth", limit=count)
    seen = {"fp32": measure(model, "fp32", data, model)}
    for setting, config in settings(model).items():
        quantized = codtdq.quantize(model, config, backend="reference")
        seen[setting] = measure(quantized, setting, data, model)
    return {
        "model": name,
        "images": len(data),
        "S": {setting: float(np.mean(one["S"])) for setting, one in seen.items()},
        "predictions": [
            range_disparity(seen),
            token_local_ranges(seen),
            clipping_and_zeroization(seen),
            activation_precision(seen),
        ],
        "provenance": provenance(model),
    }


def measure(model, setting, data, original):
    """S of every image, and every operator's record of every image."""
    info, protocol = original.info, BoundaryProtocol()
    maps, found = None, {"S": [], "layers": []}
    for index in track(range(len(data)), f"{info.name} {setting}"):
        sample = data[index]
        image = to_input(sample.image, info.input_size, info.mean, info.std).unsqueeze(0)
        maps = maps or token_maps(original, image)
        band = boundary_band(sample.mask, protocol.r_in, protocol.r_out)
        survey = Survey(model, setting, maps)
        survey.start(sample.name, Labels(band, maps, protocol))
        with listening(model, survey.hear):
            logits = mask_logits(model, info, image)[0]
        prediction = to_mask(logits, sample.mask.shape, info.postprocess)
        found["S"].append(MetricSuite().update(prediction, sample.mask, name=sample.name).s)
        found["layers"].append({layer.name: layer for layer in survey.records()})
    return found


def range_disparity(seen):
    """Layers with larger D(X) have larger Delta / sigma and lose more on boundaries."""
    rows = layer_means(
        seen[SHARED],
        {
            "D": lambda layer: layer.disparity,
            "eta": lambda layer: layer.eta.mean,
            "rho0": lambda layer: layer.boundary.rho0 if layer.boundary else math.nan,
        },
    )
    usable = rows[~np.isnan(rows).any(1)]
    note = f"{len(usable)} of {len(rows)} layers; the others have a median of 0, or no band"
    return prediction(
        "range disparity",
        [
            claim(
                "under a shared range: rank correlation of D(X) and eta over layers",
                *correlation(usable[:, 0], usable[:, 1]),
                note=f"{note}; both contain the maximum, so some of it is by construction",
            ),
            claim(
                "under a shared range: rank correlation of D(X) and boundary rho_0 over layers",
                *correlation(usable[:, 0], usable[:, 2]),
                note=note,
            ),
        ],
    )


def token_local_ranges(seen):
    """Token groups lower Delta for most tokens and boundary rho_0, and S follows."""
    smaller = []
    for shared, local in zip(seen[SHARED]["layers"], seen[LOCAL]["layers"]):
        names = [name for name in shared if name in local]
        below = [local[n].step.median < shared[n].step.median for n in names]
        smaller.append(np.mean(below) - 0.5)
    lost = per_image(seen[SHARED], boundary_rho) - per_image(seen[LOCAL], boundary_rho)
    gain = np.array(seen[LOCAL]["S"]) - np.array(seen[SHARED]["S"])
    return prediction(
        "token-local ranges",
        [
            claim("share of layers whose median step falls, minus one half", *mean(smaller)),
            claim("fall of boundary rho_0, mean over layers", *mean(lost)),
            claim("gain of S", *mean(gain)),
            claim(
                "the two go together: rank correlation over images of fall and gain",
                *correlation(lost, gain),
            ),
        ],
    )


def clipping_and_zeroization(seen):
    """A smaller radius lowers rho_0 and clips more; moderate clipping costs less than zeros."""
    claims = []
    for share in MODERATE:
        one, base = seen[clipped(share)], seen[SHARED]
        claims += [
            claim(
                f"fall of boundary rho_0, clipped at {share:g}",
                *mean(per_image(base, boundary_rho) - per_image(one, boundary_rho)),
            ),
            claim(
                f"rise of the clip rate, clipped at {share:g}",
                *mean(per_image(one, clip_rate) - per_image(base, clip_rate)),
            ),
        ]
    failure = mean(np.array(seen["fp32"]["S"]) - np.array(seen[SHARED]["S"]))
    for share in MODERATE:
        gain = np.array(seen[clipped(share)]["S"]) - np.array(seen[SHARED]["S"])
        claims.append(
            claim(
                f"gain of S, clipped at {share:g}: clipping hurts less than zeros did",
                *mean(gain),
                premise=failure[0] > FAILURE,
                note=f"naive W4A4 loses {failure[0]:.3f} of S",
            )
        )
    return prediction("clipping and zeroization", claims)


def activation_precision(seen):
    """Eight bits for activations recover more than eight bits for weights."""
    base = np.array(seen[SHARED]["S"])
    acts, weights = (np.array(seen[key]["S"]) - base for key in (ACT8, WEIGHT8))
    failure = float(np.mean(np.array(seen["fp32"]["S"]) - base))
    met = {"premise": failure > FAILURE, "note": f"naive W4A4 loses {failure:.3f} of S"}
    rho = {key: per_image(seen[key], boundary_rho) for key in (SHARED, ACT8, WEIGHT8)}
    eta = {key: per_image(seen[key], bounded_eta) for key in (SHARED, ACT8, WEIGHT8)}
    return prediction(
        "activation precision",
        [
            claim("gain of S from A4 to A8", *mean(acts), **met),
            claim(
                "gain of S from A4 to A8, minus the gain from W4 to W8",
                *mean(acts - weights),
                **met,
            ),
            claim(
                "fall of boundary rho_0 by A8, minus the fall by W8",
                *mean(rho[WEIGHT8] - rho[ACT8]),
            ),
            claim(
                "fall of eta / (1 + eta) by A8, minus the fall by W8",
                *mean(eta[WEIGHT8] - eta[ACT8]),
            ),
        ],
    )


def boundary_rho(layer):
    return layer.boundary.rho0 if layer.boundary else math.nan


def clip_rate(layer):
    return layer.clip.mean


def bounded_eta(layer):
    return layer.eta.mean / (1 + layer.eta.mean)  # a constant input must not outweigh all others


def per_image(one, value):
    """Mean over layers of each image: [images]."""
    return np.array(
        [np.nanmean([value(layer) for layer in layers.values()]) for layers in one["layers"]]
    )


def layer_means(one, values):
    """Mean over images of each layer: [layers, values]. Layers at 8 bits (the first) are out."""
    first = one["layers"][0]
    names = [name for name, layer in first.items() if layer.bits == 4]
    rows = [
        [_nanmean([value(layers[name]) for layers in one["layers"]]) for value in values.values()]
        for name in names
    ]
    return np.array(rows)


def _nanmean(values):
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def mean(values):
    """Mean of a sample with its bootstrap interval."""
    values = np.asarray(values, dtype=float)
    means = values[resampled(len(values))].mean(1)
    return float(values.mean()), *interval(means)


def correlation(x, y):
    """Spearman's rank correlation with its bootstrap interval."""
    x, y = np.asarray(x), np.asarray(y)
    found = [_spearman(x[rows], y[rows]) for rows in resampled(len(x))]
    return _spearman(x, y), *interval([value for value in found if not math.isnan(value)])


def _spearman(x, y):
    x, y = rankdata(x), rankdata(y)
    return float(np.corrcoef(x, y)[0, 1]) if x.std() and y.std() else math.nan


def resampled(count):
    return np.random.default_rng(0).integers(count, size=(RESAMPLES, count))


def interval(values):
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def claim(text, value, low, high, *, premise=True, note=""):
    verdict = "confirmed" if low > 0 else "refuted" if high < 0 else "undecided"
    if not premise:
        verdict = "not testable: there is no failure to explain"
    return {
        "claim": text,
        "value": value,
        "low": low,
        "high": high,
        "verdict": verdict,
        "note": note,
    }


def prediction(name, claims):
    """Confirmed if every testable claim is; refuted if one is; else undecided."""
    verdicts = [one["verdict"] for one in claims if not one["verdict"].startswith("not testable")]
    if "refuted" in verdicts:
        verdict = "refuted in part" if "confirmed" in verdicts else "refuted"
    elif len(verdicts) < len(claims) and set(verdicts) == {"confirmed"}:
        verdict = "confirmed as far as testable"
    elif set(verdicts) == {"confirmed"}:
        verdict = "confirmed"
    else:
        verdict = "confirmed in part" if "confirmed" in verdicts else "undecided"
    return {"prediction": name, "verdict": verdict, "claims": claims}


def markdown(results, images):
    models = [one["model"] for one in results]
    lines = [
        "# The testable predictions of S2.4",
        "",
        f"On {images} camosynth (synthetic) test images, by `python benchmarks/predictions.py`. "
        "Values with 95% bootstrap intervals, over images for differences and over layers or "
        "images for rank correlations; a claim is confirmed if the interval is above 0, refuted if "
        "below. Naive W4A4 has one range per tensor in every layer.",
        "",
        "| prediction | " + " | ".join(models) + " |",
        "|---|" + "---|" * len(models),
    ]
    for row in zip(*(one["predictions"] for one in results)):
        cells = [one["verdict"] for one in row]
        lines.append(f"| {row[0]['prediction']} | " + " | ".join(cells) + " |")
    for one in results:
        scores = ", ".join(f"{name} {score:.3f}" for name, score in one["S"].items())
        lines += [
            "",
            f"## {one['model']}",
            "",
            f"S: {scores}.",
            "",
            "| prediction | claim | value | 95% interval | verdict |",
            "|---|---|---|---|---|",
        ]
        for found in one["predictions"]:
            for part in found["claims"]:
                note = f" ({part['note']})" if part["note"] else ""
                lines.append(
                    f"| {found['prediction']} | {part['claim']}{note} | {part['value']:+.4f} | "
                    f"{part['low']:+.4f} to {part['high']:+.4f} | {part['verdict']} |"
                )
    return "\n".join(lines) + "\n"


def write(path, text):
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text)
    os.replace(temporary, path)


if __name__ == "__main__":
    main()
