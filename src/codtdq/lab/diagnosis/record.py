"""What a diagnosis found: plain numbers, to and from JSON, and as CSV tables.

A number that does not exist (the step of a method without steps, the SQNR of an input that lost
nothing) is NaN or infinite here and null in JSON; null is read back as NaN.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codtdq.errors import DataError
from codtdq.io import write_text
from codtdq.lab.csvtable import csv_table
from codtdq.lab.text import plain

FORMAT = 1
NAN = math.nan
CONSTANT_INPUT = 1e5  # radius over Std(X) from which X is constant but for rounding


@dataclass(frozen=True)
class Summary:
    """One statistic over all groups of all inputs. Median and p95 come from a fixed histogram
    (within 1/64), the mean and the maximum are exact.
    """

    mean: float = NAN
    median: float = NAN
    p95: float = NAN
    maximum: float = NAN


@dataclass(frozen=True)
class Histogram:
    """Counts between fixed edges; values beyond the ends are counted in the end bins."""

    edges: list[float]  # n + 1
    counts: list[int]  # n


@dataclass(frozen=True)
class Region:
    """The tokens of one label: boundary-heavy (pi >= gamma_bdry) or non-boundary (S4.4)."""

    tokens: int
    eta: float  # mean over the token groups that inherit the label
    rho0: float  # mean over the same groups
    step: float  # mean Delta
    eta_set: float  # mean Delta / Std of all activations of the region (Eq. cg_Delta_eta_oneline)
    magnitude: float  # mean |x|
    zeroed: float  # share of the region's non-zero elements that became 0
    sqnr_db: float


@dataclass(frozen=True)
class LayerRecord:
    """One operator's input under one method."""

    name: str
    role: str
    kind: str  # linear, conv, depthwise
    order: int  # position in the forward pass
    calls: int  # inputs seen: images times calls per image
    channels: int
    grid: tuple[int, int] | None  # token grid of the last call; None: the tokens have no place
    mode: str  # per_tensor, per_channel, per_token_group, float, or a method's own scheme
    bits: float  # of an activation; 32 where the input stays float
    group: int | None  # channels that share a range, for per_token_group
    # over the quantizer's own groups; for schemes without groups sigma and rho0 are those of the
    # analysis groups and the rest is NaN
    radius: Summary
    step: Summary
    sigma: Summary
    eta: Summary
    rho0: Summary
    clip: Summary
    c_g: float  # largest radius of an input over Std(X), mean over inputs
    disparity: float  # D(X), mean over inputs whose median is not 0; NaN if there is none
    disparity_defined: float  # share of such inputs
    sqnr_db: float  # signal over noise, summed over all inputs
    cosine: float  # of X and X_hat, over all inputs
    active: dict[str, float]  # share of groups by what set the radius: base, c1, c2, guarded
    infeasible: dict[str, float]  # share of groups whose bound no radius meets: c1, c2
    boundary: Region | None  # None: unknown token places, or no such token
    elsewhere: Region | None
    token_eta: Histogram  # mean Delta of a token / Std of the token
    token_rho0: Histogram
    group_eta: Histogram  # over token groups, whatever the quantizer's own groups are
    group_rho0: Histogram
    token_range: Histogram  # max |x| of a token

    @property
    def clip_factor(self) -> float:
        """c_g, or NaN for a constant input: its deviation is rounding noise and c_g meaningless."""
        return self.c_g if self.c_g < CONSTANT_INPUT else NAN


@dataclass(frozen=True)
class WeightRecord:
    """Statistics of one weight as the method uses it, dequantized (supplement's tables)."""

    name: str
    role: str
    mean: float
    std: float
    p99: float  # 99th percentile of w
    absmax: float


@dataclass(frozen=True)
class MethodRecord:
    """One method on one model: scores, inputs, weights."""

    method: str
    title: str
    metrics: dict[str, float]
    layers: list[LayerRecord]
    weights: list[WeightRecord]
    bits: dict[str, float]  # effective: weight, activation

    def layer(self, name: str) -> LayerRecord:
        """Return the record of one operator."""
        for record in self.layers:
            if record.name == name:
                return record
        raise DataError(f"{self.method} has no record of an operator {name!r}")


@dataclass
class ImageRecord:
    """One image: S-measure by method, and pictures of it by title once somebody drew them."""

    name: str
    scores: dict[str, float]
    files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GalleryItem:
    """Arrays of one image, all uint8 and of the image's size; kept in memory only.

    zeroed: by method, then by layer: share of a token's non-zero channels that became zero, 255
        for all of them, on the pixels of the token.
    """

    name: str
    image: NDArray[np.uint8]  # [H, W, 3]
    truth: NDArray[np.uint8]  # [H, W]
    band: NDArray[np.uint8]  # [H, W], 255 on the boundary band
    predictions: dict[str, NDArray[np.uint8]]  # by method, "fp32" included
    zeroed: dict[str, dict[str, NDArray[np.uint8]]]


@dataclass(frozen=True)
class GroupSample:
    """Token groups of one input under the base radius and under the projected one; constant
    groups, which have no eta, left out. Kept in memory only.
    """

    tau: float | None  # the bounds that the layer's quantizer has
    zr: float | None
    eta_before: NDArray[np.float32]  # [n]
    eta_after: NDArray[np.float32]  # [n]
    rho0_before: NDArray[np.float32]  # [n]
    rho0_after: NDArray[np.float32]  # [n]
    boundary: NDArray[np.int8]  # [n], as in LayerSample


@dataclass(frozen=True)
class LayerSample:
    """A subsample of one layer's input under one method; n elements, kept in memory only."""

    method: str
    layer: str
    x: NDArray[np.float32]  # [n]
    x_hat: NDArray[np.float32]  # [n]
    token: NDArray[np.int64]  # [n], index of the token, images counted on
    boundary: NDArray[np.int8]  # [n]: 1 boundary-heavy, 0 non-boundary, -1 neither or unknown
    groups: GroupSample | None = None  # None: no token groups, or no bound on them


@dataclass(frozen=True)
class WeightSample:
    """One layer's weight under one method, dequantized; kept in memory only."""

    method: str
    layer: str
    weight: NDArray[np.float32]  # [O, K]: all output channels, at most 256 inputs evenly spaced


@dataclass
class Diagnosis:
    """A whole diagnosis. `gallery` and the samples are arrays and no part of the JSON."""

    model: str
    dataset: str
    settings: dict[str, Any]
    methods: list[MethodRecord]
    images: list[ImageRecord]
    provenance: dict[str, Any]
    command: str = ""
    unmapped: list[str] = field(default_factory=list)  # operators whose tokens have no place
    gallery: list[GalleryItem] = field(default_factory=list, repr=False, compare=False)
    samples: list[LayerSample] = field(default_factory=list, repr=False, compare=False)
    weight_samples: list[WeightSample] = field(default_factory=list, repr=False, compare=False)

    def method(self, name: str) -> MethodRecord:
        """Return the record of one method; "fp32" is the float model."""
        for record in self.methods:
            if record.method == name:
                return record
        known = ", ".join(record.method for record in self.methods)
        raise DataError(f"the diagnosis has no method {name!r}; it has {known}")

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON-ready form."""
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.compare}
        found: dict[str, Any] = plain({"format": FORMAT, **data})
        return found

    def to_json(self, path: str | Path | None = None) -> str:
        """Return the JSON text, also written to a file if one is given."""
        text = json.dumps(self.to_dict(), separators=(",", ":"), allow_nan=False) + "\n"
        if path is not None:
            write_text(path, text)
        return text

    @classmethod
    def from_json(cls, source: str | Path) -> Diagnosis:
        """Read a file, or a text that `to_json` made; without gallery and samples."""
        text = source
        if isinstance(source, Path) or not source.lstrip().startswith("{"):
            try:
                text = Path(source).read_text(encoding="utf-8")
            except OSError as error:
                raise DataError(f"{source} cannot be read: {error}") from error
        try:
            data = json.loads(str(text))
            if data.pop("format") != FORMAT:
                raise ValueError(f"its format is not {FORMAT}")
            methods = [_method(record) for record in data.pop("methods")]
            images = [ImageRecord(**record) for record in data.pop("images")]
            return cls(methods=methods, images=images, **data)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"not a diagnosis: {error}; `codtdq diagnose` writes one") from error

    def layers_csv(self, path: str | Path | None = None) -> str:
        """One line per method and operator; nested statistics become columns `eta.median`."""
        rows = [{"method": m.method, **_flat(layer)} for m in self.methods for layer in m.layers]
        return csv_table(rows, path)

    def weights_csv(self, path: str | Path | None = None) -> str:
        """Return one line per method and weight."""
        rows = [
            {"method": m.method, **dataclasses.asdict(weight)}
            for m in self.methods
            for weight in m.weights
        ]
        return csv_table(rows, path)


def _method(data: dict[str, Any]) -> MethodRecord:
    data["layers"] = [_layer(layer) for layer in data["layers"]]
    data["weights"] = [WeightRecord(**_numbers(weight)) for weight in data["weights"]]
    data["metrics"] = _numbers(data["metrics"])
    return MethodRecord(**data)


def _layer(data: dict[str, Any]) -> LayerRecord:
    nested = {Summary.__name__: Summary, Histogram.__name__: Histogram}
    fixed: dict[str, Any] = {}
    for spec in dataclasses.fields(LayerRecord):
        value, kind = data.pop(spec.name), str(spec.type)
        if kind in nested:
            value = nested[kind](**_numbers(value))
        elif kind.startswith(Region.__name__):
            value = None if value is None else Region(**_numbers(value))
        elif kind == "float" and value is None:
            value = NAN
        elif spec.name == "grid" and value is not None:
            value = (int(value[0]), int(value[1]))
        fixed[spec.name] = value
    if data:
        raise ValueError(f"unknown fields {', '.join(data)}")
    return LayerRecord(**fixed)


def _numbers(data: dict[str, Any]) -> dict[str, Any]:
    return {key: NAN if value is None else value for key, value in data.items()}


def _flat(layer: LayerRecord) -> dict[str, Any]:
    """Columns of one layer, histograms left out; a missing region leaves its cells empty."""
    row: dict[str, Any] = {}
    for spec in dataclasses.fields(layer):
        value, kind = getattr(layer, spec.name), str(spec.type)
        if kind == Histogram.__name__:
            continue
        if kind.startswith(Region.__name__):
            names = [f.name for f in dataclasses.fields(Region)]
            value = {name: getattr(value, name, None) for name in names}
        elif dataclasses.is_dataclass(value):
            value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        if isinstance(value, dict):
            row |= {f"{spec.name}.{key}": item for key, item in value.items()}
        elif spec.name == "grid":
            row["grid"] = None if value is None else f"{value[0]}x{value[1]}"
        else:
            row[spec.name] = value
    return row
