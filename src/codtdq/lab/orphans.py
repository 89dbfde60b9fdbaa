"""End a background process together with the one that started it, however that one ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time

_POLL_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1  # of Linux' prctl


def die_with_parent(parent: int) -> None:
    """Have this process end when the process `parent`, which started it, is gone.

    Linux does it at once; elsewhere, and if the parent died before this call, a thread that looks
    every second does. Nothing is saved: this is for workers whose results only the parent wants.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(1)
