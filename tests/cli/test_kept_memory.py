"""How much freed memory a command keeps: much for speed, little while it calibrates."""

import subprocess
import sys

import pytest

from codtdq import native
from codtdq.cli import main as cli
from codtdq.engine.cpu import library

# frees large tensors between small ones that stay, and prints what the process still holds
PROBE = """
import sys, torch
from codtdq.engine.cpu import keep_memory

def held():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmRSS")).split()[1])

if not keep_memory(int(sys.argv[1])):
    sys.exit("the C library has no such setting")
before, large, small = held(), [], []
for i in range(20):
    large.append(torch.ones(5_000_000))  # 20 MB
    small.append(torch.ones(20_000))
del large
print((held() - before) // 1000)
"""


def kept(verb, monkeypatch):
    limits = []
    monkeypatch.setattr(native, "keep_memory", limits.append)
    monkeypatch.setattr(sys, "argv", ["codtdq", *verb])
    cli()
    return limits[0]


def test_commands_keep_memory_but_calibration_gives_it_back(monkeypatch, capsys):
    assert kept(["list", "presets"], monkeypatch) == 1 << 30
    assert kept(["quantize", "--model", "nowhere", "--out", "none"], monkeypatch) == 4 << 20
    nowhere = ["eval", "--model", "nowhere"]
    assert kept(nowhere, monkeypatch) == 1 << 30
    assert kept([*nowhere, "--method", "cod-tdq-plus"], monkeypatch) == 4 << 20


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.skipif(not library.path().is_file(), reason="no engine was built")
def test_little_is_held_between_large_tensors():
    held = {}
    for limit in (4 << 20, 1 << 30):
        argv = [sys.executable, "-c", PROBE, str(limit)]
        done = subprocess.run(argv, capture_output=True, text=True)
        if "no such setting" in done.stderr:
            pytest.skip(done.stderr)
        held[limit] = int(done.stdout)
    assert held[4 << 20] < 60 < 300 < held[1 << 30]  # MB, of 400
