"""Attention in the engine: heads of sets of tokens, each in cache."""

from __future__ import annotations

from ctypes import byref

import torch
from torch import Tensor

from codtdq.engine.cpu import library
from codtdq.engine.cpu.interface import Attention, Heads, ScoreTable
from codtdq.errors import UnsupportedError

PRODUCTS = {"float32": 0, "int16": 1}


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    out: Tensor | None = None,
    products: str = "int16",
) -> Tensor:
    """softmax(q k^T scale + bias + mask) v of float32 q, k, v [batch, heads, tokens, channels].

    Any strides but those of the channels, which lie side by side; scale: 1 / sqrt(channels) unless
    told. bias, mask: [batch or 1, heads or 1, queries, keys]; a mask of n sets of tokens repeats.
    """
    batch, heads, queries, depth = q.shape
    keys, width = v.shape[2:]
    y = torch.empty(batch, queries, heads, width).transpose(1, 2) if out is None else out
    given = Attention(batch, heads, queries, keys, depth, width)
    given.q, given.k, given.v, given.y = (_heads(x) for x in (q, k, v, y))
    given.bias[0], given.bias[1] = _table(bias, q, keys), _table(mask, q, keys)
    given.scale = depth**-0.5 if scale is None else scale
    given.products = PRODUCTS[products]
    library.check(library.engine().cod_attend(byref(given), torch.get_num_threads()))
    return y


def _heads(x: Tensor) -> Heads:
    if x.dtype != torch.float32 or (x.stride(3) != 1 and x.shape[3] > 1):
        raise UnsupportedError(
            f"attention over {x.dtype} with strides {x.stride()}; accepted: float32, channels side "
            "by side"
        )
    return Heads(x.data_ptr(), None, x.stride(0), x.stride(1), x.stride(2))


def _table(x: Tensor | None, q: Tensor, keys: int) -> ScoreTable:
    if x is None:
        return ScoreTable()
    heads, queries = q.shape[1:3]
    fits = x.ndim == 4 and q.shape[0] % x.shape[0] == 0 and x.shape[1] in (1, heads)
    if not fits or x.shape[2:] != (queries, keys) or x.dtype != torch.float32 or x.stride(3) != 1:
        raise UnsupportedError(
            f"a {x.dtype} table of scores {tuple(x.shape)}; accepted: float32 "
            f"[batch, {heads} or 1, {queries}, {keys}]"
        )
    head = x.stride(1) if x.shape[1] > 1 else 0
    return ScoreTable(x.data_ptr(), x.shape[0], x.stride(0), head, x.stride(2))
