"""Operators as matrix products at sampled output positions.

What a Linear or a convolution gives at one output position is a product of its weight with the
inputs that it reads there. With those inputs gathered, a search over scales costs the same for
every operator, however large its maps are, and groups, padding, stride and dilation are right for
every candidate at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codtdq.methods.collect import ROW_VALUES


@dataclass
class Fields:
    """The inputs that R sampled output positions read; k positions of the kernel."""

    values: Tensor  # [R, C, k], zeros where the operator pads
    inside: Tensor  # [R, 1, k] 1 where the input is, 0 where zeros are padded after quantization
    groups: int

    def matrix(self, values: Tensor | None = None) -> Tensor:
        """[groups, R, K] with K = C/groups * k: rows in the order of the flattened weight."""
        x = self.values if values is None else values
        rows, channels, k = x.shape
        grouped = x.reshape(rows, self.groups, channels // self.groups * k)
        return grouped.transpose(0, 1).contiguous()

    @staticmethod
    def join(parts: Iterable[Fields]) -> Fields:
        """All rows of several samples of one operator."""
        chosen = list(parts)
        return Fields(
            torch.cat([part.values for part in chosen]),
            torch.cat([part.inside for part in chosen]),
            chosen[0].groups,
        )


def sample_positions(
    module: nn.Module, x: Tensor, y: Tensor, per_image: int, images: int, generator: torch.Generator
) -> Tensor:
    """[R] numbers of output positions, at most `per_image` for each image of this call.

    images: how many will be seen in all, so that one operator keeps at most ROW_VALUES inputs.
    """
    size = weight_of(module).flatten(1).shape[1] * getattr(module, "groups", 1)
    batch, total = _count_positions(module, x, y)
    share = min(per_image, max(1, ROW_VALUES // (size * max(images, 1))))
    return torch.randperm(total, generator=generator)[: share * batch]


def fields_at(module: nn.Module, x: Tensor, y: Tensor, positions: Tensor) -> Fields:
    """Gather what the operator reads for the output positions [R] of its output y."""
    if isinstance(module, nn.Linear):
        values = x.reshape(-1, x.shape[-1])[positions].unsqueeze(-1)
        return Fields(values, torch.ones(len(positions), 1, 1), 1)
    assert isinstance(module, nn.Conv2d | nn.Conv1d)
    maps = x if x.ndim == module.weight.ndim else x.unsqueeze(0)
    padding = list(module._reversed_padding_repeated_twice)
    zeros = module.padding_mode == "zeros"
    mode = "constant" if zeros else module.padding_mode
    ones = torch.ones_like(maps[:1, :1])
    padded = F.pad(maps, padding, mode=mode) if any(padding) else maps
    inside = F.pad(ones, padding) if zeros and any(padding) else torch.ones_like(padded[:1, :1])
    image, rows, columns = _windows(module, y, positions)
    if maps.ndim == 3:  # a Conv1d is a Conv2d of height 1
        padded, inside = padded.unsqueeze(2), inside.unsqueeze(2)
    read = padded[image.view(-1, 1, 1), :, rows, columns]  # [R, kh, kw, C]
    values = read.permute(0, 3, 1, 2).flatten(2)
    mask = inside[0, 0][rows, columns].flatten(1).unsqueeze(1)
    return Fields(values.contiguous(), mask, module.groups)


def outputs_at(module: nn.Module, y: Tensor, positions: Tensor) -> Tensor:
    """[R, O] of an output-shaped tensor (outputs or their gradients) at the positions."""
    if isinstance(module, nn.Linear):
        return y.reshape(-1, y.shape[-1])[positions]
    assert isinstance(module, nn.Conv2d | nn.Conv1d)
    maps = (y if y.ndim == module.weight.ndim else y.unsqueeze(0)).flatten(2)
    return maps[positions // maps.shape[2], :, positions % maps.shape[2]]


def by_group(rows: Tensor, groups: int) -> Tensor:
    """[R, O] -> [groups, R, O/groups], the layout of grouped products."""
    return rows.reshape(rows.shape[0], groups, -1).transpose(0, 1)


def weight_of(module: nn.Module) -> Tensor:
    """The operator's weight as it is now, without gradient."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight.detach()


def weight_matrix(weight: Tensor, groups: int) -> Tensor:
    """Weight [O, C/groups, ...] as [groups, K, O/groups]: `Fields.matrix` @ it is the output."""
    return weight.flatten(1).reshape(groups, weight.shape[0] // groups, -1).transpose(1, 2)


def _count_positions(module: nn.Module, x: Tensor, y: Tensor) -> tuple[int, int]:
    """(images, output positions of all of them) of one call."""
    if isinstance(module, nn.Linear):
        total = x.numel() // x.shape[-1]
        return (x.shape[0] if x.ndim > 1 else 1), total
    weight = weight_of(module)
    batch = y.shape[0] if y.ndim == weight.ndim else 1
    return batch, y.numel() // weight.shape[0]


def _windows(
    module: nn.Conv2d | nn.Conv1d, y: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Image [R], and padded-input rows [R, kh, 1] and columns [R, 1, kw] of output positions."""
    flat = isinstance(module, nn.Conv1d)
    width = y.shape[-1]
    height = 1 if flat else y.shape[-2]
    kernel, stride, dilation = (
        (1, *pair) if flat else pair
        for pair in (module.kernel_size, module.stride, module.dilation)
    )
    image, place = positions // (height * width), positions % (height * width)
    rows, columns = (
        (start * stride[i]).view(-1, 1) + torch.arange(kernel[i]) * dilation[i]
        for i, start in enumerate((place // width, place % width))
    )
    return image, rows.unsqueeze(2), columns.unsqueeze(1)
