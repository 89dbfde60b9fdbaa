"""Run a model over calibration batches and see the inputs and outputs of its operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from codtdq.errors import CalibrationError
from codtdq.progress import Progress

See = Callable[[str, nn.Module, Tensor, Tensor], None]  # (name, module, input, output)


@contextmanager
def observing(modules: Mapping[str, nn.Module], see: See) -> Iterator[None]:
    """Call `see` after every call of these modules while the block runs."""

    def hook_of(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> None:
            x = args[0] if args else kwargs["input"]
            see(name, module, x.detach(), output.detach())

        return hook

    handles = [
        module.register_forward_hook(hook_of(name), with_kwargs=True)
        for name, module in modules.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def run_batches(
    model: nn.Module, batches: Iterable[Any], label: str = "calibrating", total: int | None = None
) -> None:
    """Run the model over the batches, without gradients and in eval mode, which is undone after.

    A batch is whatever the model takes: a tensor, a tuple of arguments or a dict of keywords.
    total: how many images there are, if that is known; else batches are counted.
    """
    if isinstance(batches, Tensor) or not isinstance(batches, Iterable):
        raise CalibrationError(
            f"calibration is a {type(batches).__name__}; pass a list or other iterable of batches"
        )
    modes = {module: module.training for module in model.modules()}
    count = 0
    try:
        model.eval()
        with torch.no_grad(), Progress(label, _known(batches, total)) as bar:
            for batch in batches:
                try:
                    run_model(model, batch)
                except (RuntimeError, TypeError, ValueError) as error:
                    text = " ".join(str(error).split())
                    raise CalibrationError(
                        f"calibration batch {count} does not fit the model: {text}"
                    ) from error
                count += 1
                bar.step(_images(batch) if total else 1)
    finally:
        for module, training in modes.items():
            module.training = training  # frozen parts of a model in training stay frozen
    if count == 0:
        raise CalibrationError("calibration got no batches; pass at least one")


def _known(batches: Iterable[Any], total: int | None) -> int | None:
    return total or (len(batches) if isinstance(batches, Sized) else None)


def _images(batch: Any) -> int:
    """Images of a batch; what is no tensor counts as one."""
    return len(batch) if isinstance(batch, Tensor) else 1


def run_model(model: nn.Module, batch: Any) -> Any:
    """Call a model with a batch: a tensor, a tuple of arguments or a dict of keywords."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple | list) else model(batch)
