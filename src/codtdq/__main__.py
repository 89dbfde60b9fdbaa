"""`python -m codtdq` is the command `codtdq`."""

import sys

from codtdq.cli import main

sys.exit(main())
