"""Quantize one activation tensor: split (DSTG), project (DCRP), put on the grid, put back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from codtdq.errors import ConfigError
from codtdq.numerics import grouping
from codtdq.numerics.acceleration import faster
from codtdq.numerics.affine import EPS, decode, encode, step_of, to_codes
from codtdq.numerics.projection import Projection, all_finite, group_std, project
from codtdq.numerics.spec import ActivationSpec

LAYOUTS = ("last", "first")


@dataclass(frozen=True)
class ActivationResult:
    """A quantized activation and every statistic of its groups.

    Tensors shaped like the input: `x_hat`, `q`. Tensors with one value per group (shape [1] per
    tensor, [C] per channel, [..., K] per token group): the rest. Statistics that the quantizer
    itself does not need are computed on first use, from the same groups.
    """

    x_hat: Tensor  # dequantized values, in the dtype of the input
    projection: Projection
    spec: ActivationSpec
    _tokens: Tensor  # the input as tokens, channels last
    _shape: torch.Size  # shape of the input
    _layout: str

    @cached_property
    def _groups(self) -> grouping.Groups:
        return grouping.split(self._tokens, self.spec)

    @cached_property
    def _encoded(self) -> Tensor:
        """Codes as floats, in the shape of the groups."""
        c, step = self.radius.unsqueeze(-1), self.step.unsqueeze(-1)
        return encode(self._groups.values, c, step, self.spec.bits)

    @property
    def tokens(self) -> Tensor:
        """The input as tokens, channels last: [..., C]."""
        return self._tokens

    @property
    def tokens_hat(self) -> Tensor:
        """`x_hat` as tokens, in the shape of `tokens`."""
        first = self._layout == "first"
        return self.x_hat.flatten(2).transpose(1, 2) if first else self.x_hat

    @property
    def radius(self) -> Tensor:
        """Clip radius c of each group after projection."""
        return self.projection.radius

    @property
    def step(self) -> Tensor:
        """Step Delta of each group."""
        return self.projection.step

    @property
    def active(self) -> Tensor:
        """What set each radius: uint8 values of `Active`."""
        return self.projection.active

    @property
    def infeasible(self) -> Tensor:
        """Bounds that no radius can meet: bit 1 for C1, bit 2 for C2."""
        return self.projection.infeasible

    @cached_property
    def q(self) -> Tensor:
        """Integer codes, int8, in the shape of the input."""
        codes = to_codes(grouping.merge(self._encoded, self._tokens.shape, self.spec))
        return _to_layout(codes, self._shape, self._layout)

    @cached_property
    def sigma(self) -> Tensor:
        """Standard deviation of each group (unbiased=False, plus 1e-12)."""
        return group_std(self._groups)

    @cached_property
    def eta(self) -> Tensor:
        """Step-to-dispersion ratio Delta / sigma of each group (Eq. cg_Delta_eta_oneline)."""
        return self.step / self.sigma

    @cached_property
    def zero_mass(self) -> Tensor:
        """rho_0: share of elements whose code is 0 (Eq. rho0_def).

        Literal reading: of all elements, padding and exact zeros included. Default reading: of
        the elements that are not zero to begin with; 0 where a group has none.
        """
        zeroed = self._encoded == 0
        if self.spec.literal:
            return zeroed.float().mean(dim=-1)
        evidence = self._groups.values != 0
        lost = (zeroed & evidence).sum(-1)
        return lost / evidence.sum(-1).clamp(min=1)

    @cached_property
    def sqnr_db(self) -> float:
        """Signal to quantization noise of the whole tensor, in dB; infinite if nothing is lost."""
        x = self._groups.values.double()
        noise = (x - decode(self._encoded, self.step.unsqueeze(-1)).double()).square().sum().item()
        signal = x.square().sum().item()
        return math.inf if noise == 0 else 10 * math.log10(max(signal, 1e-300) / noise)

    @cached_property
    def clip_rate(self) -> Tensor:
        """Share of elements outside the radius (literal reading: padding counts as elements)."""
        outside = self._groups.values.abs() > self.radius.unsqueeze(-1)
        return outside.sum(-1) / self._groups.count()


def quantize(
    x: Tensor, spec: ActivationSpec, *, layout: str = "last", radius: Tensor | None = None
) -> ActivationResult:
    """Quantize x under `spec`.

    layout: "last" for [..., C]; "first" for [B, C, H, W] and [B, C, L], whose positions become
        tokens ([B, HW, C]) and are put back afterwards (S1.1).
    radius: fixed radii instead of dynamic ones, shape [1] (per_tensor) or [C] (per_channel).
    """
    if layout not in LAYOUTS:
        raise ConfigError(f"layout is {layout!r}; accepted: {', '.join(LAYOUTS)}")
    if not x.is_floating_point():
        raise ConfigError(
            f"activations of dtype {x.dtype} cannot be quantized; pass a float tensor"
        )
    tokens = x.flatten(2).transpose(1, 2) if layout == "first" else x
    if x.numel() == 0:
        return _empty(x, tokens, spec)
    found = faster("projected_groups", tokens, spec) if radius is None else None
    x_hat, projection = found or _by_torch(tokens, spec, radius)
    return ActivationResult(
        _to_layout(x_hat.to(x.dtype), x.shape, layout), projection, spec, tokens, x.shape, layout
    )


def _by_torch(
    tokens: Tensor, spec: ActivationSpec, radius: Tensor | None
) -> tuple[Tensor, Projection]:
    """The plain path, which defines what any other has to give."""
    groups = grouping.split(tokens, spec)
    projection = project(groups, spec) if radius is None else _fixed(groups, radius, spec)
    c, step = projection.radius.unsqueeze(-1), projection.step.unsqueeze(-1)
    encoded = encode(groups.values, c, step, spec.bits)
    return grouping.merge(decode(encoded, step), tokens.shape, spec), projection


def _fixed(groups: grouping.Groups, radius: Tensor, spec: ActivationSpec) -> Projection:
    """A projection with calibrated radii: NaN and infinities still show as NaN."""
    expected = groups.values.shape[:-1]
    if spec.mode == "per_token_group" or radius.shape != expected:
        raise ConfigError(
            f"fixed radii of shape {tuple(radius.shape)} do not fit mode {spec.mode!r}; "
            f"accepted: per_tensor [1] or per_channel [C]"
        )
    radius = radius.float().clamp(min=EPS).masked_fill(~all_finite(groups), math.nan)
    none = torch.zeros(expected, dtype=torch.uint8, device=radius.device)
    return Projection(radius, step_of(radius, spec.bits), none, none)


def _to_layout(tokens: Tensor, shape: torch.Size, layout: str) -> Tensor:
    """Tokens back in the layout of the input, without a copy."""
    return tokens if layout == "last" else tokens.transpose(1, 2).unflatten(2, shape[2:])


def _empty(x: Tensor, tokens: Tensor, spec: ActivationSpec) -> ActivationResult:
    """No elements, no ranges: statistics as empty as the tensor."""
    lead = (*tokens.shape[:-1], grouping.group_count(tokens.shape[-1], spec.group_size))
    shape = lead if spec.mode == "per_token_group" and 0 in lead else (0,)
    none = x.new_zeros(shape, dtype=torch.float32)
    flags = none.to(torch.uint8)
    projection = Projection(none, none, flags, flags)
    return _EmptyResult(x.clone(), projection, spec, tokens, x.shape, "last")


class _EmptyResult(ActivationResult):
    """The result of an empty tensor."""

    @cached_property
    def _groups(self) -> grouping.Groups:
        return grouping.Groups(self.radius.unsqueeze(-1), None)

    @cached_property
    def _encoded(self) -> Tensor:
        return self.radius.unsqueeze(-1)

    @cached_property
    def q(self) -> Tensor:
        return self.x_hat.to(torch.int8)
