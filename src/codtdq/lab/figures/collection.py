"""All figures that a diagnosis can fill, with the words that go under them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from codtdq.lab.diagnosis.record import Diagnosis
from codtdq.lab.figures.before_after import before_and_after, bounded_samples, falls
from codtdq.lab.figures.compared import naive_and_better, sampled_layers
from codtdq.lab.figures.failure import failure_mechanism
from codtdq.lab.figures.layer_profile import SQNR_TOP, WINDOW, layer_profile
from codtdq.lab.figures.mask_figure import mask_figure
from codtdq.lab.figures.projection import projection
from codtdq.lab.figures.token_ranges import token_ranges
from codtdq.lab.figures.weight_histograms import weight_histograms
from codtdq.lab.mask_grid import MaskRow
from codtdq.lab.text import safe_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class NamedFigure:
    """A figure with its file name (without suffix), title and caption."""

    name: str
    title: str
    caption: str
    figure: Figure


def draw_figures(
    diagnosis: Diagnosis, *, tau: float = 1.0, zr: float = 0.2
) -> Iterator[NamedFigure]:
    """Draw one after the other; a figure whose data were not kept is left out."""
    quantized = [m for m in diagnosis.methods if m.layers and m.method != "fp32"]
    layers = sampled_layers(diagnosis)
    if layers:
        naive, better = (one.method.title for one in naive_and_better(diagnosis, layers[0]))
        where = f"input of {layers[0]}, first image"
        yield NamedFigure(
            "failure-mechanism",
            "Where weak evidence goes",
            f"Magnitudes at the {where}, under {naive} and {better}. Filled: boundary activations "
            "that became zero. Right: the layer's diagnostics and the network's S.",
            failure_mechanism(diagnosis, layers[0]),
        )
        yield NamedFigure(
            "token-ranges",
            "Ranges of tokens, and boundary magnitudes before and after",
            f"At the {where}. Top: largest magnitude of each sampled token. Bottom: what is left "
            "of the boundary's activations, on a logarithmic axis.",
            token_ranges(diagnosis, layers[0]),
        )
    bounded = bounded_samples(diagnosis)
    if bounded:
        yield NamedFigure(
            "before-after",
            "Token groups before and after C1 and C2",
            f"Input of {bounded[0].layer}, first image: the same groups under the base radius "
            f"and the projected one. {' '.join(falls(one) for one in bounded)}",
            before_and_after(bounded),
        )
    if quantized:
        yield NamedFigure(
            "projection",
            "Step to dispersion and zero-bin mass over token groups",
            "All layers and images. Compare a method without bounds with one under C1 and C2; "
            f"the bounds drawn are τ = {tau:g} and zr = {zr:g}.",
            projection(diagnosis.methods, tau=tau, zr=zr),
        )
        yield NamedFigure(
            "layer-profile",
            "Diagnostics by layer",
            f"Dots are layers, lines their running median over {WINDOW} layers. Constant inputs "
            f"have no c_g; layers of {SQNR_TOP} dB or more stand on the upper rim.",
            layer_profile(diagnosis.methods),
        )
    if diagnosis.gallery:
        yield NamedFigure(
            "masks",
            "Masks by method",
            "The images of the gallery, with S under each mask.",
            mask_figure(_mask_rows(diagnosis)),
        )
    titles = {m.method: m.title for m in diagnosis.methods}
    for layer in dict.fromkeys(sample.layer for sample in diagnosis.weight_samples):
        found = {titles[s.method]: s.weight for s in diagnosis.weight_samples if s.layer == layer}
        yield NamedFigure(
            f"weights-{safe_name(layer)}",
            f"Weights of {layer}",
            "Counts by value and output channel, of the weights that each method multiplies by.",
            weight_histograms(layer, found),
        )


def _mask_rows(diagnosis: Diagnosis) -> list[MaskRow]:
    scores = {image.name: image.scores for image in diagnosis.images}
    shown = [m for m in diagnosis.methods if m.method in diagnosis.gallery[0].predictions]
    return [
        MaskRow(
            name=item.name,
            image=item.image,
            truth=item.truth,
            masks={m.title: item.predictions[m.method] for m in shown},
            scores={
                m.title: scores[item.name][m.method]
                for m in shown
                if m.method in scores.get(item.name, {})
            },
        )
        for item in diagnosis.gallery
    ]
