"""Weight initialisation of everything in ESCNet that is not the encoder."""

from __future__ import annotations

import math

from torch import nn

from codtdq.models.deform import GuidedDeformConv
from codtdq.models.escnet_blocks import ChannelAttention

SMALL_STD = 0.02


def init_escnet_head(module: nn.Module) -> None:
    """Initialise a branch in place so that it trains from scratch.

    Convolutions get fan-in normal weights (the head narrows 4C -> C and C -> 1 everywhere, where
    fan-out would blow the scale up). Small weights for what must start mild: one-channel
    predictors, deformable offsets, and the last q and k convolutions, whose products are summed
    over all positions before the softmax.
    """
    for child in module.modules():
        if isinstance(child, nn.Linear):
            nn.init.trunc_normal_(child.weight, std=SMALL_STD)
        elif isinstance(child, nn.Conv2d):
            fan_in = math.prod(child.kernel_size) * child.in_channels // child.groups
            mild = child.out_channels == 1
            nn.init.normal_(child.weight, std=SMALL_STD if mild else math.sqrt(2.0 / fan_in))
            if child.bias is not None:
                nn.init.zeros_(child.bias)
    for child in module.modules():
        if isinstance(child, GuidedDeformConv):
            nn.init.normal_(child.offset_conv.weight, std=SMALL_STD)
        elif isinstance(child, ChannelAttention):
            for projection in (child.conv1, child.conv2):
                last = projection[-1]
                assert isinstance(last, nn.Conv2d)
                nn.init.normal_(last.weight, std=SMALL_STD)
