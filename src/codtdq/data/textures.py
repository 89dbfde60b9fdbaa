"""Procedural colour textures: white noise shaped in the frequency domain, then coloured."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]

POINT_FUNCTIONS = ("linear", "ridge", "step", "spot")
_PALETTE_STEPS = 1024
_COARSE = 32  # grid on which smooth fields are drawn
# Anchor colours of places where animals hide: leaf, moss, bark, soil, sand, stone, snow, reef, sea.
_ANCHORS = np.array(
    [
        (0.36, 0.46, 0.18),
        (0.22, 0.32, 0.14),
        (0.42, 0.30, 0.20),
        (0.30, 0.22, 0.15),
        (0.74, 0.64, 0.46),
        (0.50, 0.49, 0.46),
        (0.78, 0.80, 0.82),
        (0.58, 0.36, 0.34),
        (0.20, 0.38, 0.46),
        (0.64, 0.56, 0.24),
        (0.16, 0.18, 0.17),
        (0.55, 0.60, 0.50),
    ],
    dtype=np.float32,
)


@dataclass(frozen=True, eq=False)
class TextureParams:
    """The knobs of one texture; `random_texture` turns them and a noise draw into colours.

    slope: fall of the amplitude spectrum, amplitude ~ frequency ** -slope.
    orientation: direction in radians in which the pattern varies fastest.
    anisotropy: 0 is isotropic, 4 is clearly striped.
    band: centre of the band-pass part in cycles per image.
    band_width: width of the band in natural-log frequency.
    band_share: 0 is pure power-law noise, 1 is pure band-pass noise.
    point: one of POINT_FUNCTIONS, applied to the normalised field.
    gain: contrast of the field before it is coloured.
    palette: float32 [K, 3] colour ramp in [0, 1], dark to light.
    """

    slope: float
    orientation: float
    anisotropy: float
    band: float
    band_width: float
    band_share: float
    point: str
    gain: float
    palette: FloatArray


def random_texture_params(
    rng: np.random.Generator, *, band: tuple[float, float] = (7.0, 26.0)
) -> TextureParams:
    """Draw the parameters of one texture at random; `band` is in cycles per image."""
    return TextureParams(
        slope=float(rng.uniform(0.7, 1.9)),
        orientation=float(rng.uniform(0.0, np.pi)),
        anisotropy=float(rng.choice((0.3, 1.5, 3.5)) * rng.uniform(0.6, 1.4)),
        band=float(np.exp(rng.uniform(np.log(band[0]), np.log(band[1])))),
        band_width=float(rng.uniform(0.15, 0.4)),
        band_share=float(rng.uniform(0.15, 0.85)),
        point=str(rng.choice(POINT_FUNCTIONS)),
        gain=float(rng.uniform(0.7, 1.4)),
        palette=_random_palette(rng),
    )


def random_texture(rng: np.random.Generator, size: int, params: TextureParams) -> FloatArray:
    """Draw one realisation of a texture: float32 [H, W, 3], about [0, 1], H = W = size.

    Tiles seamlessly, because the filter works on the periodic Fourier grid.
    """
    detail = _apply_point(params.point, filtered_noise(rng, size, _spectrum(size, params)))
    # The normal distribution function spreads the field evenly over the palette.
    position = 1.0 / (1.0 + np.exp(-1.7 * params.gain * detail))
    ramp = _palette_table(params.palette)
    return np.asarray(ramp[(position * (_PALETTE_STEPS - 1)).astype(np.int32)], dtype=np.float32)


def to_frequencies(field: FloatArray) -> NDArray[np.complex64]:
    """Return the half spectrum [H, W/2+1] of a field, in single precision."""
    from scipy import fft  # takes a third of a second to import: most commands draw no scene

    return np.asarray(fft.rfft2(field), dtype=np.complex64)


def from_frequencies(spectrum: NDArray[np.complex64], size: int) -> FloatArray:
    """Return the field [size, size] of a half spectrum."""
    from scipy import fft

    return np.asarray(fft.irfft2(spectrum, s=(size, size)), dtype=np.float32)


def filtered_noise(rng: np.random.Generator, size: int, spectrum: FloatArray) -> FloatArray:
    """Shape white noise by `spectrum` [H, W/2+1]; float32 [H, W], mean 0, deviation 1."""
    noise = rng.standard_normal((size, size), dtype=np.float32)
    return _normalise(from_frequencies(to_frequencies(noise) * spectrum, size))


def smooth_field(rng: np.random.Generator, size: int, *, cycles: float) -> FloatArray:
    """A smooth random field without detail above about `cycles` <= 5 cycles per image; [H, W]."""
    across, down = frequency_grid(_COARSE)
    noise = rng.standard_normal((_COARSE, _COARSE), dtype=np.float32)
    coarse = to_frequencies(noise) * np.exp((across**2 + down**2) * np.float32(-0.5 / cycles**2))
    # Only these few low frequencies differ from zero, so the same draw serves every size.
    half = _COARSE // 2
    spectrum = np.zeros((size, size // 2 + 1), dtype=np.complex64)
    spectrum[:half, :half] = coarse[:half, :half]
    spectrum[1 - half :, :half] = coarse[1 - half :, :half]
    return _normalise(from_frequencies(spectrum, size))


def _normalise(field: FloatArray) -> FloatArray:
    """Shift and scale to mean 0 and deviation 1."""
    field -= field.mean()
    field /= max(float(field.std()), 1e-6)
    return np.asarray(field, dtype=np.float32)


@lru_cache(maxsize=8)
def frequency_grid(size: int) -> tuple[FloatArray, FloatArray]:
    """Frequencies in cycles per image: across [1, W/2+1] and down [H, 1]."""
    across = np.arange(size // 2 + 1, dtype=np.float32)[None, :]
    down = (np.fft.fftfreq(size) * size).astype(np.float32)[:, None]
    return across, down


def _spectrum(size: int, params: TextureParams) -> FloatArray:
    """Amplitude spectrum of a texture, float32 [H, W/2+1], zero at frequency zero."""
    across, down = frequency_grid(size)
    cos, sin = np.float32(np.cos(params.orientation)), np.float32(np.sin(params.orientation))
    along = across * cos + down * sin
    aside = down * cos - across * sin
    squared = along**2 + aside**2
    squared[0, 0] = 1.0
    log_frequency = 0.5 * np.log(squared)
    directed = np.exp(params.anisotropy * ((along**2 - aside**2) / squared - 1.0))
    power_law = np.exp(-params.slope * log_frequency) * directed
    offset = (log_frequency - np.float32(np.log(params.band))) / params.band_width
    band = np.exp(-0.5 * offset**2) * directed
    power_law[0, 0] = band[0, 0] = 0.0
    mixed = (1.0 - params.band_share) * power_law / _rms(
        power_law
    ) + params.band_share * band / _rms(band)
    return np.asarray(mixed, dtype=np.float32)


def _rms(values: FloatArray) -> float:
    return max(float(np.sqrt(np.mean(values**2))), 1e-12)


def _apply_point(point: str, field: FloatArray) -> FloatArray:
    """Apply a point function that keeps mean about 0 and deviation about 1."""
    shaped: NDArray[np.floating] = field
    if point == "ridge":  # thin dark lines: veins, cracks, grass blades
        shaped = (np.abs(field) - 0.798) / 0.603
    elif point == "step":  # two plateaus: blotches, zebra stripes
        shaped = np.tanh(2.5 * field) * 1.2
    elif point == "spot":  # sparse bright spots on a flat ground
        shaped = (np.maximum(field - 0.4, 0.0) - 0.23) / 0.42
    else:
        assert point == "linear", f"unknown point function {point!r}"
    return shaped.astype(np.float32, copy=False)


def _random_palette(rng: np.random.Generator) -> FloatArray:
    """Draw a ramp of four colours from dark to light: float32 [4, 3]."""
    first, second = _ANCHORS[rng.choice(len(_ANCHORS), size=2, replace=False)]
    middle = 0.5 * (first + second) * rng.uniform(0.85, 1.15)
    dark = middle * rng.uniform(0.35, 0.65)
    light = middle + (1.0 - middle) * rng.uniform(0.25, 0.55)
    ramp = np.stack([dark, 0.7 * first + 0.3 * dark, 0.7 * second + 0.3 * light, light])
    ramp += rng.uniform(-0.04, 0.04, size=ramp.shape)
    ramp = ramp[np.argsort(ramp @ np.array([0.30, 0.59, 0.11]))]
    return np.clip(ramp, 0.04, 0.92).astype(np.float32)


def _palette_table(palette: FloatArray) -> FloatArray:
    """Interpolate the ramp: float32 [_PALETTE_STEPS, 3]."""
    knots = np.linspace(0.0, 1.0, len(palette))
    steps = np.linspace(0.0, 1.0, _PALETTE_STEPS)
    columns = [np.interp(steps, knots, palette[:, channel]) for channel in range(3)]
    return np.stack(columns, axis=1).astype(np.float32)
