from __future__ import annotations

import dataclasses
import json

import pytest

from codtdq.errors import ConfigError
from codtdq.lab.training import SourceSpec, TrainConfig, parse_source


def test_json_round_trip(config: TrainConfig) -> None:
    config = dataclasses.replace(config, frozen=("a.*", "b"), slow=("c",))
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stepz": 3}, "unknown setting 'stepz'"),
        ({"steps": "3"}, "steps is '3'"),
        ({"steps": True}, "steps is True"),
        ({"steps": 0}, "steps is 0"),
        ({"ema": 1.0}, "ema is 1.0"),
        ({"slow_lr": 0.0}, "slow_lr is 0.0"),
        ({"frozen": "encoder.*"}, r"frozen is 'encoder\.\*'"),
        ({"sources": []}, "no training source"),
        ({"sources": [{"kind": "web"}]}, "'web' is unknown"),
        ({"sources": [{"kind": "camosynth", "colour": 1}]}, "unknown setting 'colour'"),
    ],
)
def test_from_dict_is_strict(config: TrainConfig, change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig.from_dict({**config.to_dict(), **change})


def test_from_dict_names_a_missing_setting(config: TrainConfig) -> None:
    data = config.to_dict()
    del data["loss"]
    with pytest.raises(ConfigError, match="'loss' is missing"):
        TrainConfig.from_dict(data)


def test_first_difference_ignores_how_a_session_runs(config: TrainConfig) -> None:
    assert config.first_difference(dataclasses.replace(config, threads=2, workers=1)) is None
    assert config.first_difference(dataclasses.replace(config, lr=0.5)) == "lr"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("camosynth", SourceSpec(kind="camosynth")),
        ("camosynth:2.5", SourceSpec(kind="camosynth", weight=2.5)),
        ("compose:a/b", SourceSpec(kind="compose", path="a/b")),
        ("compose:a/b:3", SourceSpec(kind="compose", path="a/b", weight=3.0)),
        ("pairs:C:/data:2", SourceSpec(kind="pairs", path="C:/data", weight=2.0, holdout=7)),
        ("pairs:C:/data", SourceSpec(kind="pairs", path="C:/data", holdout=7)),
    ],
)
def test_parse_source(text: str, expected: SourceSpec) -> None:
    assert parse_source(text, holdout=7) == expected


@pytest.mark.parametrize("text", ["pairs", "pairs:3", "camosynth:folder", "compose:a:-1", "web:x"])
def test_parse_source_refuses(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_source(text)


def test_source_name_holds_no_directories() -> None:
    assert parse_source("pairs:/home/someone/CAMO:2").name == "pairs-CAMO"
