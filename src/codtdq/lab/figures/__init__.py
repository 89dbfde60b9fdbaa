"""Figures from live measurements (extra `figures`: matplotlib). Nothing here computes a result."""

from codtdq.lab.figures.before_after import before_and_after
from codtdq.lab.figures.collection import NamedFigure, draw_figures
from codtdq.lab.figures.failure import failure_mechanism
from codtdq.lab.figures.files import figure_bytes, save_figure
from codtdq.lab.figures.hyperparameters import hyperparameter_sensitivity
from codtdq.lab.figures.layer_profile import layer_profile
from codtdq.lab.figures.mask_figure import mask_figure
from codtdq.lab.figures.projection import projection
from codtdq.lab.figures.token_ranges import token_ranges
from codtdq.lab.figures.tradeoff import tradeoff
from codtdq.lab.figures.weight_histograms import weight_histograms

__all__ = [
    "NamedFigure",
    "before_and_after",
    "draw_figures",
    "failure_mechanism",
    "figure_bytes",
    "hyperparameter_sensitivity",
    "layer_profile",
    "mask_figure",
    "projection",
    "save_figure",
    "token_ranges",
    "tradeoff",
    "weight_histograms",
]
