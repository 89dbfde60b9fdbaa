"""One small directory per quantized model: packed, hashed, restored bit for bit."""

from codtdq.checkpoint.store import load_into, read_header, save_model

__all__ = ["load_into", "read_header", "save_model"]
