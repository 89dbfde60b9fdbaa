"""SegFormer as Hugging Face transformers builds it: a network that this project did not write.

Layers, their names and their order are the library's. All that is said here about quantizing it is
which part of a block is attention and which the MLP; the rest follows from types and the graph.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from codtdq.declarations import Declaration, declare
from codtdq.environment import install_hint
from codtdq.errors import UnsupportedError
from codtdq.models.registry import register_model

# fields of SegformerConfig: depths, heads and reductions of b0 at its widths or less
SMALL_CONFIG: dict[str, Any] = {
    "num_labels": 1,
    "depths": [2, 2, 2, 2],
    "hidden_sizes": [32, 64, 128, 192],
    "num_attention_heads": [1, 2, 4, 6],
    "sr_ratios": [8, 4, 2, 1],
    "mlp_ratios": [4, 4, 4, 4],
    "decoder_hidden_size": 128,
    "drop_path_rate": 0.05,
    "classifier_dropout_prob": 0.0,
}


class SegFormer(nn.Module):
    """A transformers SegFormer that takes an image and returns the bare logits."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.network = _build_network(config)

    def forward(self, image: Tensor) -> Tensor:
        """[B, 3, S, S] -> mask logits [B, 1, S/4, S/4]."""
        return self.network(pixel_values=image, return_dict=True).logits


def _build_network(config: dict[str, Any]) -> nn.Module:
    """The library's module; imported here because the import takes seconds and is optional."""
    import transformers
    from transformers.models.segformer import modeling_segformer as library

    # older releases name every layer otherwise: weights and packed files would not fit them
    if not hasattr(library, "SegformerStage"):
        raise UnsupportedError(
            f"SegFormer needs transformers 5.22 or newer, {transformers.__version__} is installed; "
            f"run {install_hint('transformers')}"
        )
    network = library.SegformerForSemanticSegmentation(transformers.SegformerConfig(**config))
    for module in network.modules():
        if isinstance(module, library.SegformerLayer):
            declare(module, Declaration(roles={"attention": "attention", "mlp": "mlp"}))
    return network


@register_model(
    "segformer-small",
    description="SegFormer of Hugging Face transformers, slimmer than b0, trained from scratch",
    input_size=128,
    postprocess="sigmoid",
    weights="segformer-small.safetensors",
    requires="transformers",
    source="Xie et al.: SegFormer, NeurIPS 2021; module of Hugging Face transformers",
)
def segformer_small() -> nn.Module:
    """SegFormer at a size that trains on a CPU; needs the extra `transformers`."""
    return SegFormer(SMALL_CONFIG)
