"""Benchmarks over models, methods and data sets."""

from codtdq.lab.bench.accuracy import run_accuracy
from codtdq.lab.bench.rows import read_results

__all__ = ["read_results", "run_accuracy"]
