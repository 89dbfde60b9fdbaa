"""Tables fit the terminal, whatever they hold; in a pipe they stay as wide as they are."""

import os
import pty
import struct
import subprocess
import sys
import termios
from fcntl import ioctl

import pytest

from codtdq.columns import columns

HEADER = ["name", "description", "S"]
ROWS = [
    ["cod-tdq", "the paper's method (DSTG + DCRP), made well defined", "0.7731"],
    ["a", "", "1"],
]


def test_as_wide_as_they_are():
    lines = columns(HEADER, ROWS).splitlines()
    assert lines[0].split() == HEADER and set(lines[1]) == {"-", " "}
    assert lines[2] == "cod-tdq  the paper's method (DSTG + DCRP), made well defined  0.7731"
    assert columns(HEADER, ROWS, 200) == columns(HEADER, ROWS)


@pytest.mark.parametrize("width", [70, 50, 40, 30, 20, 12])
def test_they_fit_and_nothing_is_lost(width):
    shown = columns(HEADER, ROWS, width)
    assert max(len(line) for line in shown.splitlines()) <= max(width, 20)
    for word in ("cod-tdq", "0.7731"):
        assert word in shown
    if width >= 30:
        assert all(word in shown for word in ROWS[0][1].split())


def on_terminal(columns, *argv):
    """What a command prints on a terminal of so many columns."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    child = subprocess.Popen([sys.executable, "-m", "codtdq", *argv], stdout=slave, env=env)
    os.close(slave)
    data = b""
    try:
        while piece := os.read(master, 65536):
            data += piece
    except OSError:  # the other end is closed
        pass
    os.close(master)
    assert child.wait() == 0
    return data.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("argv", [["list", "methods"], ["list", "presets"], ["plan"]], ids=" ".join)
def test_commands_fit_the_terminal(argv):
    shown = on_terminal(80, *argv)
    table = shown.split("\n\n")[0]
    assert "cod-tdq" in shown and max(len(line) for line in table.splitlines()) <= 80
