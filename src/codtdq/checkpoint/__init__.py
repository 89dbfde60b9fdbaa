"""Save and load quantized models: packed, hashed, atomic; one format for every method."""

from codtdq.checkpoint.header import FORMAT_VERSION
from codtdq.checkpoint.store import read_header, restore, save_model

__all__ = ["FORMAT_VERSION", "read_header", "restore", "save_model"]
