"""Shared by the tests of the kernels."""

from __future__ import annotations

import os

import pytest

triton = pytest.importorskip("triton", reason="needs the extra `gpu`")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = [
    pytest.mark.gpu,
    pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1"),
]
compiled = [
    pytest.mark.gpu,
    pytest.mark.skipif(INTERPRETED, reason="the interpreter does not compile"),
]
