"""What the tests of the engine share lies beside those of its operators."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "cpu"))
