"""The server ends when it is told to, by Ctrl-C and by a service manager."""

import signal
import subprocess
import sys

import pytest

# a shell lets what it begins in the background ignore Ctrl-C, and so perhaps these tests
LISTENING = (
    "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "runpy.run_module('codtdq', run_name='__main__')"
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda each: each.name)
def test_a_stopped_server_is_no_error(number):
    words = ["-c", LISTENING, "serve", "--model", "escnet-small", "--port", "0"]
    with subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, text=True) as server:
        try:
            assert "http://127.0.0.1:" in server.stderr.readline()
            server.send_signal(number)
            assert server.wait(120) == 0
            assert server.stderr.read().strip() == "stopped"
        finally:
            server.kill()
