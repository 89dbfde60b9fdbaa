"""Units of scales that are known before an image comes."""

import pytest
import torch

from codtdq.methods.plus.units import ROOM, unit_of
from codtdq.schemes.group_grid import full_step
from codtdq.schemes.pixel_groups import PixelGroups
from codtdq.schemes.token_groups import TokenGroups
from codtdq.schemes.transforms import Transform

GENERATOR = torch.Generator().manual_seed(0)
ROWS = torch.randn(400, 80, generator=GENERATOR) * torch.rand(80, generator=GENERATOR).exp()
LOW, HIGH = ROWS.amin(0), ROWS.amax(0)
ORDER = torch.randperm(80, generator=GENERATOR)
TRANSFORMS = {
    "none": Transform(),
    "shift and scale": Transform(ROWS.mean(0), ROWS.std(0)),
    "order": Transform(order=ORDER),
    "rotation": Transform(hadamard=True),
    "all": Transform(ROWS.mean(0), ROWS.std(0), ORDER, True),
}


@pytest.mark.parametrize("zero_point", ["none", "inside", "wide"])
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("kind", [TokenGroups, PixelGroups])
def test_nothing_that_was_seen_is_cut(kind, name, zero_point):
    scheme, transform = kind(4, 32, zero_point=zero_point), TRANSFORMS[name]
    if kind is PixelGroups and transform.hadamard:
        return  # only dense operators are rotated
    unit = unit_of(scheme, transform, ROWS, LOW, HIGH)
    x = transform.tokens(ROWS)
    lines = x.T if scheme.along_pixels else x
    parts = [part for part in lines.split(32, -1)]
    steps = [full_step(p.amin(-1), p.amax(-1), 15, zero_point)[0].max() for p in parts]
    # all within half of what E4M3 reaches, and not so far below that precision would be lost
    assert ROOM * max(steps) <= 448 * unit * 1.0001 <= 8 * ROOM * max(steps)


def test_a_given_unit_costs_no_accuracy_and_no_bits():
    x = ROWS[None]
    own, given = TokenGroups(4, 32, 2), TokenGroups(4, 32, 2)
    given.unit = unit_of(given, Transform(), ROWS, LOW, HIGH)
    losses = [float((scheme(x) - x).square().mean()) for scheme in (own, given)]
    assert losses[1] == pytest.approx(losses[0], rel=0.03)
    assert given.bits(80) < own.bits(80)


def test_inputs_that_were_always_zero_leave_the_unit_to_the_images():
    zeros = torch.zeros(4, 64)
    assert unit_of(TokenGroups(4), Transform(), zeros, zeros[0], zeros[0]) == 0.0


def test_extremes_that_no_sampled_row_has_count():
    """Channels past the last whole block are not rotated: their exact extremes are known."""
    low, high = LOW.clone(), HIGH.clone()
    high[70] = 100.0
    unit = unit_of(TokenGroups(4, 32), TRANSFORMS["rotation"], ROWS, low, high)
    assert 448 * unit >= ROOM * 100 / 15
    high[70], high[7] = HIGH[70], 100.0  # a spike in a block: spread over it
    unit = unit_of(TokenGroups(4, 32), TRANSFORMS["rotation"], ROWS, low, high)
    assert 448 * unit >= ROOM * (100 / 32**0.5) / 15
