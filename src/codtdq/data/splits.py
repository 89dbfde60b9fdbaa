"""The splits of camosynth and the difficulty profile of each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Profile:
    """What makes a synthetic scene hard; every pair is a range to draw from.

    cue: total difference between object and background, in steps that a person just notices.
    colour: share of that difference that mean colour may carry (0 hides the colour cue).
    objects: least and most objects in a scene.
    area: share of the image of one object.
    band: main frequency of the texture in cycles per image.
    softness: width of the object's edge in pixels.
    specks: expected number of bright or dark specks per 192 x 192 pixels.
    speck_scale: typical speck amplitude (1 spans black to white); the tail is a power law.
    """

    cue: tuple[float, float]
    colour: tuple[float, float]
    objects: tuple[int, int]
    area: tuple[float, float]
    band: tuple[float, float]
    softness: tuple[float, float]
    specks: tuple[float, float]
    speck_scale: tuple[float, float]


PROFILES: dict[str, Profile] = {
    "easy": Profile(
        cue=(7.5, 12.0),
        colour=(0.2, 0.7),
        objects=(1, 1),
        area=(0.06, 0.35),
        band=(7.0, 26.0),
        softness=(1.0, 2.0),
        specks=(0.0, 12.0),
        speck_scale=(0.05, 0.15),
    ),
    "texture": Profile(
        cue=(11.0, 16.0),
        colour=(0.0, 0.01),
        objects=(1, 1),
        area=(0.08, 0.35),
        band=(9.0, 28.0),
        softness=(1.0, 2.5),
        specks=(0.0, 12.0),
        speck_scale=(0.05, 0.15),
    ),
    # Fine textures only: a small object shows nothing of a coarse one.
    "small": Profile(
        cue=(11.0, 16.0),
        colour=(0.2, 0.7),
        objects=(1, 4),
        area=(0.01, 0.05),
        band=(14.0, 34.0),
        softness=(1.0, 1.8),
        specks=(0.0, 12.0),
        speck_scale=(0.05, 0.15),
    ),
    "spikes": Profile(
        cue=(7.5, 12.0),
        colour=(0.1, 0.6),
        objects=(1, 2),
        area=(0.04, 0.25),
        band=(7.0, 26.0),
        softness=(1.0, 2.0),
        specks=(60.0, 220.0),
        speck_scale=(0.15, 0.4),
    ),
}


@dataclass(frozen=True)
class Split:
    """One named part of camosynth.

    count: number of images; None is unbounded (any index >= 0 is valid).
    profiles: names in PROFILES; each image draws one of them.
    """

    name: str
    count: int | None
    description: str
    profiles: tuple[str, ...]

    @property
    def is_test(self) -> bool:
        """Whether results are reported on this split."""
        return self.name.startswith("test-")


_MIXTURE = tuple(PROFILES)

# Not part of the mixture: objects that stand out, for the first steps of a training run.
PROFILES["plain"] = Profile(
    cue=(11.0, 17.0),
    colour=(0.3, 0.8),
    objects=(1, 2),
    area=(0.03, 0.35),
    band=(7.0, 28.0),
    softness=(1.0, 2.0),
    specks=(0.0, 12.0),
    speck_scale=(0.05, 0.15),
)

SPLITS: dict[str, Split] = {
    split.name: split
    for split in (
        Split("train", None, "unbounded mixture of all difficulties, for training", _MIXTURE),
        Split("warmup", None, "unbounded, objects that stand out, to begin training", ("plain",)),
        Split("calib", 128, "mixture of all difficulties, for calibration", _MIXTURE),
        Split("val", 240, "mixture of all difficulties, for model choice", _MIXTURE),
        Split("test-easy", 250, "one object that differs in texture and colour", ("easy",)),
        Split("test-texture", 250, "one object of the same colour: texture only", ("texture",)),
        Split("test-small", 250, "one to four small objects", ("small",)),
        Split("test-spikes", 250, "strong heavy-tailed specks on the background", ("spikes",)),
    )
}

TEST_SPLITS: tuple[str, ...] = tuple(name for name, split in SPLITS.items() if split.is_test)
