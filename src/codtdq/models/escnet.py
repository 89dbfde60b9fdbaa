"""ESCNet v1 (ICCV 2025): PVTv2 encoder, edge branch, edge- and texture-guided mask decoder.

`escnet` has the state-dict of the released network with PVTv2-B5 (99.9 M parameters);
`escnet-small` is the same graph at a small width.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from codtdq.models.escnet_blocks import check_image_sides, conv_bn_relu
from codtdq.models.escnet_decoder import MaskDecoder
from codtdq.models.escnet_edge import EdgeBranch
from codtdq.models.escnet_init import init_escnet_head
from codtdq.models.pvt_v2 import PVT_V2, PvtV2, PvtV2Config
from codtdq.models.registry import register_model

ESCNET_PAPER = "Ye, Chen, Zhang, Lin, Cao: ESCNet, ICCV 2025, pp. 20053-20063"
ESCNET_ACT_MODES = {
    "conv": "per_token_group",
    "depthwise": "per_token_group",
    "first": "per_token_group",
}


@dataclass(frozen=True, kw_only=True)
class EscNetConfig:
    """Widths of ESCNet v1; the defaults are those of the release."""

    encoder: PvtV2Config = field(default_factory=lambda: PVT_V2["b5"])
    width: int = 128  # common channel count of edge branch and decoder
    heads: int = 8  # heads of every channel attention
    edge_ffn: int = 1  # feed-forward factor in the edge branch
    decoder_ffn: int = 4  # feed-forward factor in the decoder
    inject: tuple[int, int] = (64, 32)  # hidden and output channels of the patch injection
    head: int = 64  # hidden channels of the coarse and the final mask head
    cbam_hidden: int = 8
    dropout: float = 0.3  # in channel attention, training only
    drop_path: float = 0.1  # in the encoder, training only


class Encoder(nn.Module):
    """Holder that gives the backbone its released prefix `encoder.backbone`."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, image: Tensor) -> list[Tensor]:
        """[B, 3, S, S] -> the four maps of the backbone, fine to coarse."""
        return self.backbone(image)


class EscNet(nn.Module):
    """ESCNet v1: returns (edge logits, [m4, m3, m2, m1]); m1 is the prediction."""

    def __init__(self, config: EscNetConfig | None = None) -> None:
        super().__init__()
        config = config or EscNetConfig()
        width = config.width
        self.encoder = Encoder(PvtV2(config.encoder, config.drop_path))
        self.decoder = MaskDecoder(
            width,
            config.heads,
            config.decoder_ffn,
            config.dropout,
            inject=config.inject,
            head=config.head,
            cbam_hidden=config.cbam_hidden,
        )
        self.enhanced = EdgeBranch(width, config.heads, config.edge_ffn, config.dropout)
        for level, dim in enumerate(config.encoder.dims, start=1):
            self.add_module(f"asa{level}", conv_bn_relu(dim, width, 1))
        for name, child in self.named_children():
            if name != "encoder":  # the encoder brings its own initialisation
                init_escnet_head(child)

    def forward(self, image: Tensor) -> tuple[Tensor, list[Tensor]]:
        """[B, 3, S, S] -> edge logits [B, 1, S, S] and mask logits at S/32, S/16, S/8, S."""
        check_image_sides(image)
        maps = self.encoder(image)
        aligned = [self.get_submodule(f"asa{level}")(x) for level, x in enumerate(maps, start=1)]
        edge = self.enhanced(*aligned, image)
        return edge, self.decoder(image, aligned, edge.sigmoid())


def final_mask(outputs: Any) -> Tensor:
    """The finest mask logits of an ESCNet output (edge, [m4, m3, m2, m1])."""
    return outputs[1][-1]


@register_model(
    "escnet",
    description="ESCNet v1 with PVTv2-B5, 99.9 M parameters",
    input_size=416,
    postprocess="sigmoid",
    mask_logits=final_mask,
    act_modes=ESCNET_ACT_MODES,
    channels_last=True,
    loss="escnet",
    source=ESCNET_PAPER,
)
def escnet() -> nn.Module:
    """ESCNet v1 at its released size."""
    return EscNet()


SMALL_CONFIG = EscNetConfig(
    encoder=PvtV2Config(
        dims=(24, 48, 96, 160), depths=(2, 2, 2, 2), heads=(1, 2, 4, 5), mlp_ratios=(4, 4, 4, 4)
    ),
    width=32,
    heads=4,
    decoder_ffn=2,
    inject=(16, 8),
    head=16,
    dropout=0.0,
    drop_path=0.05,
)


@register_model(
    "escnet-small",
    description="ESCNet v1 graph at width 32 with a slim PVTv2, trained from scratch",
    input_size=160,
    postprocess="sigmoid",
    mask_logits=final_mask,
    act_modes=ESCNET_ACT_MODES,
    channels_last=True,
    loss="escnet",
    weights="escnet-small.safetensors",
    source=ESCNET_PAPER,
)
def escnet_small() -> nn.Module:
    """ESCNet v1 at a size that trains on a CPU."""
    return EscNet(SMALL_CONFIG)
