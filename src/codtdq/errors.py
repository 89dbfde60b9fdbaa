"""Errors that a user can act on. Each message says what was found, what is accepted, what to do."""

from __future__ import annotations


class CodtdqError(Exception):
    """Base of every error that this package raises on purpose; the CLI prints it in one line."""


class ConfigError(CodtdqError):
    """A configuration value, key or pattern is not valid."""


class UnsupportedError(CodtdqError):
    """The request is well formed, but this operator, dtype or backend cannot serve it."""


class CheckpointError(CodtdqError):
    """A checkpoint is missing, damaged, of another architecture or of a newer format."""


class DataError(CodtdqError):
    """An image, mask or data set folder cannot be used as it is."""


class CalibrationError(CodtdqError):
    """Calibration data is needed and missing, or does not fit the model."""
