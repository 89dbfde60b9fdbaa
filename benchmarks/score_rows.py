"""Rows below results/ and their scores by image, for the tables of docs/."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from paired_seeds import interval

ROOT = Path(__file__).parents[1]
SMALL = ("cfrn-small", "escnet-small")
CASES = [(model, stress) for model in SMALL for stress in (None, "outliers")]
CASE_HEAD = ["cfrn-small", "with outliers", "escnet-small", "with outliers"]
Row = dict[str, Any]


@cache
def rows(file: str) -> list[Row]:
    """The rows of a file below results/."""
    lines = (ROOT / "results" / file).read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if row.get("status", "ok") == "ok"]


class Scores:
    """S of every image by method, model and stress; data sets joined, seeds kept apart."""

    def __init__(self, found: Iterable[Row], limit: int | None = None) -> None:
        """limit: count only the first images of each data set."""
        self.info: dict[str, Row] = {}
        self.images: dict[tuple[str, str, str | None], dict[int, list[np.ndarray]]] = {}
        for row in sorted(found, key=lambda row: (row["dataset"], row["stress"] or "")):
            seeds = self.images.setdefault((row["method"], row["model"], row["stress"]), {})
            scores = np.array(row["per_image"]["S"][:limit])
            seeds.setdefault(row["seed"], []).append(scores)
            self.info.setdefault(row["method"], row)

    def seeds(self, method: str, model: str, stress: str | None = None) -> list[float]:
        """Mean over data sets of each seed."""
        found = self.images.get((method, model, stress), {})
        return [float(np.mean([part.mean() for part in found[seed]])) for seed in sorted(found)]

    def joined(self, method: str, model: str, stress: str | None = None) -> np.ndarray:
        """Every image, mean of the seeds."""
        found = self.images.get((method, model, stress), {}).values()
        return np.mean([np.concatenate(parts) for parts in found], 0) if found else np.empty(0)

    def mean(self, method: str, model: str, stress: str | None = None, digits: int = 4) -> str:
        """One number of the table; empty where nothing was run."""
        found = self.seeds(method, model, stress)
        return f"{np.mean(found):.{digits}f}" if found else ""

    def title(self, method: str) -> str:
        """The name of a method in tables."""
        return str(self.info[method]["info"]["title"])

    def bits(self, method: str) -> list[str]:
        """Bits of an activation and of a weight, scales counted."""
        bits = self.info[method]["bits"]
        return [f"{bits['activation']:.2f}", f"{bits['weight']:.2f}"]


def difference(ours: np.ndarray, theirs: np.ndarray, digits: int = 4) -> tuple[str, bool]:
    """The mean difference with its interval, and whether that excludes zero."""
    if len(ours) != len(theirs) or not len(ours):
        return "", False
    low, high = interval(ours - theirs)
    mean = (ours - theirs).mean()
    text = f"{mean:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"
    return text, low > 0 or high < 0
