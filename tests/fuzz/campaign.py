"""Run a fuzzer over numbers: limits of each input, counts that add up over runs.

    python tests/fuzz/checkpoints.py --count 1000000 --record results/fuzz/runs.jsonl

With --record a row is added for every part that came to its end, and the next run begins behind the
last one: a run may be stopped at any time. A crash ends the process, and with it the run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SLOWEST = 5.0  # seconds of processor time that one input may take
MOST_GROWN = 16.0  # MiB that the process may hold beyond what it held before an input
PART = 50_000  # inputs of a row
MOST_FAILURES = 20
KINDS = ("tracebacks", "hangs", "slow", "greedy", "bad refusals")


class Failure(AssertionError):
    """An input that did anything but refuse or run; `kind` is one of KINDS."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Hang(BaseException):
    """An input that ran out of time; no handler of what is tested may catch it."""


def stop(*_: object) -> None:
    raise Hang


class Memory:
    """MiB that this process holds: now, and at most since `forget`."""

    def __init__(self) -> None:
        self._status = os.open("/proc/self/status", os.O_RDONLY)
        self._clear = os.open("/proc/self/clear_refs", os.O_WRONLY)

    def _field(self, name: bytes) -> float:
        return int(os.pread(self._status, 4096, 0).partition(name)[2].split(None, 1)[0]) / 1024

    def now(self) -> float:
        return self._field(b"VmRSS:")

    def most(self) -> float:
        return self._field(b"VmHWM:")

    def forget(self) -> None:
        os.pwrite(self._clear, b"5", 0)


class Fuzzer:
    """Runs inputs by their number: the number alone repeats one.

    A target has `seeds` and `try_out`, which raises what a refusal is, or says what became of it.
    """

    refusals: type[Exception]
    longest = 1000  # characters of a refusal

    def __init__(self, seeds: list[Any]) -> None:
        self.seeds = seeds
        self.clear()
        signal.signal(signal.SIGPROF, stop)
        self.memory = Memory()
        self.valid = self.memory.now()  # with every valid file loaded

    def clear(self) -> None:
        """Count from nothing."""
        self.counts: Counter[str] = Counter()
        self.slowest = self.grown = 0.0

    def prepare(self, seed: Any, rng: random.Random) -> Any:
        """A mutation of a seed."""
        raise NotImplementedError

    def try_out(self, seed: Any, prepared: Any, rng: random.Random) -> str:
        """Load it, perhaps run it; what became of it."""
        raise NotImplementedError

    def one(self, number: int, seed_number: int = 0) -> None:
        """Run one input; raises `Failure` where it does anything but refuse or run."""
        rng = random.Random(f"{seed_number}-{number}")
        seed = self.seeds[number % len(self.seeds)]
        prepared = self.prepare(seed, rng)
        what = f"input {number} ({seed.method})"
        with self.limits(what):
            try:
                outcome = self.try_out(seed, prepared, rng)
            except self.refusals as error:
                text, outcome = str(error), "refused"
                if "\n" in text or not 0 < len(text) < self.longest:
                    raise Failure("bad refusals", f"{what}: {text!r}") from error
            except Hang:
                raise Failure("hangs", f"{what}: over {2 * SLOWEST:.0f} s") from None
            except Exception as error:
                raise Failure("tracebacks", f"{what}: {error!r}") from error
        self.counts[outcome] += 1

    @contextmanager
    def limits(self, what: str) -> Iterator[None]:
        """Time and memory of what is done inside."""
        self.memory.forget()
        before, began = self.memory.now(), time.process_time()
        signal.setitimer(signal.ITIMER_PROF, 2 * SLOWEST)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        taken, grown = time.process_time() - began, self.memory.most() - before
        self.slowest, self.grown = max(self.slowest, taken), max(self.grown, grown)
        if taken >= SLOWEST:
            raise Failure("slow", f"{what}: {taken:.1f} s")
        if grown > MOST_GROWN:
            raise Failure("greedy", f"{what}: {grown:.1f} MiB")


def next_number(record: Path, target: str, seed: int) -> int:
    """The number behind the last part that was recorded."""
    if not record.exists():
        return 0
    rows = [json.loads(line) for line in record.read_text().splitlines()]
    own = [row for row in rows if (row["target"], row["seed"]) == (target, seed)]
    return max((row["first"] + row["inputs"] for row in own), default=0)


def run_part(fuzzer: Fuzzer, seed: int, first: int, count: int, until: float) -> dict[str, Any]:
    """Inputs first .. first + count - 1, or fewer where time ends; a row."""
    fuzzer.clear()
    failures = dict.fromkeys(KINDS, 0)
    wall, processor, done = time.time(), time.process_time(), 0
    for number in range(first, first + count):
        try:
            fuzzer.one(number, seed)
        except Failure as error:
            failures[error.kind] += 1
            print(error, flush=True)
        done += 1
        if time.time() > until or sum(failures.values()) >= MOST_FAILURES:
            break
    return {
        "seed": seed,
        "first": first,
        "inputs": done,
        **failures,
        **{key: fuzzer.counts[key] for key in sorted(fuzzer.counts)},
        "slowest_seconds": round(fuzzer.slowest, 3),
        "most_grown_mib": round(fuzzer.grown, 1),
        "valid_mib": round(fuzzer.valid, 1),
        "seconds": round(time.time() - wall),
        "processor_seconds": round(time.process_time() - processor),
    }


def main(doc: str, target: str, make: Callable[[Path], Fuzzer]) -> int:
    """Run many inputs in parts and print what became of them."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--first", type=int, help="number of the first input")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after so long")
    parser.add_argument("--record", type=Path, help="file of rows; a run goes on where it ends")
    args = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    first, failed = args.first, 0
    if first is None:
        first = next_number(args.record, target, args.seed) if args.record else 0
    end = first + args.count
    with tempfile.TemporaryDirectory(prefix="codtdq-fuzz-") as name:
        fuzzer = make(Path(name))
        until = time.time() + args.seconds
        while first < end and time.time() < until and failed < MOST_FAILURES:
            part = run_part(fuzzer, args.seed, first, min(PART, end - first), until)
            row = json.dumps({"target": target, **part})
            print(row, flush=True)
            if args.record:
                args.record.parent.mkdir(parents=True, exist_ok=True)
                with args.record.open("a", encoding="utf-8") as file:
                    file.write(row + "\n")
            first += part["inputs"]
            failed += sum(part[kind] for kind in KINDS)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit("run checkpoints.py or programs.py")
