"""Tuning of PQ-SAM: grids and transforms of all operators at once, on the network's outputs.

Every learned value is relative to its start: step = step_0 exp(theta), s = s_0 exp(theta),
v = v_0 + s_0 theta. Progress is kept in one file that is replaced atomically; a run that goes on
from it ends with the same bits as one that was never stopped.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.errors import CalibrationError, CheckpointError
from codtdq.io import write_state
from codtdq.methods.rivals.gadt import GroupedTransform
from codtdq.numerics.affine import code_limits, fake_shifted
from codtdq.numerics.straight_through import fake_shifted_ste
from codtdq.operators.observing import run_model
from codtdq.operators.quantized import QuantOperator
from codtdq.progress import track
from codtdq.schemes.weights import UniformWeight, from_group_rows, group_rows

STATE_FILE = "pq-sam.pt"
SAVE_EVERY = 20  # steps


class TunedOperator:
    """The learned values of one operator: of its weight grids, its transform, or both.

    weight: the float one; store: the grids that it starts on, or None where it stays float.
    """

    def __init__(self, module: QuantOperator, weight: Tensor, store: UniformWeight | None) -> None:
        self.module, self.weight, self.store = module, weight, store
        inputs = module.input_scheme
        self.inputs = inputs if isinstance(inputs, GroupedTransform) else None
        self.starts: dict[str, Tensor] = {}
        if store is not None:
            self.starts["weight_step"] = store.step.clone()
            self._rows = group_rows(weight, store.group)
        if self.inputs is not None:
            for name in ("step", "scale", "shift"):
                self.starts[name] = getattr(self.inputs, name).clone()
        self.thetas = {
            name: torch.zeros_like(start, requires_grad=True) for name, start in self.starts.items()
        }

    def values(self) -> dict[str, Tensor]:
        """What the learned values are now, with gradients."""
        found = {
            name: start * self.thetas[name].exp()
            for name, start in self.starts.items()
            if name != "shift"
        }
        if self.inputs is not None:
            found["shift"] = self.starts["shift"] + self.starts["scale"] * self.thetas["shift"]
        return found

    def write(self, *, learning: bool) -> None:
        """Put the values into the operator: with gradients, or as they are at inference."""
        values = self.values()
        if not learning:
            values = {name: value.detach() for name, value in values.items()}
        if self.inputs is not None:
            for name in ("step", "scale", "shift"):
                setattr(self.inputs, name, values[name])
        if self.store is not None:
            fake = fake_shifted_ste if learning else fake_shifted
            limits = code_limits(self.store.code_bits, False)
            rows = fake(self._rows, values["weight_step"], self.store.zero.float(), *limits)
            w_hat = from_group_rows(rows, self.weight.shape)
            self.module.register_buffer("weight_cache", w_hat, persistent=False)

    def finish(self) -> None:
        """Store the weight as codes on its learned grids."""
        self.write(learning=False)
        if self.store is not None:
            self.module.weight_scheme = UniformWeight.quantize(
                self.weight,
                self.store.code_bits,
                step=self.values()["weight_step"].detach(),
                zero=self.store.zero.float(),
                group=self.store.group,
            )
        self.module.refresh()


@dataclass(frozen=True)
class TuningPlan:
    """How long and how fast."""

    steps: int
    batch: int
    rate: float  # of Adam, falling to 0 by a cosine
    seed: int = 0

    def rate_at(self, step: int) -> float:
        """The rate of one step."""
        return self.rate * 0.5 * (1 + math.cos(math.pi * step / max(self.steps, 1)))


@dataclass(frozen=True)
class TuningResult:
    """Losses on held-out images before and after, and where the run went on from a file."""

    start_loss: float
    tuned_loss: float
    resumed_at: int

    @property
    def improved(self) -> bool:
        """Whether the tuned values are kept."""
        return self.tuned_loss < self.start_loss


class OutputTuner:
    """Learns the values of all operators of `student` so that its outputs are those of `teacher`.

    batches: tensors [1, 3, H, W], or whatever the model takes.
    """

    def __init__(
        self,
        student: nn.Module,
        teacher: nn.Module,
        operators: Sequence[TunedOperator],
        plan: TuningPlan,
        generator: Callable[..., torch.Generator],
        state_dir: Path | None = None,
    ) -> None:
        self.student, self.teacher, self.operators, self.plan = student, teacher, operators, plan
        self._generator = generator
        self._state = None if state_dir is None else state_dir / STATE_FILE
        self.thetas = [theta for op in operators for theta in op.thetas.values()]
        self._wanted: dict[int, list[Tensor]] = {}  # the teacher's outputs, by training image

    def tune(self, train: Sequence[Any], held_out: Sequence[Any]) -> TuningResult:
        """Take all steps; keep the result only if it is better on the held-out batches."""
        before = self.loss(held_out)
        optimizer = torch.optim.Adam(self.thetas, fused=True)
        done = self._resume(optimizer)
        resumed_at = done
        for step in track(range(done, self.plan.steps), "tuning", self.plan.steps - done):
            self._step(optimizer, step, train)
            done = step + 1
            if self._state is not None and (done % SAVE_EVERY == 0 or done == self.plan.steps):
                self._save(optimizer, done)
        after = self.loss(held_out)
        result = TuningResult(before, after, resumed_at)
        if not result.improved:
            for theta in self.thetas:
                theta.data.zero_()
        return result

    def loss(self, batches: Sequence[Any]) -> float:
        """Mean distance as at inference."""
        with torch.no_grad():
            for op in self.operators:
                op.write(learning=False)
            distances = [self._distance(batch, self._taught(batch)) for batch in batches]
            return sum(map(float, distances)) / max(len(batches), 1)

    def _step(self, optimizer: torch.optim.Adam, step: int, train: Sequence[Any]) -> None:
        for group in optimizer.param_groups:
            group["lr"] = self.plan.rate_at(step)
        optimizer.zero_grad(set_to_none=True)
        picks = self._picks(step, len(train))
        parts = _joined([train[index] for index in picks])
        for part in parts:
            wanted = self._taught(part) if len(picks) > 1 else self._taught_once(picks[0], part)
            for op in self.operators:
                op.write(learning=True)
            (self._distance(part, wanted) / len(parts)).backward()
        optimizer.step()

    def _picks(self, step: int, count: int) -> list[int]:
        """The batches of a step: shuffled epochs one after the other, whatever ran before."""
        picks = []
        for position in range(step * self.plan.batch, (step + 1) * self.plan.batch):
            epoch, index = divmod(position, count)
            order = torch.randperm(count, generator=self._generator("epoch", epoch))
            picks.append(int(order[index]))
        return picks

    def _taught(self, batch: Any) -> list[Tensor]:
        """What the float network gives."""
        with torch.no_grad():
            return list(float_tensors(run_model(self.teacher, batch)))

    def _taught_once(self, index: int, image: Any) -> list[Tensor]:
        """The same for one training image, which a long run meets again in every epoch."""
        if index not in self._wanted:
            self._wanted[index] = self._taught(image)
        return self._wanted[index]

    def _distance(self, batch: Any, wanted: list[Tensor]) -> Tensor:
        found = list(float_tensors(run_model(self.student, batch)))
        if not wanted:
            raise CalibrationError("the model returns no float tensor; PQ-SAM tunes on its outputs")
        terms = [
            (y_hat - y).square().mean() / y.square().mean().clamp(min=1e-12)
            for y_hat, y in zip(found, wanted, strict=True)
        ]
        return torch.stack(terms).mean()

    def _signature(self) -> str:
        digest = hashlib.sha256(repr(self.plan).encode())
        for op in self.operators:
            for name, start in op.starts.items():
                digest.update(name.encode() + start.numpy().tobytes())
        return digest.hexdigest()

    def _save(self, optimizer: torch.optim.Adam, done: int) -> None:
        assert self._state is not None
        state = {
            "signature": self._signature(),
            "step": done,
            "thetas": [theta.detach() for theta in self.thetas],
            "optimizer": optimizer.state_dict(),
        }
        try:
            write_state(self._state, state)
        except OSError as error:
            raise CheckpointError(f"cannot write {self._state}: {error.strerror}") from error

    def _resume(self, optimizer: torch.optim.Adam) -> int:
        """Steps done by an earlier run of the same job; the state of another job is not used."""
        if self._state is None or not self._state.exists():
            return 0
        try:
            state = torch.load(self._state, weights_only=True)
            if state["signature"] != self._signature():
                return 0
            for theta, value in zip(self.thetas, state["thetas"], strict=True):
                theta.data.copy_(value)
            optimizer.load_state_dict(state["optimizer"])
            return int(state["step"])
        except Exception as error:  # a damaged file fails in many ways
            raise CheckpointError(
                f"{self._state} cannot be read ({type(error).__name__}); delete it to start again"
            ) from error


def float_tensors(output: Any) -> Iterator[Tensor]:
    """The float tensors of whatever a network returns, in order."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from float_tensors(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from float_tensors(value)


def _joined(parts: list[Any]) -> list[Any]:
    """Images of one shape as one batch; anything else one after the other."""
    tensors = [part for part in parts if isinstance(part, Tensor)]
    if len(tensors) == len(parts) and len({part.shape[1:] for part in tensors}) == 1:
        return [torch.cat(tensors)]
    return parts
