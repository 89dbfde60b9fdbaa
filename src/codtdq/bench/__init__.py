"""Benchmarks over models, methods and data sets."""

from codtdq.bench.accuracy import run_accuracy
from codtdq.bench.rows import read_results

__all__ = ["read_results", "run_accuracy"]
