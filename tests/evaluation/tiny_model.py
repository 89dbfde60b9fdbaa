"""A tiny registered network, so that evaluation and commands can be driven without weights."""

import torch
from torch import nn

from codtdq.declarations import Declaration
from codtdq.models import list_models, register_model

NAME = "test-tiny"


class Tiny(nn.Module):
    quantization = Declaration(roles={"stem": "first"})

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.head = nn.Conv2d(32, 1, 1)

    def forward(self, x):
        return self.head(torch.relu(self.stem(x)))


if NAME not in list_models():

    @register_model(NAME, description="for tests", input_size=32)
    def build():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return Tiny()
