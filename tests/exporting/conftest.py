"""What the tests of exports share with those of the engine and of the fuzzers."""

import sys
from pathlib import Path

for folder in ("engine/cpu", "fuzz"):
    sys.path.append(str(Path(__file__).parents[1] / folder))
