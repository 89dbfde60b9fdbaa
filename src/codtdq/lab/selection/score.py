"""The score of a setting: terms in [0, 1], a weighted sum, lower is better. Two sums are known.

    extended = 0.40 L + 0.40 F + 0.05 E + 0.05 R + 0.10 B       with n(e) = e / (1 + e)
    paper    = 0.25 F + 0.25 E + 0.25 R + 0.25 B

    L  n(e) of the mask logits against FP32, e the relative squared error
    F  mean over feature points of n(e_p): drift of block outputs against FP32
    E  mean over operators of the mean over groups of n(eta)    (Eq. cg_Delta_eta_oneline)
    R  mean over operators of the mean rho_0                    (Eq. rho0_def)
    B  the same over tokens on the boundary band of the FP32 prediction (no label is used)

n maps [0, inf) to [0, 1) and needs no other candidate to compare with, so the score of a setting
does not depend on the grid it stands in.

`paper` has the four terms that S3.1 names and no other. The paper gives no weights: all count
alike.

`extended` is ours. Its weights were fixed before any score was compared with a metric, by this
reasoning: L and F measure the damage itself, to the answer and on the way to it; E, R and B are
causes that C1 and C2 lower by construction, at the price of clipping which only L and F see. They
may decide between settings of like drift, the boundary one with more weight, and must not outvote
it.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from codtdq.errors import ConfigError

EXTENDED, PAPER = "extended", "paper"
SCORES: dict[str, dict[str, float]] = {
    EXTENDED: {"logits": 0.40, "features": 0.40, "eta": 0.05, "rho0": 0.05, "boundary": 0.10},
    PAPER: {"features": 0.25, "eta": 0.25, "rho0": 0.25, "boundary": 0.25},
}
WEIGHTS = SCORES[EXTENDED]


@dataclass(frozen=True)
class Terms:
    """The five terms of one setting, each in [0, 1], lower is better."""

    logits: float
    features: float
    eta: float
    rho0: float
    boundary: float

    def weighted(self, score: str = EXTENDED) -> float:
        """Return the weighted sum of a score, which leaves out the terms that it does not have."""
        return sum(weight * getattr(self, name) for name, weight in SCORES[score].items())

    @property
    def score(self) -> float:
        """The extended score."""
        return self.weighted()

    def to_dict(self, score: str = EXTENDED) -> dict[str, float]:
        """Return the terms and a score of them."""
        return {"score": self.weighted(score), **asdict(self)}

    def below(self, other: Terms, score: str = EXTENDED) -> bool:
        """Whether no term is higher and one is lower: then all positive weights prefer it."""
        pairs = [(getattr(self, name), getattr(other, name)) for name in SCORES[score]]
        return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def check_score(name: str) -> str:
    """The name itself; raises unless there is such a score."""
    if name not in SCORES:
        raise ConfigError(f"score is {name!r}; accepted: {', '.join(SCORES)}")
    return name


def bounded(error: float) -> float:
    """n(e) = e / (1 + e), 1 for infinity and for NaN: a network that breaks is the worst."""
    return 1.0 if not math.isfinite(error) else error / (1 + error)
