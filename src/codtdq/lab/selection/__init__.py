"""Label-free self-selection (S3.1): which (g, tau, zr) suits a model, judged without masks."""

from codtdq.lab.selection.candidates import Candidate, candidate_grid
from codtdq.lab.selection.per_layer import LayerChoice, select_per_layer
from codtdq.lab.selection.score import WEIGHTS, Terms
from codtdq.lab.selection.select import Scored, Selection, Selector, select

__all__ = [
    "WEIGHTS",
    "Candidate",
    "LayerChoice",
    "Scored",
    "Selection",
    "Selector",
    "Terms",
    "candidate_grid",
    "select",
    "select_per_layer",
]
