"""The limits that fuzzers put on an input do end one, and counts add up over runs."""

import json
import mmap
import random
import time
from types import SimpleNamespace

import campaign
import pytest

from codtdq.errors import CodtdqError


class Odd(campaign.Fuzzer):
    """Does what it is told."""

    refusals = CodtdqError

    def __init__(self, act):
        super().__init__([SimpleNamespace(method="one")])
        self.act = act

    def prepare(self, seed, rng):
        return rng.random()

    def try_out(self, seed, prepared, rng):
        return self.act(prepared) or "accepted"


def refuse(text):
    def act(_):
        raise CodtdqError(text)

    return act


def take(_):
    kept = mmap.mmap(-1, 64 << 20)  # never what an earlier test gave back to the allocator
    for page in range(0, len(kept), 4096):
        kept[page] = 1


def fail(_):
    raise IndexError("nowhere")


def spin(_):
    while True:
        pass


@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (fail, "tracebacks"),
        (take, "greedy"),
        (spin, "hangs"),
        (refuse("two\nlines"), "bad refusals"),
        (refuse(""), "bad refusals"),
        (refuse("x" * 1000), "bad refusals"),
    ],
)
def test_an_input_that_does_anything_else_is_a_failure(act, kind, monkeypatch):
    monkeypatch.setattr(campaign, "SLOWEST", 0.2)
    with pytest.raises(campaign.Failure) as caught:
        Odd(act).one(7)
    assert caught.value.kind == kind and "input 7" in str(caught.value)


def test_a_slow_input_is_one(monkeypatch):
    monkeypatch.setattr(campaign, "SLOWEST", 0.1)

    def work(_):
        end = time.process_time() + 0.15
        while time.process_time() < end:
            pass

    with pytest.raises(campaign.Failure, match="slow"):
        Odd(work).one(1)


def test_a_number_repeats_an_input():
    seen = []
    fuzzer = Odd(lambda drawn: seen.append(drawn))
    for number in (3, 4, 3):
        fuzzer.one(number, seed_number=5)
    assert seen[0] == seen[2] != seen[1] == random.Random("5-4").random()


def test_a_run_goes_on_behind_the_last_one(tmp_path):
    record, fuzzer = tmp_path / "runs.jsonl", Odd(lambda _: None)
    for _ in range(3):
        first = campaign.next_number(record, "odd", 0)
        row = campaign.run_part(fuzzer, 0, first, 10, float("inf"))
        with record.open("a") as file:
            file.write(json.dumps({"target": "odd", **row}) + "\n")
    rows = [json.loads(line) for line in record.read_text().splitlines()]
    assert [row["first"] for row in rows] == [0, 10, 20]
    assert [row["accepted"] for row in rows] == [10, 10, 10]
    assert campaign.next_number(record, "odd", 1) == 0  # another seed
