"""How many optimisation steps a method that learns may take; imports nothing, for quick help."""

from __future__ import annotations

# fast: 100 per block. paper: what the originals take, up to 20,000. tenth: a tenth of those, at ten
# times their rates, so that as far can be walked.
BUDGETS = ("fast", "tenth", "paper")
HELP = "steps of methods that reconstruct: fast, paper, or tenth (of the paper's; default fast)"
