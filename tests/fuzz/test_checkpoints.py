"""A short run of the fuzzer; a long one by name: `python tests/fuzz/checkpoints.py --count N`."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from checkpoints import METHODS, ODD, Fuzzer


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory):
    return Fuzzer(tmp_path_factory.mktemp("fuzz"))


def test_mutated_checkpoints_are_refused_in_one_line_or_run(fuzzer):
    before = repr(ODD)
    for number in range(1500):
        fuzzer.one(number, seed_number=1)
    assert repr(ODD) == before  # no input changes what the next ones are made of
    assert fuzzer.counts["refused"] > 500  # mutations do harm
    assert fuzzer.counts["accepted"] > 50  # and not all of them
    assert fuzzer.slowest < 5


def test_every_method_of_the_list_is_a_seed(fuzzer):
    assert [seed.method for seed in fuzzer.seeds] == list(METHODS)


@pytest.mark.slow
def test_a_long_run(fuzzer):
    for number in range(50_000):
        fuzzer.one(number, seed_number=2)
