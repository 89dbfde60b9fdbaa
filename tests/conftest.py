"""Shared by all tests: helper modules can be imported by their plain name."""

import sys
from pathlib import Path

here = Path(__file__).parent
sys.path[:0] = [str(here), str(here / "quantizer"), str(here / "evaluation")]
