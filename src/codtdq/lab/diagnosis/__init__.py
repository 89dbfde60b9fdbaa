"""Where a quantized model loses evidence: per layer, per group, on boundaries (S4.4, S4.5)."""

from codtdq.lab.diagnosis.diagnose import diagnose
from codtdq.lab.diagnosis.record import (
    Diagnosis,
    GalleryItem,
    Histogram,
    ImageRecord,
    LayerRecord,
    LayerSample,
    MethodRecord,
    Region,
    Summary,
    WeightRecord,
)

__all__ = [
    "Diagnosis",
    "GalleryItem",
    "Histogram",
    "ImageRecord",
    "LayerRecord",
    "LayerSample",
    "MethodRecord",
    "Region",
    "Summary",
    "WeightRecord",
    "diagnose",
]
