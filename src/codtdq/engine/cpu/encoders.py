"""From an operator's input to the carriers that a product reads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from codtdq.engine.cpu.carry import Carriers, carry_fixed, carry_groups, carry_pixels, carry_spec
from codtdq.engine.cpu.interface import CarrySpec, QuantSpec
from codtdq.engine.cpu.operators import quant_spec
from codtdq.engine.cpu.products import largest_magnitude
from codtdq.numerics.affine import EPS, step_of
from codtdq.numerics.carry import shared_step
from codtdq.numerics.spec import ActivationSpec
from codtdq.schemes.lowered import LoweredInput, RowTransform


class Encoder:
    """Carriers of maps [B, C, *positions] or rows [N, C]."""

    def __init__(self, form: LoweredInput) -> None:
        self._how, self._step, self._zero = form.how, form.step, form.zero
        self._transform = form.transform or RowTransform()
        self._spec: QuantSpec | CarrySpec | None = None
        if form.how.bounds is not None:
            self._settings = settings_of(form.how.bounds)
            self._spec = quant_spec(*self._settings)
        if form.how.ranges == "pixel" or form.how.bounds is None:
            self._spec = carry_spec(form.how, form.transform)
        self._per_image = form.how.unit != "token"

    def view(self, x: Tensor, linear: bool) -> Tensor:
        """Rows [N, C] of a Linear's input; maps [B, C, H, W] as they are."""
        return x.reshape(-1, x.shape[-1]) if linear else x

    def encode(self, view: Tensor, *, multipliers: bool = False) -> Carriers:
        """Carriers of a view, with their multipliers if they are asked for."""
        how = self._how
        if torch.compiler.is_compiling():
            return self._encode_by_name(view)
        if how.ranges == "pixel":
            assert isinstance(self._spec, CarrySpec)
            own = how.unit == "channel"
            return carry_pixels(view, self._spec, per_channel=own, multipliers=multipliers)
        if how.ranges == "group":
            assert self._spec is not None
            return carry_groups(
                view, self._spec, per_image=self._per_image, multipliers=multipliers
            )
        step = self._shared_step(view)
        own = how.unit == "channel"
        return carry_fixed(
            view,
            how.bits,
            step,
            self._zero,
            per_image=self._per_image,
            per_channel=own,
            multipliers=multipliers,
        )

    def _shared_step(self, x: Tensor) -> Tensor:
        """The step that all tokens share, [1] or [C], exactly as the reference finds it."""
        if self._step is not None:
            return self._step
        act = self._how.bounds
        assert act is not None
        if act.tau is not None or act.zero_ratio is not None or act.percentile:
            tokens = x if x.ndim == 2 else x.flatten(2).transpose(1, 2)
            return shared_step(tokens, self._how)
        each = act.mode == "per_channel"
        if torch.compiler.is_compiling():
            radius = torch.ops.codtdq.largest_magnitude(x, each)
        else:
            radius = largest_magnitude(x, per_channel=each)
        return step_of(radius.clamp(min=EPS), act.bits)

    def _encode_by_name(self, view: Tensor) -> Carriers:
        """The same under torch's names, for a compiler to see."""
        how, ops = self._how, torch.ops.codtdq
        shift, scale, order, hadamard = self._transform
        searched = (how.bits, how.group, how.trials, how.asymmetric, how.zero_weight)
        if how.ranges == "pixel":
            own = how.unit == "channel"
            found = ops.carry_pixels(view, *searched, own)
        elif how.ranges == "group" and how.bounds is None:
            found = ops.carry_tokens(
                view, *searched, shift, scale, order, hadamard, self._per_image
            )
        elif how.ranges == "group":
            found = ops.carry_groups(view, *self._settings, self._per_image)
        else:
            own = how.unit == "channel"
            step = self._shared_step(view)
            found = ops.carry_fixed(view, how.bits, step, self._zero, self._per_image, own)
        rows = 1
        if self._per_image:
            rows = view.shape[0] if view.ndim == 2 else view.shape[2:].numel()
        return Carriers(found[0], found[1], rows)


def settings_of(act: ActivationSpec) -> tuple[Any, ...]:
    """The arguments of `quant_spec`."""
    return (
        act.bits,
        act.group_size,
        act.literal,
        act.projection == "guarded",
        act.percentile,
        act.tau,
        act.zero_ratio,
    )
