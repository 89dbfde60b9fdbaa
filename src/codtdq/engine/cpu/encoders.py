"""From an operator's input to the codes that a product reads: one encoder per lowered form."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from codtdq.engine.cpu.fit import product_group, stored_group
from codtdq.engine.cpu.operators import quant_spec
from codtdq.engine.cpu.products import Codes, encode_fixed, encode_groups, largest_magnitude
from codtdq.engine.cpu.searched import encode_pixels, encode_tokens, search_spec
from codtdq.numerics.affine import EPS, step_of
from codtdq.numerics.grouping import split
from codtdq.numerics.projection import project
from codtdq.numerics.spec import ActivationSpec
from codtdq.schemes.lowered import LoweredInput, ProjectedForm, SearchedForm


class ProjectedEncoder:
    """Token groups under DCRP, or one range for all tokens or for each channel."""

    compiles = True  # every step has a name that torch's compiler knows
    pixels = False

    def __init__(self, form: ProjectedForm, inputs: int, weight_group: int | None) -> None:
        act = form.spec
        self._act, self._fixed = act, form.radius
        self.group = product_group(inputs, act, weight_group)
        guarded = act.projection == "guarded"
        self._settings: tuple[Any, ...] = (
            act.bits,
            self.group,
            act.literal,
            guarded,
            act.percentile,
            act.tau,
            act.zero_ratio,
        )
        self._spec = quant_spec(*self._settings)

    def view(self, x: Tensor, linear: bool) -> Tensor:
        """Rows [N, C] of a Linear's input; maps [B, C, H, W] as they are."""
        return x.reshape(-1, x.shape[-1]) if linear else x

    def images(self, view: Tensor) -> int:
        """Ranges do not depend on how rows are cut into images."""
        return 0

    def encode(self, view: Tensor) -> Codes:
        """Codes of a view."""
        act, compiling = self._act, torch.compiler.is_compiling()
        ops = torch.ops.codtdq
        if act.mode == "per_token_group":
            if compiling:
                codes, step, sums = ops.encode_groups(view, self.group, *self._settings)
                return Codes(codes, step, sums, act.bits)
            return encode_groups(view, self._spec, self.group)
        radius, step = shared_range(view, act, self._fixed)
        if compiling:
            codes, sums = ops.encode_fixed(view, self.group, act.bits, radius, step)
            return Codes(codes, step, sums, act.bits)
        return encode_fixed(view, act.bits, radius, step, self.group)


class SearchedEncoder:
    """Groups on searched grids, behind a transform of every token."""

    compiles = False

    def __init__(self, form: SearchedForm, inputs: int) -> None:
        self._grid = form.grid
        self._spec = search_spec(form.grid, form.transform)
        self.pixels = form.grid.pixels
        self.group = form.grid.group if self.pixels else stored_group(inputs, form.grid)

    def view(self, x: Tensor, linear: bool) -> Tensor:
        """[B, C, N]: images count, where each brings the unit of its scales."""
        if not linear:
            return x.flatten(2)
        tokens = x.reshape(1, 1, -1) if x.ndim == 1 else x.reshape(x.shape[0], -1, x.shape[-1])
        return tokens.transpose(1, 2)

    def images(self, view: Tensor) -> int:
        """Into which the view is cut."""
        return view.shape[0]

    def encode(self, view: Tensor) -> Codes:
        """Codes of a view."""
        tokens = view.transpose(1, 2)
        if self.pixels:
            return encode_pixels(tokens, self._spec, self._grid.reach)
        return encode_tokens(tokens, self._spec, self.group, self._grid.reach)


Encoder = ProjectedEncoder | SearchedEncoder


def encoder_for(form: LoweredInput, inputs: int, weight_group: int | None) -> Encoder:
    """The encoder of a lowered form."""
    if isinstance(form, ProjectedForm):
        return ProjectedEncoder(form, inputs, weight_group)
    return SearchedEncoder(form, inputs)


def shared_range(x: Tensor, act: ActivationSpec, fixed: Tensor | None) -> tuple[Tensor, Tensor]:
    """(radius, step) that tokens share, [1] or [C], exactly as the reference finds them.

    x: rows [N, C] or maps [B, C, *positions]; fixed: calibrated radii.
    """
    if fixed is None and (act.tau is not None or act.zero_ratio is not None or act.percentile):
        tokens = x if x.ndim == 2 else x.flatten(2).transpose(1, 2)
        found = project(split(tokens, act), act)
        return found.radius, found.step
    each = act.mode == "per_channel"
    if torch.compiler.is_compiling():
        radius = torch.ops.codtdq.largest_magnitude(x, each)
    else:
        radius = largest_magnitude(x, per_channel=each)
    if fixed is not None:  # a NaN in the input still shows
        radius = torch.where(radius.isnan(), radius, fixed.float())
    radius = radius.clamp(min=EPS)
    return radius, step_of(radius, act.bits)
