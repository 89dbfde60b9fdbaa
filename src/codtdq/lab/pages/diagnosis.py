"""The page of a diagnosis: scores, layers, profiles, images with what they lost, figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from codtdq.lab.diagnosis.record import Diagnosis, GalleryItem
from codtdq.lab.pages import layer_rows
from codtdq.lab.pages.html import command_block, escape, facts, page, scrolling_table
from codtdq.lab.pages.images import (
    band_uri,
    drawing_uri,
    heat_uri,
    mask_uri,
    outline_uri,
    photo_uri,
    ramp_css,
)

SCRIPTS = ("dom.js", "table.js", "chart.js", "layers.js", "gallery.js", "diagnosis.js")
METRICS = ("S", "wF", "E_mean", "F_mean", "MAE")


@dataclass(frozen=True)
class Drawing:
    """A figure for the page."""

    title: str
    caption: str
    png: bytes


def diagnosis_page(diagnosis: Diagnosis, drawings: Sequence[Drawing] = ()) -> str:
    """Return the HTML text; figures stand in it where they are given."""
    count = len(diagnosis.images)
    titles = ", ".join(record.title for record in diagnosis.methods)
    sections = [
        ("scores", "Scores", _SCORES),
        ("layers", "Layers", _LAYERS),
        ("profiles", "Layer profiles", _PROFILES),
        ("detail", "One layer", _DETAIL),
        *([("images", "Images", _images())] if diagnosis.gallery else []),
        *([("figures", "Figures", _figures(drawings))] if drawings else []),
        ("weights", "Weights", _WEIGHTS),
        ("provenance", "Provenance", _provenance(diagnosis)),
    ]
    return page(
        f"Diagnosis of {diagnosis.model}",
        f"{diagnosis.dataset}, {count} {'image' if count == 1 else 'images'}: {titles}",
        sections,
        _data(diagnosis),
        SCRIPTS,
    )


def _data(diagnosis: Diagnosis) -> dict[str, Any]:
    methods = [
        {"id": m.method, "title": m.title, "index": i, "metrics": m.metrics, "bits": m.bits}
        for i, m in enumerate(_float_first(diagnosis))
    ]
    measured = [m for m in diagnosis.methods if m.layers and m.method != "fp32"]
    return {
        "methods": methods,
        "metrics": list(METRICS),
        "columns": layer_rows.columns(),
        "layers": {m.method: [layer_rows.row(layer) for layer in m.layers] for m in measured},
        "histogramTitles": dict(layer_rows.HISTOGRAMS),
        "histograms": {m.method: layer_rows.histograms(m) for m in measured},
        "weights": [
            {"id": f"{m.method} {w.name}", "method": m.title, **vars(w)}
            for m in diagnosis.methods
            for w in m.weights
        ],
        "gallery": [_item(diagnosis, item) for item in diagnosis.gallery],
    }


def _float_first(diagnosis: Diagnosis) -> list[Any]:
    """FP32 has the first colour, also where it comes last."""
    return sorted(diagnosis.methods, key=lambda record: record.method != "fp32")


def _item(diagnosis: Diagnosis, item: GalleryItem) -> dict[str, Any]:
    scores = next((r.scores for r in diagnosis.images if r.name == item.name), {})
    height, width = item.truth.shape
    return {
        "name": item.name,
        "ratio": f"{width} / {height}",
        "scores": scores,
        "image": photo_uri(item.image),
        "truth": mask_uri(item.truth),
        "band": band_uri(item.band),
        "outline": outline_uri(item.truth),
        "masks": {method: mask_uri(mask) for method, mask in item.predictions.items()},
        "zeroed": {
            method: {
                name: {"uri": heat_uri(share), "mean": float(share.mean()) / 255}
                for name, share in maps.items()
            }
            for method, maps in item.zeroed.items()
        },
    }


_SCORES = scrolling_table("score-table", "Scores by method")

_LAYERS = f"""<p class="note">Every quantized input, from the quantizer's own statistics. Choose a
layer to see it below; choose a column to sort. Explanations appear on the column titles.</p>
<div class="controls">
<fieldset class="switch" id="layer-method"><legend>method</legend></fieldset>
<label>filter by name, role or kind
<input type="search" id="layer-filter" autocomplete="off"></label>
<label>role<select id="layer-role"></select></label>
<span class="note" id="layer-count" role="status"></span>
</div>
{scrolling_table("layer-table", "Layers", tall=True)}"""

_PROFILES = """<div class="controls">
<label>diagnostic<select id="profile-what"></select></label></div>
<div class="chart" id="profile"></div><div class="legend" id="profile-legend"></div>
<p class="reading" id="profile-reading" role="status">Point at the chart, or move with the arrow
keys when it has the focus; Enter or a click shows the layer.</p>"""

_DETAIL = f"""<div class="controls"><label>layer
<select id="detail-layer" class="path"></select></label></div>
<p id="detail-facts" class="note"></p>
{scrolling_table("region-table", "Boundary and elsewhere")}
<h3>Distributions</h3><div class="legend" id="detail-legend"></div>
<div class="pair" id="detail-charts"></div>"""

_WEIGHTS = f"""<p class="note">Weights as the method uses them. P99: 99th percentile; AbsMax:
largest |w|.</p>
<div class="controls"><label>filter by method, name or role
<input type="search" id="weight-filter" autocomplete="off"></label>
<span class="note" id="weight-count" role="status"></span></div>
{scrolling_table("weight-table", "Statistics of weights", tall=True)}"""


def _images() -> str:
    return f"""<div class="controls">
<button type="button" id="previous">Previous</button><button type="button" id="next">Next</button>
<label>image<select id="image-choice"></select></label>
<fieldset class="switch" id="image-method"><legend>method</legend></fieldset>
<label>lost evidence in layer<select id="image-layer" class="path"></select></label>
<label class="check"><input type="checkbox" id="show-band" checked>boundary band and outline</label>
</div>
<p id="image-note" class="note" role="status"></p>
<div class="tiles" id="tiles"></div>
<p class="note">The boundary band comes from the ground truth and serves the diagnosis only; no
quantizer sees it. Lost evidence: share of a token's non-zero channels that became zero; the white
line is the rim of the object.</p>
<div class="ramp" style="background: {ramp_css()}"></div>
<div class="ramp-ends soft"><span>0 %</span><span>50 %</span><span>100 % zeroed</span></div>"""


def _figures(drawings: Sequence[Drawing]) -> str:
    """On a phone a figure keeps a width at which it can be read, and scrolls in its own box."""
    shown = "".join(
        f'<figure><div class="scroll" role="region" tabindex="0" aria-label="{escape(d.title)}">'
        f'<img src="{drawing_uri(d.png)}" alt="{escape(d.title)}"></div>'
        f"<figcaption><b>{escape(d.title)}.</b> {escape(d.caption)}</figcaption></figure>"
        for d in drawings
    )
    return f'<div class="drawings">{shown}</div>'


def _provenance(diagnosis: Diagnosis) -> str:
    settings = {"model": diagnosis.model, "data set": diagnosis.dataset, **diagnosis.settings}
    unmapped = diagnosis.unmapped
    note = (
        f'<p class="note">Without boundary statistics, as their tokens have no place in the image: '
        f"{escape(', '.join(unmapped))}</p>"
        if unmapped
        else ""
    )
    return (
        f"{command_block(diagnosis.command)}<h3>Settings</h3>{facts(settings)}{note}"
        f"<h3>Where it ran</h3>{facts(diagnosis.provenance)}"
    )
