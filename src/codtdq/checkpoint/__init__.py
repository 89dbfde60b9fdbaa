"""One small directory per quantized model: packed, hashed, restored bit for bit."""

from codtdq.checkpoint.store import architecture_of, load_into, read_header, save_model

__all__ = ["architecture_of", "load_into", "read_header", "save_model"]
