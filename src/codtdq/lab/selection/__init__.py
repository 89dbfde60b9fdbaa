"""Label-free self-selection (S3.1): which (g, tau, zr) suits a model, judged without masks."""

from codtdq.lab.selection.candidates import PAPER_SETTING, Candidate, candidate_grid
from codtdq.lab.selection.per_layer import LayerChoice, select_per_layer
from codtdq.lab.selection.score import SCORES, WEIGHTS, Terms
from codtdq.lab.selection.select import PaperSetting, Scored, Selection, Selector, select

__all__ = [
    "PAPER_SETTING",
    "SCORES",
    "WEIGHTS",
    "Candidate",
    "LayerChoice",
    "PaperSetting",
    "Scored",
    "Selection",
    "Selector",
    "Terms",
    "candidate_grid",
    "select",
    "select_per_layer",
]
