"""Scores of camouflaged object detection: S, weighted F, E, F and MAE of 8-bit maps."""

from __future__ import annotations

from codtdq.metrics.measure import ImageScores, measure
from codtdq.metrics.pair import foreground
from codtdq.metrics.suite import MetricSuite

__all__ = ["ImageScores", "MetricSuite", "foreground", "measure"]
