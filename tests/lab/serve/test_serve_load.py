"""`codtdq serve` as a process of its own: it says where it is, and lasts."""

import contextlib
import http.client
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from codtdq.data import open_dataset

OCTETS = {"Content-Type": "application/octet-stream"}


@contextlib.contextmanager
def running(*options, calibrated=False):
    """The port of a server with the networks that need no calibration ready, or all of them."""
    command = [sys.executable, "-m", "codtdq", "serve", "--port", "0", "--model", "cfrn-small"]
    process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
    try:
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)/", process.stderr.readline())[1])
        until = time.monotonic() + 1500  # of a loaded machine
        while True:
            states = [one["state"] for one in get(port, "/models")["methods"]]
            if states.count("ready") >= (len(states) if calibrated else 3):
                break
            assert time.monotonic() < until
            time.sleep(0.5)
        yield process, port
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stderr.close()


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        return json.load(connection.getresponse())
    finally:
        connection.close()


def pictures(count):
    """PNG files of one scene each, all of different sizes."""
    for at in range(count):
        image = open_dataset("camosynth/test-easy", limit=at + 1)[at].image
        buffer = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(image[: 64 + 8 * at, : 120 - 8 * at])).save(
            buffer, format="PNG"
        )
        yield buffer.getvalue()


def resident(process):
    """MiB of memory that a process holds."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024


def test_the_command_says_where_it_is_and_ends_on_ctrl_c():
    with running() as (process, port):
        assert get(port, "/models")["model"] == "cfrn-small"
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(60) in (0, 130)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_thousand_requests_of_eight_clients_leave_memory_flat():
    files = list(pictures(8))
    with running("--queue", "16", calibrated=True) as (process, port):  # which takes memory, too
        expected, wrong, memory = [None] * 8, [], []

        def ask(connection, at):
            connection.request("POST", "/predict?method=w4a4", files[at], OCTETS)
            answer = connection.getresponse()
            found = json.load(answer)
            return found["masks"][0]["png"] if answer.status == 200 else found

        def work(at, count):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            for _ in range(count):
                found = ask(connection, at)
                expected[at] = expected[at] or found
                if found != expected[at]:
                    wrong.append((at, found))
            connection.close()

        for count in (25, 50, 50):  # the first round fills caches
            threads = [threading.Thread(target=work, args=(at, count)) for at in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(1800)
            memory.append(resident(process))
        assert not wrong and len(set(expected)) == 8
        assert memory[2] - memory[1] < 8, memory  # MiB over 400 requests
