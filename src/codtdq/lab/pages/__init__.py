"""Self-contained HTML pages of a diagnosis and of a benchmark run. No result is computed here."""

from codtdq.lab.pages.benchmark import benchmark_page
from codtdq.lab.pages.diagnosis import diagnosis_page

__all__ = ["benchmark_page", "diagnosis_page"]
