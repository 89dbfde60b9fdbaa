"""Whether a switch did what it promises: the same product with and without it, and its kernels."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from codtdq.lab.bench.speed import hold

PROBE = Path(__file__).with_name("hold_probe.py")
SLOWER = 0.85  # of the free speed: below it, a switch has shown itself
# what kernels of a wider set are called
WIDER = {"avx512-vnni": ("amx", "bf16", "bfloat16"), "avx2": ("avx512", "avx-512", "amx")}
Probe = Callable[[Sequence[str], Mapping[str, str]], dict[str, Any]]


@dataclass(frozen=True)
class Holding:
    """What a library made of its switch."""

    held: bool
    evidence: str


def check_families(
    families: Sequence[str], name: str, probe: Probe | None = None, flags: list[str] | None = None
) -> dict[str, dict[str, Any]]:
    """Probe each library twice, free and held; families: torch, onnxruntime, openvino."""
    if not hold.more_than(name, flags):
        known = Holding(True, f"this processor has nothing above {name}")
        return {family: asdict(known) for family in families}
    probe = probe or run_probe
    found = {}
    for family in families:  # each alone: one that dies takes its process along
        free = probe([family], hold.without_switches(os.environ))[family]
        held = probe([family], {**os.environ, **hold.SWITCHES[name]})[family]
        found[family] = asdict(judge(family, name, free, held))
    return found


def judge(family: str, name: str, free: dict[str, Any], held: dict[str, Any]) -> Holding:
    """Names of kernels decide; where a library has none, its speed does."""
    if "failed" in held:
        return Holding(False, f"with the switch it fails: {held['failed']}")
    speeds = [side.get("gops", 0.0) for side in (free, held)]
    ratio = speeds[1] / speeds[0] if speeds[0] else 0.0
    shown = f"product at {ratio:.2f} of its free speed"
    kernels = ", ".join(held["kernels"])
    if kernels:
        wider = [word for word in WIDER[name] if word in kernels.lower()]
        return Holding(not wider, f"{kernels}; {shown}")
    if family == "onnxruntime":
        shown = f"it has no switch; {shown}"
    return Holding(ratio < SLOWER, shown)


def run_probe(families: Sequence[str], variables: Mapping[str, str]) -> dict[str, Any]:
    """Probe in a new process; what kills it is the result."""
    command = [sys.executable, str(PROBE), *families]
    # oneDNN says on its first line which set it takes
    environment = {**variables, "ONEDNN_VERBOSE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode < 0:
        died = f"its process died of {signal.Signals(-done.returncode).name}"
        return {family: {"failed": died} for family in families}
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {family: {"failed": last} for family in families}
    lines = done.stdout.strip().splitlines()
    found: dict[str, Any] = json.loads(lines[-1])
    sets = [line.partition("isa:")[2] for line in lines if "cpu,isa:" in line]
    for report in found.values():
        if "kernels" in report:
            report["kernels"] += [f"oneDNN: {each}" for each in dict.fromkeys(sets)]
    return found
