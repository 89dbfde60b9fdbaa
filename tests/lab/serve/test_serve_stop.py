"""The server ends when it is told to, by Ctrl-C and by a service manager."""

import signal
import subprocess
import sys

import pytest

BEGUN_IN_THE_BACKGROUND = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "


@pytest.mark.parametrize("ignored", [False, True], ids=["heard", "ignored"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda each: each.name)
def test_a_stopped_server_is_no_error(number, ignored):
    """A shell lets what it begins in the background ignore Ctrl-C."""
    code = "import runpy; runpy.run_module('codtdq', run_name='__main__')"
    words = ["-c", BEGUN_IN_THE_BACKGROUND * ignored + code]
    words += ["serve", "--model", "escnet-small", "--port", "0"]
    with subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, text=True) as server:
        try:
            assert "http://127.0.0.1:" in server.stderr.readline()
            server.send_signal(number)
            assert server.wait(120) == 0
            assert server.stderr.read().strip() == "stopped"
        finally:
            server.kill()
