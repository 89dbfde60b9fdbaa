"""QuantLinear, QuantConv2d, QuantConv1d: an operator with a scheme for its input and its weight.

Each is-a Linear or Conv of the same name and attributes, so that code which looks at a model goes
on working. Which method made it shows only in what is plugged in: an `InputScheme` and a
`WeightScheme`, whose buffers are all that is saved. The dequantized weight is kept beside them as
a cache that is never saved. Unless a backend executes it, the operator simulates itself: x_hat and
W_hat are float values that lie on the schemes' grids, or whole numbers with their units where both
have such a form (`numerics.carrier`): the bits that an engine gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codtdq.numerics.activation import ActivationResult
from codtdq.numerics.carrier import Carried
from codtdq.operators.backed import BackedConv, BackedOperator
from codtdq.operators.carried import WholeWeight, carried_product, whole_weight
from codtdq.operators.tokens import conv_tokens, linear_tokens
from codtdq.planning.plan import Site
from codtdq.schemes.base import InputScheme, WeightScheme
from codtdq.schemes.inputs import FloatInput
from codtdq.schemes.weights import FloatWeight

_set_tracing_state: Any = torch._C._set_tracing_state  # type: ignore[attr-defined]
DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
Q = TypeVar("Q", bound="QuantOperator")
# called with (operator, x, x_hat, statistics); x and x_hat are tokens [B, N, C]
Listener = Callable[["QuantOperator", Tensor, Tensor, ActivationResult | None], None]


class QuantOperator(BackedOperator):
    """What the three operators share."""

    input_scheme: InputScheme
    weight_scheme: WeightScheme
    site: Site  # what the plan says of this operator
    compute_dtype: torch.dtype
    model_dtype: torch.dtype  # of the float weight: what code that asks for weight.dtype expects
    listener: Listener | None
    whole: tuple[WholeWeight | None] | None = None  # of the weight, once it was asked for

    @classmethod
    def adopt(
        cls: type[Q],
        module: nn.Module,
        site: Site,
        *,
        inputs: InputScheme | None = None,
        weight: WeightScheme | None = None,
        compute_dtype: str = "fp32",
        empty: bool = False,
    ) -> Q:
        """Turn a float operator into this class, in place; None leaves that side float.

        The object stays the same, so hooks and references from elsewhere (lists, tied parents)
        stay valid and no float twin can be left behind.

        empty: the schemes have no state yet; a checkpoint fills it.
        """
        values = module._parameters.pop("weight")
        bias = module._parameters.get("bias")
        assert values is not None
        module.__class__ = cls
        assert isinstance(module, cls)
        module.site, module.compute_dtype, module.listener = site, DTYPES[compute_dtype], None
        module.model_dtype = values.dtype
        if bias is not None:
            module.bias = nn.Parameter(bias.detach(), requires_grad=False)
        module.input_scheme = FloatInput() if inputs is None else inputs
        module.weight_scheme = FloatWeight.of(values) if weight is None else weight
        module.refresh(cache=not empty)
        # a cache of the old codes would go on being used
        module.register_load_state_dict_post_hook(_after_load)
        return module

    def exchange(
        self, *, inputs: InputScheme | None = None, weight: WeightScheme | None = None
    ) -> None:
        """Plug other schemes in; None leaves that side as it is."""
        if inputs is not None:
            self.input_scheme, self.executor = inputs, None
        if weight is not None:
            self.weight_scheme = weight
            self.refresh()

    @property
    def role(self) -> str:
        """Its role in the model."""
        return self.site.role

    @property
    def channels(self) -> int:
        """Input channels."""
        return self.inputs

    @property
    def weight(self) -> Tensor:
        """W_hat in the shape of the float weight and the dtype that the model has."""
        return self._dequantized().to(self.model_dtype)

    def _dequantized(self) -> Tensor:
        cached = self._buffers.get("weight_cache")
        if cached is not None:
            return cached
        state = torch._C._get_tracing_state()
        _set_tracing_state(None)  # a trace keeps the weight as a constant
        try:
            return self.weight_scheme.dequantize()
        finally:
            _set_tracing_state(state)

    def refresh(self, *, cache: bool = True) -> None:
        """Rebuild the dequantized weight after its scheme changed, or drop it."""
        self.executor = None
        self.whole = None
        values = self.weight_scheme.dequantize() if cache else None
        self.register_buffer("weight_cache", values, persistent=False)

    def refresh_cache(self, *, keep: bool) -> None:
        """Keep the dequantized weight, or forget it: a backend has a form of its own."""
        self.whole = None
        values = self._dequantized() if keep else None
        self.register_buffer("weight_cache", values, persistent=False)

    def quantize_tokens(self, tokens: Tensor) -> Tensor:
        """x_hat of tokens [B, N, C], heard by the listener."""
        if self.listener is None:
            return self.input_scheme(tokens)
        statistics = self.input_scheme.explain(tokens)
        x_hat = self.input_scheme(tokens) if statistics is None else statistics.x_hat
        self.listener(self, tokens, x_hat, statistics)
        return x_hat

    def _carriers(self, tokens: Tensor) -> tuple[Carried, WholeWeight] | None:
        """Carriers of tokens [B, N, C] and of the weight; None where one side has none."""
        if self.compute_dtype is not torch.float32 or not tokens.numel():
            return None
        if isinstance(self.input_scheme, FloatInput) or isinstance(self.weight_scheme, FloatWeight):
            return None
        weight = self._whole_weight()
        carried = None if weight is None else self.input_scheme.carry(tokens.float())
        if weight is None or carried is None:
            return None
        if self.listener is not None:
            self.quantize_tokens(tokens.float())
        return carried, weight

    def _whole_weight(self) -> WholeWeight | None:
        if self.whole is None:
            state = torch._C._get_tracing_state()
            _set_tracing_state(None)  # a trace keeps the weight as a constant
            try:
                self.whole = (whole_weight(self.weight_scheme),)
            finally:
                _set_tracing_state(state)
        return self.whole[0]

    def _by_carriers(self, tokens: Tensor, shape: torch.Size) -> Tensor | None:
        found = self._carriers(tokens)
        if found is None:
            return None
        bias = self._parameters["bias"]
        return carried_product(
            self, found[0], shape, found[1], None if bias is None else bias.float()
        )

    def _input(self, tokens: Tensor) -> Tensor:
        """x_hat, rounded once, to the compute dtype."""
        if not isinstance(self.input_scheme, FloatInput):
            tokens = tokens.float()
        return self.quantize_tokens(tokens).to(self.compute_dtype)

    def _weight_and_bias(self) -> tuple[Tensor, Tensor | None]:
        bias = self._parameters["bias"]
        dtype = self.compute_dtype
        return self._dequantized().to(dtype), None if bias is None else bias.to(dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Move with the model, but keep scales and radii in float32 when it is cast."""

        def keep_dtype(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        self.executor = self.whole = None
        device = next(iter(self.buffers())).device
        self.model_dtype = fn(torch.empty(0, dtype=self.model_dtype, device=device)).dtype
        return super()._apply(keep_dtype, recurse)

    def extra_repr(self) -> str:
        """The shape, then what is quantized."""
        shape = "x".join(map(str, self.weight_scheme.shape))
        return f"{shape}, {self.weight_scheme.label()}, {self.input_scheme.label()}"


class QuantLinear(QuantOperator, nn.Linear):  # type: ignore[override]
    """Linear on a quantized input with a quantized weight (Algorithm S1)."""

    def forward(self, input: Tensor) -> Tensor:
        """[..., C] -> [..., O], in the dtype of the input."""
        if self._native(input):
            return self._execute(input)
        tokens = linear_tokens(input)
        result = self._by_carriers(tokens, input.shape)
        if result is None:
            weight, bias = self._weight_and_bias()
            result = F.linear(self._input(tokens).reshape(input.shape), weight, bias)
        return self._followed(result.to(input.dtype))


class _QuantConv(BackedConv, QuantOperator):
    _conv_forward: Callable[..., Any]

    def forward(self, input: Tensor) -> Tensor:
        """[B, C, *positions] -> [B, O, *positions], in dtype and memory layout of the input.

        Padding comes after quantization, in whatever mode: a padded pixel has the range of the
        pixel that it repeats, and zeros are exact.
        """
        if input.ndim == self._batched_ndim() - 1:
            return self.forward(input.unsqueeze(0)).squeeze(0)  # unbatched, as torch takes it
        if self._native(input):
            return self._ordered(self._execute(input), input)
        # followers see the memory order that they would see on their own: the same bits
        result = self._simulated(input).to(input.dtype)
        return self._followed(self._ordered(result, input))

    def _simulated(self, input: Tensor) -> Tensor:
        tokens = conv_tokens(input)
        found = self._by_carriers(tokens, input.shape)
        if found is not None:
            return found
        x_hat = self._input(tokens)
        maps = x_hat.transpose(1, 2).unflatten(2, input.shape[2:])  # channels-last in memory
        weight, bias = self._weight_and_bias()
        result: Tensor = self._conv_forward(maps, weight, bias)
        return result


class QuantConv2d(_QuantConv, nn.Conv2d):  # type: ignore[override]
    """Conv2d on quantized tokens: each pixel's channels are a token."""


class QuantConv1d(_QuantConv, nn.Conv1d):  # type: ignore[override]
    """Conv1d on quantized tokens: each position's channels are a token."""


OPERATORS: dict[type[nn.Module], type[QuantOperator]] = {
    nn.Linear: QuantLinear,
    nn.Conv2d: QuantConv2d,
    nn.Conv1d: QuantConv1d,
}


def _after_load(operator: QuantOperator, keys: Any) -> None:
    operator.refresh(cache=operator._buffers.get("weight_cache") is not None)


def operator_for(module: nn.Module) -> type[QuantOperator]:
    """The quantized class of a float operator."""
    return next(quant for kind, quant in OPERATORS.items() if isinstance(module, kind))


def quant_operators(model: nn.Module) -> dict[str, QuantOperator]:
    """The quantized operators of a model by name."""
    return {n: m for n, m in model.named_modules() if isinstance(m, QuantOperator)}
