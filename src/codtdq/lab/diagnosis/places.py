"""Follow places through a model: what every function of torch does to where values come from.

A `TorchFunctionMode` gives each tensor a companion of places (see `supports`) and applies to it
the same data movement as to the tensor: reshapes, permutations, rolls, pads, slices, windows.
What is not listed here yields values without a place; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from codtdq.lab.diagnosis.supports import NOWHERE, BoxTable, Cells, agree, resample, unite

# Functions that move values and mix none: applied to the places as they are.
_MOVES = frozenset(
    "view reshape permute transpose flatten unflatten contiguous clone unsqueeze squeeze expand "
    "roll movedim moveaxis swapaxes swapdims detach view_as reshape_as expand_as flip t adjoint "
    "repeat tile repeat_interleave chunk split tensor_split unbind narrow select index_select "
    "gather take_along_dim cat concat concatenate stack hstack vstack __getitem__ unfold "
    "pixel_shuffle pixel_unshuffle channel_shuffle".split()
)
# Functions of which each output value belongs where the input values of the same index do.
_POINTWISE = frozenset(
    "add sub mul div rsub neg abs exp log sqrt rsqrt square pow sin cos tan tanh sigmoid relu "
    "relu6 gelu silu mish elu leaky_relu hardswish hardsigmoid hardtanh softplus clamp clip "
    "maximum minimum where lerp addcmul addcdiv masked_fill dropout feature_dropout alpha_dropout "
    "dropout1d dropout2d layer_norm group_norm batch_norm instance_norm rms_norm normalize softmax "
    "log_softmax to float half double bfloat16 type type_as true_divide multiply subtract divide "
    "erf prelu logit round floor ceil nan_to_num".split()
)
_REDUCTIONS = frozenset("mean sum amax amin max min norm var std logsumexp argmax argmin".split())
_PRODUCTS = {"matmul": (0, 1), "bmm": (0, 1), "mm": (0, 1), "baddbmm": (1, 2), "addmm": (1, 2)}
_CONVOLUTIONS = frozenset("conv1d conv2d conv_transpose2d".split())
_POOLS = frozenset(
    "avg_pool2d max_pool2d adaptive_avg_pool2d adaptive_max_pool2d lp_pool2d interpolate "
    "upsample".split()
)


class PlaceTracer(TorchFunctionMode):
    """Keeps the places of every living tensor while a model runs."""

    def __init__(self) -> None:
        super().__init__()
        self.table = BoxTable()
        self._places: Any = WeakTensorKeyDictionary()

    def start(self, image: Tensor) -> None:
        """Give each pixel of an image [B, C, H, W] its own box."""
        height, width = image.shape[-2:]
        rows, cols = (_equal_cells(count) for count in (height, width))
        self.put(image, self.table.grid(rows, cols).expand(image.shape))

    def put(self, tensor: Tensor, places: Tensor) -> None:
        """Set the places of a tensor; of the same shape."""
        assert places.shape == tensor.shape, (places.shape, tensor.shape)
        self._places[tensor] = places

    def get(self, tensor: Tensor) -> Tensor | None:
        """Return the places of a tensor, None if none of its values has one."""
        places: Tensor | None = self._places.get(tensor)
        return places

    def keep_grid(self, source: Tensor, made: Tensor) -> None:
        """Places of a map [B, O, H', W'] that lies on the grid of a map [B, C, H, W]."""
        places = self.get(source)
        if places is not None:
            self.put(made, self._on_grid(places, made, mix=True))

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = _plain_name(getattr(func, "__name__", ""))
        if name in ("__setitem__", "copy_"):
            return self._assign(func, name, args, kwargs)
        output = func(*args, **kwargs)
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        known = {id(t): self._places[t] for t in tensors if t in self._places}
        if known:
            self._follow(func, name, args, kwargs, output, known)
        return output

    def _follow(
        self, func: Any, name: str, args: Any, kwargs: dict[str, Any], output: Any, known: Any
    ) -> None:
        first = known.get(id(args[0])) if args else None
        if name in _MOVES or (name == "__get__" and isinstance(output, Tensor)):
            self._move(func, args, kwargs, output, known)
        elif name == "pad" and first is not None:
            self.put(output, _pad(first, args, kwargs))
        elif name in _POINTWISE:
            self._pointwise(args, kwargs, output, known)
        elif name == "linear" and first is not None:
            self.put(output, unite(first, -1, self.table).expand(output.shape))
        elif name in _CONVOLUTIONS and first is not None:
            cells = kernel_cells(name, args, kwargs)
            self.put(output, self._on_grid(first, output, mix=True, cells=cells))
        elif name in _POOLS and first is not None:
            cells = kernel_cells(name, args, kwargs)
            self.put(output, self._on_grid(first, output, mix=False, cells=cells))
        elif name in _PRODUCTS:
            self._product(args, output, known, *_PRODUCTS[name])
        elif name == "scaled_dot_product_attention" and first is not None:
            self.put(output, agree(first, -1).expand(output.shape))  # where the query is
        elif name in _REDUCTIONS and first is not None:
            self._reduce(args, kwargs, output, first)

    def _move(self, func: Any, args: Any, kwargs: dict[str, Any], output: Any, known: Any) -> None:
        """The same call on places; tensors that only give an index or a shape stay."""

        def companion(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
                return leaf
            found = known.get(id(leaf))
            return torch.full(leaf.shape, NOWHERE) if found is None else found

        moved = func(*tree_map(companion, args), **tree_map(companion, kwargs))
        for made, places in zip(tree_leaves(output), tree_leaves(moved)):
            if isinstance(made, Tensor) and made.shape == places.shape:
                self.put(made, places)

    def _pointwise(self, args: Any, kwargs: dict[str, Any], output: Any, known: Any) -> None:
        """The places of the first operand that has any, then of the next."""
        if not isinstance(output, Tensor):
            return
        result: Tensor | None = None
        for leaf in tree_leaves((args, kwargs)):
            places = known.get(id(leaf)) if isinstance(leaf, Tensor) else None
            if places is None:
                continue
            try:
                places = places.expand(output.shape)
            except RuntimeError:  # a weight or statistic of another shape
                continue
            result = places if result is None else torch.where(result < 0, places, result)
        if result is not None:
            self.put(output, result)

    def _on_grid(
        self, places: Tensor, made: Tensor, *, mix: bool, cells: tuple[Cells, Cells] | None = None
    ) -> Tensor:
        """Places of a map's spatial result. mix: channels are summed, so their places unite."""
        nowhere = torch.full(made.shape, NOWHERE)
        if places.ndim != made.ndim or places.ndim not in (3, 4):
            return nowhere
        merged = unite(places, 1, self.table)
        if places.shape[2:] == made.shape[2:]:
            return merged.expand(made.shape) if mix else places.expand(made.shape)
        if places.ndim != 4:
            return nowhere
        size = (made.shape[2], made.shape[3])
        maps = [resample(one[0], size, self.table, cells) for one in merged]
        return torch.stack(maps)[:, None].expand(made.shape)

    def _product(self, args: Any, output: Tensor, known: Any, left: int, right: int) -> None:
        """Matrix product: a row of the left factor or a column of the right one has a place.

        Attention weights times values thus stay where the queries are, and channel attention
        where its columns are. Against a weight, which has no places, those of a token unite.
        """
        rows, cols = known.get(id(args[left])), known.get(id(args[right]))
        if (rows is not None and rows.ndim < 2) or (cols is not None and cols.ndim < 2):
            return
        result = torch.full(output.shape, NOWHERE)
        if rows is not None:
            one = unite(rows, -1, self.table) if cols is None else agree(rows, -1)
            result = one.expand(output.shape)
        if cols is not None:
            one = unite(cols, -2, self.table) if rows is None else agree(cols, -2)
            result = torch.where(result < 0, one.expand(output.shape), result)
        self.put(output, result)

    def _reduce(self, args: Any, kwargs: dict[str, Any], output: Any, places: Tensor) -> None:
        """Over channels a place stays; over positions none is left."""
        dims = kwargs.get("dim", args[1] if len(args) > 1 else None)
        keep = kwargs.get("keepdim", args[2] if len(args) > 2 else False)
        if dims is None or isinstance(dims, Tensor):
            return
        listed = [dims] if isinstance(dims, int) else list(dims)
        for dim in listed:
            places = agree(places, dim)
        if not keep:
            for dim in sorted((d % places.ndim for d in listed), reverse=True):
                places = places.squeeze(dim)
        for made in tree_leaves(output):
            if isinstance(made, Tensor) and made.shape == places.shape:
                self.put(made, places)

    def _assign(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """`full[index] = part` and `full.copy_(part)`: the part keeps its places."""
        result = func(*args, **kwargs)
        target, value = args[0], args[-1]
        known = self.get(value) if isinstance(value, Tensor) else None
        places = self.get(target)
        if known is None and places is None:
            return result
        places = torch.full(target.shape, NOWHERE) if places is None else places.clone()
        source = torch.tensor(NOWHERE) if known is None else known
        if name == "copy_":
            places.copy_(source)
        else:
            places[args[1]] = source
        self.put(target, places)
        return result


def _plain_name(name: str) -> str:
    """`__add__`, `__radd__`, `__iadd__` and `add_` are all "add"."""
    if name in ("__get__", "__getitem__", "__setitem__", "copy_"):
        return name
    if name.startswith("__") and name.endswith("__"):
        core = name.strip("_")
        names = {"truediv": "div", "matmul": "matmul"}
        for candidate in (core, core[1:]):
            candidate = names.get(candidate, candidate)
            if candidate in _POINTWISE or candidate in _PRODUCTS:
                return candidate
        return name
    return name.rstrip("_")


def _pad(places: Tensor, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """Return the places of a padded tensor: padding is nowhere, whatever values it repeats."""
    widths = kwargs["pad"] if "pad" in kwargs else args[1]
    return torch.nn.functional.pad(places, widths, value=NOWHERE)


# Where kernel size (for convolutions: the weight), stride, padding and dilation stand.
_GEOMETRY = {
    "conv2d": ("weight", "bias", "stride", "padding", "dilation"),
    "avg_pool2d": ("kernel_size", "stride", "padding"),
    "max_pool2d": ("kernel_size", "stride", "padding", "dilation"),
}


def kernel_cells(name: str, args: Any, kwargs: dict[str, Any]) -> tuple[Cells, Cells] | None:
    """Return the cells of a sliding kernel along height and width; None for what only has sizes."""
    if name not in _GEOMETRY:
        return None
    given = dict(zip(_GEOMETRY[name], args[1:])) | kwargs
    kernel = given["weight"].shape[2:] if "weight" in given else _pair(given["kernel_size"])
    stride = _pair(given.get("stride") or (1 if name == "conv2d" else kernel))
    dilation, padding = _pair(given.get("dilation", 1)), given.get("padding", 0)
    if isinstance(padding, str):
        padding = [
            (d * (k - 1) + 1) // 2 if padding == "same" else 0 for d, k in zip(dilation, kernel)
        ]
    sides = zip(kernel, stride, _pair(padding), dilation)
    height, width = (Cells.of_kernel(*side) for side in sides)
    return height, width


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[-1]))


def _equal_cells(count: int) -> Tensor:
    edges = torch.arange(count + 1, dtype=torch.float64) / count
    return torch.stack([edges[:-1], edges[1:]], -1)
