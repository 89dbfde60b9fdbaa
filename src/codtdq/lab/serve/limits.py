"""What a visitor may ask for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds on one request, and on all that wait.

    bytes: of an upload. pixels: of the picture in it. waiting: requests that may wait besides the
    one that runs. seconds: until a request is answered or given up. upload_seconds: until its last
    byte is there.
    """

    bytes: int = 16 * 2**20
    pixels: int = 24_000_000
    waiting: int = 8
    seconds: float = 120.0
    upload_seconds: float = 20.0
