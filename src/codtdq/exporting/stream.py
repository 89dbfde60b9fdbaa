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


def decoded(data: bytes) -> list[int]:
    """The numbers of bytes; what a last, unfinished one began is left out."""
    found, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if not byte & 128:
            found.append((value >> 1) ^ -(value & 1))
            value = shift = 0
    return found
