"""Whole numbers as bytes: seven bits to a byte, the lowest first, the sign in the lowest bit."""

from __future__ import annotations

from collections.abc import Iterable


def encoded(numbers: Iterable[int]) -> bytes:
    """The bytes of numbers of 64 bits."""
    found = bytearray()
    for number in numbers:
        rest = (number << 1) ^ (number >> 63)
        while rest > 127:
            found.append(rest & 127 | 128)
            rest >>= 7
        found.append(rest)
    return bytes(found)
