"""One torch thread where results must not depend on how many there are.

Torch cuts a float sum, and the vectors of an element-wise function, by its number of threads: the
last digits differ, and a code next to a boundary flips. Inside of `one_thread` it cuts nothing.
Kernels whose sums have one order whatever the threads take `wanted_threads()`, inside as outside.
"""

from __future__ import annotations

import contextlib
import threading

import torch


class _Here(threading.local):
    depth = 0  # of `one_thread` in this Python thread
    wanted = 1  # threads that torch had when it was entered


_here = _Here()


def wanted_threads() -> int:
    """Threads that were asked for: those of torch, or those that it had outside of `one_thread`."""
    return _here.wanted if _here.depth else torch.get_num_threads()


class one_thread(contextlib.ContextDecorator):
    """Let torch compute with one thread, in the Python thread that enters; nests.

    Torch keeps the number per Python thread, and the last one that any thread set is what a new
    thread begins with: one that first calls torch while another is in here has one thread, until
    it sets another number.
    """

    def __enter__(self) -> None:
        """Remember the number, and set it to one."""
        if not _here.depth:
            _here.wanted = torch.get_num_threads()
            if _here.wanted != 1:
                torch.set_num_threads(1)
        _here.depth += 1

    def __exit__(self, *_: object) -> None:
        """Set the number that was."""
        _here.depth -= 1
        if not _here.depth and _here.wanted != 1:
            torch.set_num_threads(_here.wanted)
