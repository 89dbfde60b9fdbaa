"""The fuzzers lie beside their tests; the engine's helpers beside the engine's."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "engine" / "cpu"))
