"""A config that meets a metric budget with as few protected operators as a greedy search finds.

1. Operators stay float (`skip_patterns`) from the most harmful on: the shortest such list that
   meets the budget is found by doubling and bisection.
2. Going back from the least harmful one, each is quantized again if the budget allows, else given
   8-bit inputs (`keep_a8_patterns`) if that is enough, else left float.

Every step quantizes the model by the config it would write and scores it: the proposal is measured,
not predicted. S need not fall evenly, so the list is not always the shortest there is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from glob import escape
from typing import Any

from torch import nn

from codtdq.errors import ConfigError
from codtdq.lab.diagnosis.sensitivity import Score, Sensitivity, SensitivityRow
from codtdq.methods import quantize_model
from codtdq.planning import QuantConfig
from codtdq.progress import Progress


@dataclass(frozen=True)
class Proposal:
    """What was found: the config, its measured score, and whether that is within the budget."""

    config: QuantConfig
    score: float
    drop: float  # against all float
    budget: float
    skipped: tuple[str, ...]  # units that stay float
    eight: tuple[str, ...]  # units with 8-bit inputs
    evaluations: int

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON-ready form."""
        return {
            "score": self.score,
            "drop": self.drop,
            "budget": self.budget,
            "met": self.met,
            "skipped": list(self.skipped),
            "keep_a8": list(self.eight),
            "evaluations": self.evaluations,
            "config": self.config.to_dict(),
        }

    @property
    def met(self) -> bool:
        """Whether the measured drop is within the budget."""
        return self.drop <= self.budget


def check_budget(budget: float) -> None:
    """Raise unless a budget can be met."""
    if not budget >= 0:
        raise ConfigError(f"budget is {budget!r}; accepted: a metric difference of at least 0")


def propose(
    model: nn.Module,
    config: QuantConfig,
    sensitivity: Sensitivity,
    score: Score,
    *,
    budget: float,
    calibration: Any = None,
) -> Proposal:
    """Protect the most harmful units until the metric drops by at most `budget`."""
    check_budget(budget)
    rows = sensitivity.rows
    trials: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[QuantConfig, float]] = {}
    with Progress("searching a proposal") as bar:

        def drop(skipped: Sequence[SensitivityRow], eight: Sequence[SensitivityRow]) -> float:
            key = _key(skipped, eight)
            if key not in trials:
                trial = _config(config, skipped, eight)
                trials[key] = trial, score(quantize_model(model, trial, calibration))
                bar.step(note=f"{len(skipped)} float, {len(eight)} at 8 bits")
            return sensitivity.float_score - trials[key][1]

        count = _shortest(len(rows), lambda k: drop(rows[:k], ()) <= budget)
        skipped, eight = list(rows[:count]), list[SensitivityRow]()
        for row in reversed(rows[:count]):
            rest = [other for other in skipped if other is not row]
            if drop(rest, eight) <= budget:
                skipped = rest
            elif drop(rest, [row, *eight]) <= budget:
                skipped, eight = rest, [row, *eight]
        found = drop(skipped, eight)
    chosen, reached = trials[_key(skipped, eight)]
    return Proposal(
        chosen,
        reached,
        found,
        budget,
        tuple(r.unit for r in skipped),
        tuple(r.unit for r in eight),
        len(trials),
    )


def _shortest(count: int, enough: Callable[[int], bool]) -> int:
    """Return the smallest k in 0..count that is enough, by doubling and bisection; else count."""
    low, high = -1, 0
    while not enough(high):
        if high == count:
            return count
        low, high = high, min(max(1, 2 * high), count)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _key(
    skipped: Sequence[SensitivityRow], eight: Sequence[SensitivityRow]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(row.unit for row in skipped), tuple(row.unit for row in eight)


def _config(
    base: QuantConfig, skipped: Sequence[SensitivityRow], eight: Sequence[SensitivityRow]
) -> QuantConfig:
    """Return the base with exact names as patterns; a name's own * or [ is no wildcard."""
    floating = {name for row in skipped for name in row.operators}
    return base.replace(
        name=f"{base.name}-protected" if skipped or eight else base.name,
        skip_patterns=(*base.skip_patterns, *_patterns(skipped)),
        keep_a8_patterns=(*base.keep_a8_patterns, *_patterns(eight)),
        # an override of an operator that stays float would be a contradiction
        layer_overrides={n: dict(f) for n, f in base.layer_overrides if n not in floating},
    )


def _patterns(rows: Sequence[SensitivityRow]) -> tuple[str, ...]:
    return tuple(escape(name) for row in rows for name in row.operators)
