"""Fourier transforms of real images, in the precision of their input (numpy's are float64).

scipy is imported by the first transform: who only predicts needs none, and would wait for it.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray


def to_spectrum(image: NDArray[Any]) -> NDArray[Any]:
    """Half of the spectrum of an image [H, W]: complex [H, W // 2 + 1]."""
    from scipy import fft

    found: NDArray[Any] = fft.rfft2(image)
    return found


def to_image(spectrum: NDArray[Any], size: int) -> NDArray[Any]:
    """The image [size, size] of half a spectrum."""
    from scipy import fft

    found: NDArray[Any] = fft.irfft2(spectrum, s=(size, size))
    return found
