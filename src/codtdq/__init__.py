"""COD-TDQ."""
from codtdq._version import __version__
