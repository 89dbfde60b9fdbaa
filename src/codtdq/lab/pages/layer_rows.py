"""Layer records as rows of a page's table, and the columns that explain them."""

from __future__ import annotations

from typing import Any

from codtdq.lab.diagnosis.record import Histogram, LayerRecord, MethodRecord, Region

# key, label, explanation, digits, whether a profile over layers is offered, logarithmic there
_Column = tuple[str, str, str, int | None, bool, bool]
NUMBERS: tuple[_Column, ...] = (
    ("eta", "η", "step to dispersion, Δ / σ, mean over groups", 3, True, True),
    ("rho0", "ρ₀", "zero-bin mass: share of non-zero values that became 0", 3, True, False),
    ("b_rho0", "ρ₀ boundary", "zero-bin mass of boundary-heavy tokens", 3, True, False),
    ("e_rho0", "ρ₀ elsewhere", "zero-bin mass of non-boundary tokens", 3, True, False),
    ("b_zeroed", "zeroed boundary", "share of boundary activations that became 0", 3, True, False),
    ("sqnr", "SQNR (dB)", "signal to quantization noise of the input", 1, True, False),
    ("cosine", "cosine", "cosine of X and its quantized form", 4, True, False),
    ("disparity", "D(X)", "range disparity: largest token range over the median", 2, True, True),
    ("c_g", "c_g", "largest clip radius over the standard deviation of X", 2, True, True),
    ("radius", "c", "clip radius, mean over groups", None, True, True),
    ("step", "Δ", "step, mean over groups", None, True, True),
    ("sigma", "σ", "standard deviation, mean over groups", None, True, True),
    ("clip", "clip rate", "share of values beyond the radius", 4, True, False),
    ("base", "base", "share of groups whose radius no bound changed", 2, False, False),
    ("c1", "C1", "share of groups whose radius the step bound set", 2, True, False),
    ("c2", "C2", "share of groups whose radius the zero-bin bound set", 2, True, False),
    ("guarded", "guarded", "share of groups where the guard kept the base radius", 2, False, False),
)
HISTOGRAMS = (
    ("group_eta", "η of token groups"),
    ("group_rho0", "ρ₀ of token groups"),
    ("token_eta", "η of tokens"),
    ("token_rho0", "ρ₀ of tokens"),
    ("token_range", "max |x| of tokens"),
)
MOST_BINS = 48


def columns() -> list[dict[str, Any]]:
    """Return the columns of the layer table, in order."""
    texts: list[dict[str, Any]] = [
        {"key": "order", "label": "#", "title": "position in the forward pass", "digits": 0},
        {
            "key": "name",
            "label": "layer",
            "title": "its name",
            "text": True,
            "lead": True,
            "path": True,  # its end tells most: what is too long is cut off in front
        },
        {"key": "role", "label": "role", "title": "what it does in the network", "text": True},
        {"key": "kind", "label": "kind", "title": "type of operator", "text": True},
        {"key": "tokens", "label": "tokens", "title": "token grid", "text": True},
        {"key": "bits", "label": "bits", "title": "bits of an activation", "digits": None},
    ]
    numbers = [
        dict(key=key, label=label, title=title, digits=digits, profile=profile, log=log)
        for key, label, title, digits, profile, log in NUMBERS
    ]
    return [*texts, *numbers]


def row(layer: LayerRecord) -> dict[str, Any]:
    """Return one line of the table; what is unknown is left out."""
    grid = layer.grid
    return {
        "id": layer.name,
        "order": layer.order,
        "name": layer.name,
        "role": layer.role,
        "kind": layer.kind,
        "tokens": None if grid is None else f"{grid[0]}×{grid[1]}",
        "mode": layer.mode.replace("_", " "),
        "channels": layer.channels,
        "bits": layer.bits,
        "eta": layer.eta.mean,
        "rho0": layer.rho0.mean,
        "sqnr": layer.sqnr_db,
        "cosine": layer.cosine,
        "disparity": layer.disparity,
        "c_g": layer.clip_factor,
        "radius": layer.radius.mean,
        "step": layer.step.mean,
        "sigma": layer.sigma.mean,
        "clip": layer.clip.mean,
        **{key: layer.active.get(key) for key in ("base", "c1", "c2", "guarded")},
        "b_rho0": _of(layer.boundary, "rho0"),
        "e_rho0": _of(layer.elsewhere, "rho0"),
        "b_zeroed": _of(layer.boundary, "zeroed"),
        "regions": {"boundary": _region(layer.boundary), "elsewhere": _region(layer.elsewhere)},
    }


def histograms(record: MethodRecord) -> dict[str, dict[str, Any]]:
    """By layer and kind: edges and shares, with few enough bins for a page."""
    return {
        layer.name: {key: _shares(getattr(layer, key)) for key, _ in HISTOGRAMS}
        for layer in record.layers
    }


def _shares(histogram: Histogram) -> dict[str, list[float]] | None:
    total = sum(histogram.counts)
    if total == 0:
        return None
    merge = -(-len(histogram.counts) // MOST_BINS)
    starts = range(0, len(histogram.counts), merge)
    counts = [sum(histogram.counts[i : i + merge]) for i in starts]
    edges = [*(histogram.edges[i] for i in starts), histogram.edges[-1]]
    filled = [i for i, count in enumerate(counts) if count]
    first, last = filled[0], filled[-1] + 1  # empty ends tell nothing
    return {
        "edges": [float(f"{edge:.3g}") for edge in edges[first : last + 1]],
        "shares": [float(f"{count / total:.3g}") for count in counts[first:last]],
    }


def _of(region: Region | None, name: str) -> float | None:
    return None if region is None else getattr(region, name)


def _region(region: Region | None) -> dict[str, float] | None:
    names = ("tokens", "magnitude", "step", "eta", "rho0", "zeroed", "sqnr_db")
    return None if region is None else {name: getattr(region, name) for name in names}
