"""Image in, mask out, score: prediction, evaluation, calibration images, layer losses."""

from codtdq.evaluation.calibration import CalibrationImages
from codtdq.evaluation.evaluate import EvalResult, evaluate
from codtdq.evaluation.layers import LayerLoss, layer_losses
from codtdq.evaluation.predict import predict, predict_batch

__all__ = [
    "CalibrationImages",
    "EvalResult",
    "LayerLoss",
    "evaluate",
    "layer_losses",
    "predict",
    "predict_batch",
]
