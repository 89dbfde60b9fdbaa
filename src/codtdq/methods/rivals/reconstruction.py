"""Block-wise reconstruction: learned rounding and learned steps, one block after another.

Usage, inside a method:

    engine = Reconstruction(bench)             # copies the float model: after folding into norms,
    for site in bench.sites:                   # before installing any grids to start from
        bench.install(site, inputs=StaticUniform(...), weight=UniformWeight(...))
    engine.run()                               # learns, hardens, installs block after block

`run(loss=..., on_start=..., learnable=...)`: `loss(block_name, y, target, step) -> scalar` replaces
the squared error; rows of y are those of `engine.images` (indices into `engine.items`), target is
the float block's output. `on_start(block, data)` runs before a block is learned (data: BlockData).
There, `with engine.replacing(block, change):` lets `engine.float_model` run with the block's output
exchanged: `change(args, kwargs, output) -> output`, where `engine.quantized_output(block, args,
kwargs)` is what the quantized block gives: everything else stays float and gradients flow.
`learnable(site, quantizer) -> LearnableInput` chooses what is learned of an input quantizer (see
`learning.LearnableInput`); default: steps of `StaticUniform`, also inside `Rescaled`; others fixed.
`weights`: float weights by site where a method rescaled them after the engine was made.

Per block (BRECQ, Li et al., ICLR 2021; QDrop, Wei et al., ICLR 2022; AdaRound, Nagel et al., ICML
2020): inputs mix float and quantized-prefix values elementwise with p = 0.5, input quantizers drop
with p = 0.5 while learning and never afterwards, loss = squared error summed over channels, mean
over positions, + 0.01 * rounding penalty, beta 20 -> 2 after 20 % of the steps. A block is kept
only if its error on the cached quantized-prefix inputs fell; else it stays as it was installed.

Limits, all in the notes of the record: blocks are those of `blocks.find_blocks`, not the originals'
own lists (attention, MLP or stage by class name); what a block reads (twice: float and quantized)
and gives is kept for all images together within `cache_bytes`, so that blocks with large maps learn
from fewer images than the budget asks for.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.errors import ConfigError
from codtdq.methods.block_state import BlockStore, fingerprint
from codtdq.methods.rivals.block_data import BlockData, PrefixRunner
from codtdq.methods.rivals.block_learning import BUDGETS, Budget, learn_block
from codtdq.methods.rivals.blocks import MAX_SITES, Block, find_blocks
from codtdq.methods.rivals.learning import LearnableInput, learnable_input
from codtdq.methods.workbench import Workbench
from codtdq.operators.quantized import QuantOperator
from codtdq.planning.plan import Site
from codtdq.progress import track
from codtdq.schemes.base import InputScheme
from codtdq.schemes.inputs import FloatInput

Loss = Callable[[str, Tensor, Tensor, int], Tensor]
Learnable = Callable[[Site, InputScheme], LearnableInput]
CACHE_BYTES = 512 << 20  # of one block's inputs (both) and targets: fewer images if they need more
MEMO_BYTES = 256 << 20  # of finished blocks' outputs, per model


@dataclass(frozen=True)
class BlockReport:
    """How one block went."""

    name: str
    sites: int
    images: int
    steps: int
    before: float  # loss on cached quantized-prefix inputs, as installed
    after: float  # the same with hardened rounding and learned steps
    kept: bool
    undecided: float  # share of weights between 0 and 1 at the end of learning


class Reconstruction:
    """Reconstructs the model on a workbench; see the text of this file."""

    def __init__(
        self,
        bench: Workbench,
        *,
        budget: Budget | None = None,
        max_sites: int = MAX_SITES,
        cache_bytes: int = CACHE_BYTES,
        memo_bytes: int = MEMO_BYTES,
    ) -> None:
        if any(isinstance(site.module, QuantOperator) for site in bench.sites):
            raise ConfigError("Reconstruction copies the float model: make it before installing")
        self.bench = bench
        self.budget = BUDGETS[bench.budget] if budget is None else budget
        self.blocks = find_blocks(bench, max_sites=max_sites)
        self.float_model = copy.deepcopy(bench.model)
        self.items = list(itertools.islice(_single_images(bench), self.budget.images))
        self.images: Sequence[int] = ()  # that the current call of the loss is about
        self.reports: list[BlockReport] = []
        self._cache_bytes, self._max_sites = cache_bytes, max_sites
        self._runners = [
            PrefixRunner(model, self.items, memo_bytes) for model in (self.float_model, bench.model)
        ]

    def run(
        self,
        *,
        loss: Loss | None = None,
        on_start: Callable[[Block, BlockData], None] | None = None,
        learnable: Learnable | None = None,
        weights: dict[str, Tensor] | None = None,
    ) -> list[BlockReport]:
        """Reconstruct all blocks in order; finished ones are taken from `bench.state_dir`."""
        store = self._store()
        self.reports = []
        for index, block in enumerate(track(self.blocks, "reconstructing", len(self.blocks))):
            saved = store.restore(index, block) if store is not None else None
            if saved is not None:
                self._add(BlockReport(**saved))
                continue
            if not _anything_to_do(block):
                continue
            report = self._block(index, block, loss or squared_error, on_start, learnable, weights)
            self._add(report)
            if store is not None:
                store.save(index, block, asdict(report))
        self.bench.notes["reconstruction"] = self._summary()
        return self.reports

    def quantized_output(self, block: Block, args: Any, kwargs: Any) -> Tensor:
        """What the block of the quantized model, as it is installed now, gives."""
        output: Tensor = self.bench.model.get_submodule(block.name)(*args, **kwargs)
        return output

    @contextlib.contextmanager
    def replacing(
        self, block: Block, change: Callable[[Any, Any, Tensor], Tensor]
    ) -> Iterator[nn.Module]:
        """The float model with one block's output exchanged by `change(args, kwargs, output)`."""

        def hook(module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Tensor:
            return change(args, kwargs, output)

        target = self.float_model.get_submodule(block.name)
        handle = target.register_forward_hook(hook, with_kwargs=True)
        try:
            yield self.float_model
        finally:
            handle.remove()

    def _block(
        self,
        index: int,
        block: Block,
        loss: Loss,
        on_start: Callable[[Block, BlockData], None] | None,
        learnable: Learnable | None,
        weights: dict[str, Tensor] | None,
    ) -> BlockReport:
        done = self.blocks[:index]
        plain, quantized = (runner.capture(block, done) for runner in self._runners)
        data = BlockData(block, plain, quantized, self._cache_bytes)
        if on_start is not None:
            on_start(block, data)
        module = self.bench.model.get_submodule(block.name)
        simulated = [(site, _sim(site)) for site in block.sites]
        installed = [(sim, sim.weight_scheme, sim.input_scheme) for _, sim in simulated]
        before = self._error(data, module, loss)

        def heard(name: str, y: Tensor, target: Tensor, step: int, images: Sequence[int]) -> Tensor:
            self.images = images
            return loss(name, y, target, step)

        steps, undecided = learn_block(
            data,
            module,
            rounding={
                sim: (weights or {}).get(site.name, self._float_weight(site))
                for site, sim in simulated
            },
            inputs={
                sim: learnable_input(sim.input_scheme)
                if learnable is None
                else learnable(site, sim.input_scheme)
                for site, sim in simulated
                if not isinstance(sim.input_scheme, FloatInput)
            },
            loss=heard,
            budget=self.budget,
            generator=self.bench.generator("block", block.name),
        )
        after = self._error(data, module, loss)
        kept = after < before
        if not kept:
            for sim, weight_scheme, quantizer in installed:
                sim.weight_scheme, sim.input_scheme = weight_scheme, quantizer
                sim.refresh()
        return BlockReport(
            block.name, len(block.sites), data.images, steps, before, after, kept, undecided
        )

    def _error(self, data: BlockData, module: nn.Module, loss: Loss) -> float:
        """Mean loss on the quantized-prefix inputs, as the block is now."""
        total, count = 0.0, 0
        with torch.no_grad():
            for images, (args, kwargs), target in data.batches(self.budget.batch):
                self.images = images
                value = loss(data.block.name, module(*args, **kwargs), target, self.budget.steps)
                total, count = total + float(value) * len(images), count + len(images)
        return total / max(count, 1)

    def _float_weight(self, site: Site) -> Tensor:
        weight = self.float_model.get_submodule(site.name).weight
        assert isinstance(weight, Tensor)
        return weight.detach()

    def _store(self) -> BlockStore | None:
        if self.bench.state_dir is None:
            return None
        facts = {
            "settings": type(self.bench.config).__name__,
            "numbers": asdict(self.budget),
            "blocks": [(b.name, [s.name for s in b.sites]) for b in self.blocks],
            "schemes": [_sim(s).input_scheme.record() for b in self.blocks for s in b.sites],
        }
        return BlockStore(self.bench.state_dir, fingerprint(self.bench, self.items, facts))

    def _add(self, report: BlockReport) -> None:
        self.reports.append(report)
        self.bench.steps += report.steps

    def _summary(self) -> dict[str, Any]:
        reports = self.reports
        return {
            **asdict(self.budget),
            "beta": list(self.budget.beta),
            "images_asked": self.budget.images,
            "images_given": len(self.items),
            "images": min((r.images for r in reports), default=0),
            "blocks_with_fewer_images": sum(r.images < len(self.items) for r in reports),
            "cache_bytes": self._cache_bytes,
            "blocks_found": len(self.blocks),
            "largest_block": max((len(b.sites) for b in self.blocks), default=0),
            "max_sites": self._max_sites,
            "blocks": len(reports),
            "kept": sum(r.kept for r in reports),
            "not_kept": [r.name for r in reports if not r.kept],
            "undecided": round(sum(r.undecided for r in reports) / max(len(reports), 1), 5),
        }


def squared_error(name: str, y: Tensor, target: Tensor, step: int) -> Tensor:
    """Squared error summed over channels, mean over everything else.

    Channels are axis 1 of maps [B, C, H, W] and the last axis of tokens.
    """
    return (y - target).square().sum(1 if y.ndim == 4 else -1).mean()


def _single_images(bench: Workbench) -> Iterator[Any]:
    for batch in bench.batches():
        if isinstance(batch, Tensor):
            yield from batch.split(1)
        else:
            yield batch


def _anything_to_do(block: Block) -> bool:
    return any(
        not isinstance(_sim(s).input_scheme, FloatInput) or _sim(s).weight_scheme.kind != "float"
        for s in block.sites
    )


def _sim(site: Site) -> QuantOperator:
    if not isinstance(site.module, QuantOperator):
        raise ConfigError(f"{site.name} is not installed; install every site before run()")
    return site.module


__all__ = ["BUDGETS", "Block", "BlockData", "BlockReport", "Budget", "Reconstruction"]
