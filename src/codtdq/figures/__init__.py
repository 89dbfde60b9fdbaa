"""Figures from live measurements (extra `figures`: matplotlib). Nothing here computes a result."""

from codtdq.figures.before_after import before_and_after
from codtdq.figures.collection import NamedFigure, draw_figures
from codtdq.figures.failure import failure_mechanism
from codtdq.figures.files import figure_bytes, save_figure
from codtdq.figures.hyperparameters import hyperparameter_sensitivity
from codtdq.figures.layer_profile import layer_profile
from codtdq.figures.mask_grid import MaskRow, mask_grid
from codtdq.figures.projection import projection
from codtdq.figures.token_ranges import token_ranges
from codtdq.figures.weight_histograms import weight_histograms

__all__ = [
    "MaskRow",
    "NamedFigure",
    "before_and_after",
    "draw_figures",
    "failure_mechanism",
    "figure_bytes",
    "hyperparameter_sensitivity",
    "layer_profile",
    "mask_grid",
    "projection",
    "save_figure",
    "token_ranges",
    "weight_histograms",
]
