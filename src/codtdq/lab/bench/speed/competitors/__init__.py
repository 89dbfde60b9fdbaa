"""What a user would pick instead, on the same float network: other layouts, compilers, runtimes.

The libraries come with the extra `compare`. One that cannot take the network is skipped, and the
reason is part of the result; one that is not installed is an error before anything is measured.
"""

from codtdq.lab.bench.speed.competitors.bench import Bench
from codtdq.lab.bench.speed.competitors.network import Calibration
from codtdq.lab.bench.speed.competitors.registry import ALL, COMPETITORS, check, expand
from codtdq.lab.bench.speed.competitors.runtime import Competitor, Runtime

__all__ = ["ALL", "COMPETITORS", "Bench", "Calibration", "Competitor", "Runtime", "check", "expand"]
