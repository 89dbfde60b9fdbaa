"""A small network that declares its input, and a data set of squares whose masks can be swapped."""

import numpy as np

from codtdq.data.sample import Sample
from codtdq.models.registry import ModelInfo, first_output
from small_nets import small_net


class Squares:
    """Images 32 x 32 of noise; the mask is a square that `shift` moves."""

    def __init__(self, count=2, shift=0):
        self.name, self.notes = "squares", []
        self._count, self._shift = count, shift

    def __len__(self):
        return self._count

    def names(self):
        return [f"image-{index}" for index in range(self._count)]

    def __getitem__(self, index):
        if index >= self._count:
            raise IndexError(index)
        pixels = np.random.default_rng(index).integers(0, 256, (32, 32, 3), np.uint8)
        mask = np.zeros((32, 32), np.uint8)
        start = 4 + self._shift
        mask[start : start + 12, start : start + 12] = 255
        return Sample(f"image-{index}", pixels, mask)


def network():
    model = small_net()
    model.info = ModelInfo(name="small-net", description="", input_size=8, mask_logits=first_output)
    return model
