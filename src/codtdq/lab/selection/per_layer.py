"""A setting per operator: every candidate quantizes the same input of the same operator.

The network runs with quantized weights and float inputs. At each operator every candidate
quantizes what the operator reads, and its output is compared with the one for the exact input:

    score = 0.80 n(e) + 0.05 E + 0.05 R + 0.10 B        (terms as in `score`, of this operator)

with e the relative squared error of the operator's output. L and F, which exist for a whole network
only, give their weight to it. Candidates do not see each other's errors, so one pass decides all
operators; what the mixture does to the network is measured afterwards, by the score of `select`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.lab.selection.candidates import Candidate
from codtdq.lab.selection.features import logits_of
from codtdq.lab.selection.score import WEIGHTS, bounded
from codtdq.lab.selection.select import Selector
from codtdq.lab.selection.statistics import OperatorMeans
from codtdq.numerics import ActivationResult
from codtdq.operators import QuantOperator, listening, quant_operators
from codtdq.planning import CodTdqConfig, Site, make_plan
from codtdq.planning.units import projected_input
from codtdq.progress import Progress
from codtdq.schemes.inputs import FloatInput

DRIFT_WEIGHT = WEIGHTS["logits"] + WEIGHTS["features"]


@dataclass(frozen=True)
class LayerChoice:
    """What an operator gets."""

    name: str
    role: str
    candidate: Candidate
    score: float
    runner_up: float  # score of the next best setting: how clear the choice is

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON-ready form."""
        return {
            "name": self.name,
            "role": self.role,
            **self.candidate.fields(),
            "score": self.score,
            "runner_up": self.runner_up,
        }


@dataclass
class _Trial:
    """One candidate on one operator, summed over images."""

    candidate: Candidate
    site: Site
    means: OperatorMeans = field(default_factory=OperatorMeans)
    error: float = 0.0
    power: float = 0.0

    def compare(self, exact: Tensor, found: Tensor) -> None:
        exact = exact.double()
        self.error += (found.double() - exact).square().sum().item()
        self.power += (exact - exact.mean()).square().sum().item()

    def score(self) -> float:
        drift = self.error / self.power if self.power > 0 else 0.0
        means = self.means
        return (
            DRIFT_WEIGHT * bounded(drift)
            + WEIGHTS["eta"] * means.eta.value
            + WEIGHTS["rho0"] * means.rho0.value
            + WEIGHTS["boundary"] * means.boundary.value
        )


def select_per_layer(
    selector: Selector, candidates: Sequence[Candidate], *, images: int = 2
) -> tuple[CodTdqConfig, list[LayerChoice]]:
    """The base config with a `layer_overrides` entry per operator, and what was chosen.

    Operators whose setting no candidate changes (a shared range without bounds) and operators
    that no image reached get no entry.

    images: how many of the selector's images decide.
    """
    base = selector.base
    trials = _trials(selector, candidates)
    _run(selector, trials, images)
    overrides: dict[str, dict[str, Any]] = dict(base.to_dict()["layer_overrides"])
    choices = []
    for name, tried in trials.items():
        if not any(trial.means.eta.count for trial in tried):
            continue
        ranked = sorted(tried, key=lambda trial: (trial.score(), trial.site.effective_act_bits))
        best = ranked[0]
        overrides[name] = {**overrides.get(name, {}), **best.candidate.fields()}
        scores = best.score(), ranked[1].score()
        choices.append(LayerChoice(name, best.site.role, best.candidate, *scores))
    config = base.replace(name=f"{base.name}-per-layer", layer_overrides=overrides)
    return config, choices


def _trials(selector: Selector, candidates: Sequence[Candidate]) -> dict[str, list[_Trial]]:
    """By operator: one trial for every activation record that the candidates plan for it.

    What an operator gets is asked of the planner, so that bounds which the base keeps from a role
    or mode stay away from it here as well.
    """
    found: dict[str, dict[Any, _Trial]] = {}
    for candidate in candidates:
        plan = make_plan(selector.original, candidate.config(selector.base))
        for site in plan.quantized:
            spec = site.activation
            if spec is not None:
                actual = Candidate(spec.group_size, spec.tau, spec.zero_ratio)
                found.setdefault(site.name, {}).setdefault(spec, _Trial(actual, site))
    return {name: list(specs.values()) for name, specs in found.items() if len(specs) > 1}


def _run(selector: Selector, trials: dict[str, list[_Trial]], images: int) -> None:
    operators = quant_operators(selector.quantized)
    before = {name: operator.input_scheme for name, operator in operators.items()}
    batches = selector.reference.batches[:images]
    calls: dict[str, int] = {}
    image = 0

    def hook_of(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> None:
            assert isinstance(module, QuantOperator)
            x = args[0] if args else kwargs["input"]
            call = calls.get(name, 0)
            calls[name] = call + 1
            tokens = x.numel() // module.inputs
            on_band = selector.band.labels(image, name, call, tokens)
            for trial in trials[name]:
                _try(module, trial, x, output, on_band)

        return hook

    handles = [
        operators[name].register_forward_hook(hook_of(name), with_kwargs=True) for name in trials
    ]
    try:
        for operator in operators.values():
            operator.exchange(inputs=FloatInput())
        with torch.inference_mode(), Progress("selecting per layer", len(batches)) as bar:
            for index, batch in enumerate(batches):
                image = index  # read by the hooks
                calls.clear()
                logits_of(selector.quantized, batch)
                bar.step()
    finally:
        for handle in handles:
            handle.remove()
        for name, operator in operators.items():
            operator.exchange(inputs=before[name])


def _try(
    operator: QuantOperator, trial: _Trial, x: Tensor, exact: Tensor, on_band: Tensor | None
) -> None:
    """Run the operator once more, on its input as the trial quantizes it."""
    assert trial.site.activation is not None
    plain = operator.input_scheme

    def hear(name: str, x: Tensor, x_hat: Tensor, statistics: ActivationResult | None) -> None:
        assert statistics is not None
        trial.means.add(statistics, on_band)

    operator.exchange(inputs=projected_input(operator, trial.site.activation))
    try:
        with listening({trial.site.name: operator}, hear):
            trial.compare(exact, operator.forward(x))
    finally:
        operator.exchange(inputs=plain)
