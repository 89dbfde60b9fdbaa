"""`codtdq table`, as a user types it."""

import pytest

from codtdq.cli import main


@pytest.fixture
def run(capsys):
    """Call the command: (exit code, what it printed, its errors)."""

    def call(*argv):
        try:
            code = main(["table", *(str(a) for a in argv)])
        except SystemExit as stop:  # argparse
            code = stop.code
        out, err = capsys.readouterr()
        return code, out, err

    return call
