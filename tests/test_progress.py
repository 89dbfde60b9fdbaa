"""Progress on a terminal of its own: it fits, it counts what there is, it leaves no trace."""

import contextlib
import fcntl
import importlib
import os
import pty
import re
import struct
import termios
import threading

import pytest
import torch

import codtdq
from codtdq.progress import Progress, track


@contextlib.contextmanager
def terminal(columns):
    """A stream on a terminal of so many columns, and what arrives there."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    seen = []

    def read():
        with contextlib.suppress(OSError):
            while data := os.read(master, 4096):
                seen.append(data)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    stream = os.fdopen(slave, "w")
    try:
        yield stream, seen
    finally:
        stream.close()
        reader.join(5)
        os.close(master)


def lines(seen):
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", b"".join(seen).decode())
    return re.split(r"[\r\n]+", text)


@pytest.mark.parametrize("total", [5, None])
@pytest.mark.parametrize("columns", [30, 80])
def test_lines_are_never_wider_than_the_terminal(total, columns):
    name = "encoder.backbone.layers.2.blocks.17.attention.self.query.projection"
    with terminal(columns) as (stream, seen), Progress("fitting operators", total, stream=stream):
        pass
    with terminal(columns) as (stream, seen):
        with Progress("fitting operators", total, stream=stream) as bar:
            for _ in range(5):
                bar.step(note=name)
                bar._bar.refresh()
    shown = lines(seen)
    assert any("fitting operators" in line for line in shown)
    assert max(len(line) for line in shown) < columns
    assert not shown[-1].strip()  # removed at the end


def test_a_pipe_gets_nothing(capsys):
    assert list(track([1, 2], "counting")) == [1, 2]
    assert capsys.readouterr() == ("", "")


def test_totals_follow_the_images_there_are(monkeypatch):
    bars = []

    class Counted(Progress):
        def __init__(self, label, total=None, **more):
            super().__init__(label, total, **more)
            bars.append(self)

    for module in ("codtdq.progress", "codtdq.operators.observing", "codtdq.methods.plus.sequence"):
        monkeypatch.setattr(importlib.import_module(module), "Progress", Counted)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
    batches = [torch.randn(2, 5, 32) for _ in range(3)]
    codtdq.quantize(model, "cod-tdq-plus", calibration=batches)
    found = {bar.label: (bar.count, bar.total) for bar in bars}
    assert found["calibrating"] == (6, 6)  # not the 128 that the method takes at most
    assert found["searching input formats"] == (2, 2)
    assert found["fitting operators"] == (2, 2)
