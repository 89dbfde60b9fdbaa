"""Tables of shifted windows: two parts whose sum is the table to the bit, or the table."""

import torch

from codtdq.engine.program.constants import Pool
from codtdq.engine.program.tables import glance, split
from codtdq.models.swin import shift_mask


def shifted(heads, *, side=24, window=12, gain=10.0):
    mask = torch.tensor(shift_mask(side, side, window, window // 2)).float()
    bias = torch.randn(1, heads, window**2, window**2, generator=torch.Generator().manual_seed(3))
    return torch.add(bias, mask.unsqueeze(1), alpha=gain), bias, mask * gain


def test_masks_of_swin_come_off_the_bias():
    for heads in (2, 4, 16):
        table, bias, mask = shifted(heads)
        first, second = split(table)
        assert torch.equal(first, bias)
        assert torch.equal(second.squeeze(1), mask)
        assert torch.equal(first + second, table)


def test_tables_of_windows_that_are_known_are_taken_again():
    table, bias, mask = shifted(4)
    _, windows = split(table)
    other = bias.flip(1) + mask.unsqueeze(1)
    smaller = split(shifted(4, side=8, window=4)[0])[1]  # as many windows, of another size
    first, again = split(other, [smaller, windows])
    assert again is windows
    assert torch.equal(first, bias.flip(1))
    changed = bias.flip(1) + 0.5 * mask.unsqueeze(1)
    assert torch.equal(split(changed, [windows])[1].squeeze(1), 0.5 * mask)


def test_parts_do_not_keep_the_table():
    for part in split(shifted(4)[0]):
        assert part.untyped_storage().nbytes() == part.numel() * 4


def test_infinite_masks_come_off_too():
    table, bias, _ = shifted(4)
    table = torch.where(table < -100, -torch.inf, bias.expand_as(table))
    first, second = split(table)
    assert torch.equal(first + second, table)
    assert set(second.unique().tolist()) == {0.0, -torch.inf}


def test_what_is_no_sum_stays_whole():
    table, _, _ = shifted(4)
    assert split(torch.randn(4, 4, 9, 9)) is None
    table[2, 1, 5, 7] += 0.25  # one number that no mask explains
    assert split(table) is None
    assert split(table[:1]) is None and split(table[:, :1]) is None


def test_a_glance_tells_most_contents_shapes_and_types_apart():
    x = torch.arange(8.0)
    assert glance(x) == glance(x.clone())
    assert len({glance(x), glance(x + 1), glance(x.view(2, 4)), glance(x.int())}) == 4
    assert len(glance(torch.zeros(3, 10_000))) < 200


def test_programs_share_tables_of_equal_content_only():
    pool, x = Pool(), torch.arange(3000.0)
    other = x.clone()
    other[1] = 7.0  # which no glance sees
    assert glance(other) == glance(x)
    assert pool.same(x) is x and pool.same(other) is other
    assert pool.same(x.clone()) is x and pool.same(other.clone()) is other
    assert pool.same(x.view(2, -1)) is not x
