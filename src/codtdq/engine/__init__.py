"""Who executes a quantized model: the simulated reference, or a backend."""

from codtdq.engine.cpu.simulation import offer_twins
from codtdq.engine.use import BACKENDS, BackendRecord, backend_of, predict_backend, use_backend

offer_twins()

__all__ = ["BACKENDS", "BackendRecord", "backend_of", "predict_backend", "use_backend"]
