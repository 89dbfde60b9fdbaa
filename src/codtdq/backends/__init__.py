"""Who executes a quantized model: the simulated reference, or the native engine."""

from codtdq.backends.choose import BACKENDS, BackendRecord, backend_of, foresee, use_backend

__all__ = ["BACKENDS", "BackendRecord", "backend_of", "foresee", "use_backend"]
