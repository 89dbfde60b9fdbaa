"""What blocks read and give, image by image: from the float model and from the quantized prefix.

A forward pass is stopped at the block in question. What blocks before it gave is kept as far as a
byte budget reaches, so that a pass only runs what stands between blocks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from codtdq.errors import CalibrationError
from codtdq.methods.rivals.blocks import Block, tensors_of
from codtdq.operators.observing import run_model

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class _Reached(Exception):
    """Not an error: the pass has shown what it was run for."""


@dataclass
class Seen:
    """Every call of a block for one image."""

    arguments: list[Arguments]
    outputs: list[Tensor]

    def size(self) -> int:
        """Bytes of all tensors."""
        kept = [*tensors_of(self.arguments), *self.outputs]
        return sum(t.numel() * t.element_size() for t in kept)


class PrefixRunner:
    """Runs one model up to a block, again and again, block after block."""

    def __init__(self, model: nn.Module, items: Sequence[Any], memo_bytes: int) -> None:
        self.model, self.items = model, items
        self._room = memo_bytes
        self._memo: dict[str, list[Tensor]] = {}

    def capture(self, block: Block, done: Sequence[Block]) -> Iterator[Seen]:
        """What `block` reads and gives for each image; the blocks in `done` are final."""
        fresh = [b for b in done if b.calls == 1 and b.name not in self._memo]
        for index, item in enumerate(self.items):
            with self._replaying(index), self._recording(fresh):
                seen = self._run(block, item)
            if index == len(self.items) - 1:
                for known in fresh:
                    self._settle(known.name)
            yield seen

    def _run(self, block: Block, item: Any) -> Seen:
        seen = Seen([], [])
        target = self.model.get_submodule(block.name)

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            # copies: a block may write into what it is given, and its reader into what it gives
            seen.arguments.append(tree_map(_copy, (tuple(args), dict(kwargs))))

        def after(module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> None:
            seen.outputs.append(output.detach().clone())
            if len(seen.outputs) == block.calls:
                raise _Reached

        handles = [
            target.register_forward_pre_hook(before, with_kwargs=True),
            target.register_forward_hook(after, with_kwargs=True),
        ]
        try:
            with torch.no_grad(), contextlib.suppress(_Reached):
                run_model(self.model, item)
        finally:
            for handle in handles:
                handle.remove()
        if len(seen.outputs) < block.calls:
            raise CalibrationError(
                f"{block.name} ran {len(seen.outputs)} times for one image and {block.calls} for "
                "another; reconstruction needs a model that runs alike for every image"
            )
        return seen

    @contextlib.contextmanager
    def _replaying(self, index: int) -> Iterator[None]:
        """Blocks whose output is kept for this image give it without running."""
        changed = []
        for name, outputs in self._memo.items():
            if index < len(outputs):
                module = self.model.get_submodule(name)
                module.forward = _constant(outputs[index])
                changed.append(module)
        try:
            yield
        finally:
            for module in changed:
                del module.forward

    @contextlib.contextmanager
    def _recording(self, blocks: Sequence[Block]) -> Iterator[None]:
        handles = [
            self.model.get_submodule(b.name).register_forward_hook(self._keeper(b.name))
            for b in blocks
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _keeper(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Tensor) -> None:
            if self._room >= _bytes(output):
                self._room -= _bytes(output)
                self._memo.setdefault(name, []).append(output.detach().clone())

        return hook

    def _settle(self, name: str) -> None:
        """Outputs are kept for all images or for none."""
        kept = self._memo.get(name, [])
        if len(kept) != len(self.items):
            self._room += sum(_bytes(t) for t in kept)
            self._memo[name] = []  # marks it as tried


class BlockData:
    """Inputs and targets of one block, within a byte budget.

    Batched tensors are joined along axis 0 (rows of an image together); tensors that are the same
    for every image are kept once.
    """

    def __init__(
        self, block: Block, float_seen: Iterator[Seen], quant_seen: Iterator[Seen], limit: int
    ) -> None:
        self.block = block
        self._float: list[Seen] = []
        self._quant: list[Seen] = []
        left = limit
        for plain, quantized in zip(float_seen, quant_seen):
            left -= plain.size() + quantized.size()
            if left < 0 and self._float:
                continue  # the passes go on, so that what they keep is whole
            quantized.outputs = []
            self._float.append(plain)
            self._quant.append(quantized)
        self.images = len(self._float)

    def batch(self, call: int, images: Sequence[int]) -> tuple[Arguments, Arguments, Tensor]:
        """(quantized-prefix arguments, float arguments, float output) of some images."""
        quant = self._join([self._quant[i].arguments[call] for i in images])
        plain = self._join([self._float[i].arguments[call] for i in images])
        return quant, plain, torch.cat([self._float[i].outputs[call] for i in images])

    def batches(self, size: int) -> Iterator[tuple[Sequence[int], Arguments, Tensor]]:
        """Everything once, in order: (images, quantized-prefix arguments, target)."""
        size = size if self.block.joinable else 1
        for call in range(self.block.calls):
            for start in range(0, self.images, size):
                images = range(start, min(start + size, self.images))
                quant, _, target = self.batch(call, images)
                yield images, quant, target

    def _join(self, parts: Sequence[Arguments]) -> Arguments:
        if len(parts) == 1:
            copied: Arguments = tree_map(_copy, parts[0])
            return copied
        flat = [list(tensors_of(part)) for part in parts]
        shared = self.block.shared or (False,) * len(flat[0])
        joined = iter(
            [
                flat[0][k].clone() if same else torch.cat([f[k] for f in flat])
                for k, same in enumerate(shared)
            ]
        )
        result: Arguments = tree_map(
            lambda leaf: next(joined) if isinstance(leaf, Tensor) else leaf, parts[0]
        )
        return result


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _copy(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


def _constant(output: Tensor) -> Callable[..., Tensor]:
    return lambda *args, **kwargs: output.clone()
