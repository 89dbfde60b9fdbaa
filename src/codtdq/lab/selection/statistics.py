"""eta and rho_0 of every quantized input, from the quantizers' own statistics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor, nn

from codtdq.lab.selection.band import PredictedBand
from codtdq.numerics import ActivationResult
from codtdq.operators import listening, quant_operators
from codtdq.schemes.projected import ProjectedRange


@dataclass
class Mean:
    """A streaming mean."""

    total: float = 0.0
    count: int = 0

    def add(self, values: Tensor) -> None:
        """Take in all values of a tensor."""
        self.total += values.double().sum().item()
        self.count += values.numel()

    @property
    def value(self) -> float:
        """The mean; 0 of nothing."""
        return self.total / self.count if self.count else 0.0


@dataclass
class OperatorMeans:
    """Statistics of one operator's inputs."""

    eta: Mean = field(default_factory=Mean)  # of eta / (1 + eta), over groups
    rho0: Mean = field(default_factory=Mean)  # over groups
    boundary: Mean = field(default_factory=Mean)  # rho_0 of groups on the band

    def add(self, result: ActivationResult, on_band: Tensor | None) -> None:
        """Take in one quantized input. on_band: bool [tokens], None where tokens have no place."""
        self.eta.add(bounded_eta(result))
        self.rho0.add(result.zero_mass)
        if on_band is not None and bool(on_band.any()):
            self.boundary.add(boundary_zero_mass(result, on_band))


class InputStatistics:
    """Streaming means per operator; each operator then counts once."""

    def __init__(self, model: nn.Module, band: PredictedBand) -> None:
        self._operators = {
            name: operator
            for name, operator in quant_operators(model).items()
            if isinstance(operator.input_scheme, ProjectedRange)
        }
        self._band = band
        self._seen = {name: OperatorMeans() for name in self._operators}

    @contextmanager
    def listening(self, image: int) -> Iterator[None]:
        """Inside the block the forward pass of one image is taken in."""
        calls = dict.fromkeys(self._operators, 0)

        def hear(name: str, x: Tensor, x_hat: Tensor, statistics: ActivationResult | None) -> None:
            assert statistics is not None
            tokens = x.numel() // max(x.shape[-1], 1)
            on_band = self._band.labels(image, name, calls[name], tokens)
            self._seen[name].add(statistics, on_band)
            calls[name] += 1

        with listening(self._operators, hear):
            yield

    def eta(self) -> float:
        """Return the mean over operators of the mean of eta / (1 + eta)."""
        return _average([seen.eta for seen in self._seen.values()])

    def rho0(self) -> float:
        """Return the mean over operators of the mean rho_0 of a group."""
        return _average([seen.rho0 for seen in self._seen.values()])

    def boundary_rho0(self) -> float:
        """Return the same over tokens on the band; 0 where no prediction has a band."""
        return _average([seen.boundary for seen in self._seen.values()])


def bounded_eta(result: ActivationResult) -> Tensor:
    """Return the bounded form eta / (1 + eta) of every group; 1 where the input was not finite."""
    return (result.eta / (1 + result.eta)).nan_to_num(nan=1.0, posinf=1.0)


def boundary_zero_mass(result: ActivationResult, on_band: Tensor) -> Tensor:
    """rho_0 of the groups of tokens on the band: [tokens, K], or [tokens] where a range is shared.

    on_band: [tokens]. Token groups inherit the label of their token (S4.4); without them it is the
    share of each token's evidence whose code is 0.
    """
    if result.spec.mode == "per_token_group":
        return result.zero_mass.reshape(-1, result.zero_mass.shape[-1])[on_band]
    channels = result.tokens.shape[-1]
    evidence = result.tokens.reshape(-1, channels)[on_band] != 0
    kept = result.tokens_hat.reshape(-1, channels)[on_band] != 0  # code 0 is value 0
    return (evidence & ~kept).sum(-1) / evidence.sum(-1).clamp(min=1)


def _average(means: list[Mean]) -> float:
    found = [mean.value for mean in means if mean.count]
    return sum(found) / len(found) if found else 0.0
