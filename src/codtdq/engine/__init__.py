"""Who executes a quantized model: the simulated reference, or the native engine."""

from codtdq.engine.choose import BACKENDS, BackendRecord, backend_of, foresee, use_backend
from codtdq.engine.cpu.simulation import offer_twins

offer_twins()

__all__ = ["BACKENDS", "BackendRecord", "backend_of", "foresee", "use_backend"]
