"""Which methods there are, in the order and the groups in which tables show them."""

from __future__ import annotations

from dataclasses import dataclass

FLOAT = "fp32"
OUR_METHOD = "cod-tdq"
BIT_WIDTHS = ("fp32", "w8a8", "w4a8", "w4a4")  # rows of the paper's Table 1

# Groups of the main table. A method that is not listed, such as a user's own, comes last.
GROUPS: dict[str, tuple[str, ...]] = {
    "Full precision and naive quantization": BIT_WIDTHS,
    "ViT PTQ": (
        "noisyquant",
        "ptq4vit",
        "orq-vit",
        "token-bitwidth",
        "fima-q",
        "igq-vit",
        "repq-vit",
    ),
    "SAM and LLM PTQ": ("pq-sam", "ptq4sam", "ahcptq", "smoothquant", "quartz", "arcquant"),
    "Ours": (
        "cod-tdq",
        "cod-tdq-per-tensor-conv",
        "cod-tdq-literal",
        "cod-tdq-guarded",
        "cod-tdq-plus",
    ),
}
OTHER = "Variants, controls and others"

TITLES = {  # where no row brings a title: timings, weights, methods of which every cell failed
    "fp32": "FP32",
    "w8a8": "W8A8 (naive)",
    "w4a8": "W4A8 (naive)",
    "w4a4": "W4A4 (naive)",
    "noisyquant": "NoisyQuant",
    "ptq4vit": "PTQ4ViT",
    "orq-vit": "ORQ-ViT",
    "token-bitwidth": "post-GELU",
    "fima-q": "FIMA-Q",
    "fima-q-init": "FIMA-Q (start)",
    "igq-vit": "IGQ-ViT",
    "repq-vit": "RepQ-ViT",
    "pq-sam": "PQ-SAM",
    "ptq4sam": "PTQ4SAM",
    "ptq4sam-s": "PTQ4SAM-S",
    "ahcptq": "AHCPTQ",
    "smoothquant": "SmoothQuant",
    "quartz": "QuaRTZ",
    "arcquant": "ARCQuant",
    "dstg-only": "DSTG only",
    "cod-tdq": "COD-TDQ",
    "cod-tdq-plus": "COD-TDQ plus",
}


@dataclass(frozen=True)
class Variant:
    """What an ablation switches on, as in the paper's variant table."""

    dstg: bool
    constraints: str  # active constraints of DCRP
    scope: str
    description: str

    @property
    def dcrp(self) -> bool:
        """Whether any range is projected."""
        return self.constraints != "-"


_BOTH = "C1 + C2"
ABLATION: dict[str, Variant] = {
    "w4a4": Variant(False, "-", "shared range", "one range per tensor, from each image"),
    "per-tensor": Variant(False, "-", "fixed global range", "one range per tensor, calibrated"),
    "dstg-only": Variant(True, "-", "all operators", "base radii of token groups, not projected"),
    "dstg-everywhere": Variant(
        True, "-", "shared ranges of the model included", "token groups also in CFRN's convolutions"
    ),
    "dstg-only-per-tensor-conv": Variant(
        True, "-", "shared ranges read per tensor", "the other reading of CFRN's convolutions"
    ),
    "dcrp-attn": Variant(False, _BOTH, "attention only", "projected shared range, CFRN's control"),
    "dcrp-only": Variant(False, _BOTH, "all operators", "projected shared range, ESCNet's control"),
    "dcrp-only-fixed": Variant(
        False, _BOTH, "fixed by calibration", "projected shared range, radii from calibration"
    ),
    "c1-only": Variant(False, "C1", "all operators", "shared range under the step bound alone"),
    "c2-only": Variant(False, "C2", "all operators", "shared range under the zero-bin bound alone"),
    "cod-tdq": Variant(True, _BOTH, "all operators", "the full method"),
    "cod-tdq-per-tensor-conv": Variant(
        True, _BOTH, "shared ranges read per tensor", "the other reading of CFRN's convolutions"
    ),
    "cod-tdq-literal": Variant(
        True, _BOTH, "the paper to the letter", "Algorithm S1, all operators at 4 bits"
    ),
    "cod-tdq-linear-dcrp": Variant(
        True, _BOTH, "bounds in Linear operators", "token groups of convolutions not projected"
    ),
    "cod-tdq-fc2-a8": Variant(True, _BOTH, "all operators", "second MLP layers read 8 bits"),
    "cod-tdq-bias": Variant(
        True, _BOTH, "all operators", "and the mean of Linear outputs corrected"
    ),
    "cod-tdq-affine": Variant(True, _BOTH, "all operators", "and their mean and slope corrected"),
    "cod-tdq-guarded": Variant(
        True, _BOTH, "where it lowers the error", "a bound counts only where it helps its group"
    ),
}
# Variants that stand in the ablation table only.
ABLATION_ONLY = frozenset(ABLATION) - {"w4a4", *GROUPS["Ours"]}
OURS = ABLATION_ONLY | frozenset(GROUPS["Ours"])  # never a baseline

STRESSES = {"outliers": "planted outlier channels"}


def order_of(method: str) -> tuple[int, str]:
    """Sort key: listed methods in their order, then the ablations, then all others by name."""
    listed = [name for names in GROUPS.values() for name in names] + list(ABLATION)
    return (listed.index(method), "") if method in listed else (len(listed), method)


def stress_title(stress: str) -> str:
    """Return what a stress is, in words."""
    return STRESSES.get(stress, f"stress {stress!r}")
