from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from codtdq.errors import CheckpointError, ConfigError
from codtdq.models import build_model, create_model, register_model
from codtdq.models.skeleton import without_parameters
from codtdq.models.weights import load_checkpoint, save_weights, shipped_weights


class TinyNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 2)
        self.register_buffer("index", torch.arange(6).view(2, 3))
        self.register_buffer("mask", torch.zeros(2))


def make_state() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    state = {}
    for key, value in TinyNet().state_dict().items():
        if value.is_floating_point():
            # multiples of 1/64: exact in float16
            state[key] = torch.randint(-64, 64, value.shape, generator=generator) / 64
        else:
            state[key] = value + 1
    return state


def assert_loaded(model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, state[key].to(value.dtype), rtol=0, atol=0)


def load_error(path: Path, model: nn.Module | None = None) -> str:
    """The message of a load that fails; it must be one line, and the model must stay as it was."""
    model = model or TinyNet()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(model, path, architecture="tiny")
    assert_loaded(model, before)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".PTH", ".safetensors"])
def test_load_checkpoint_reads_every_accepted_suffix(tmp_path: Path, suffix: str) -> None:
    path, state = tmp_path / f"net{suffix}", make_state()
    save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
    model = TinyNet()
    load_checkpoint(model, path, architecture="tiny")
    assert_loaded(model, state)


@pytest.mark.parametrize("wrapper", ["state_dict", "model", "params"])
def test_load_checkpoint_unwraps_training_checkpoints(tmp_path: Path, wrapper: str) -> None:
    path, state = tmp_path / "net.pth", make_state()
    torch.save({"epoch": 3, wrapper: state}, path)
    model = TinyNet()
    load_checkpoint(model, path, architecture="tiny")
    assert_loaded(model, state)


@pytest.mark.parametrize(
    "prefix", ["_orig_mod.", "module.", "_orig_mod.module.", "module._orig_mod.", "module.module."]
)
def test_load_checkpoint_strips_wrapper_prefixes(tmp_path: Path, prefix: str) -> None:
    path, state = tmp_path / "net.pth", make_state()
    torch.save({prefix + key: value for key, value in state.items()}, path)
    model = TinyNet()
    load_checkpoint(model, path, architecture="tiny")
    assert_loaded(model, state)


def test_load_checkpoint_keeps_a_prefix_that_belongs_to_the_model(tmp_path: Path) -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(2, 2)

    path, model = tmp_path / "net.pth", Holder()
    state = {key: torch.ones_like(value) for key, value in model.state_dict().items()}
    torch.save(state, path)
    load_checkpoint(model, path, architecture="holder")
    assert_loaded(model, state)


def test_load_checkpoint_refuses_a_key_given_twice(tmp_path: Path) -> None:
    path, state = tmp_path / "net.pth", make_state()
    torch.save({**state, "module.head.bias": state["head.bias"]}, path)
    assert "'head.bias' twice" in load_error(path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_load_checkpoint_converts_to_the_dtype_of_the_model(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    path, state = tmp_path / "net.pth", make_state()
    torch.save({k: v.to(dtype) if v.is_floating_point() else v for k, v in state.items()}, path)
    model = TinyNet()
    load_checkpoint(model, path, architecture="tiny")
    assert_loaded(model, state)
    assert model.head.weight.dtype == torch.float32
    assert model.index.dtype == torch.int64


def test_load_checkpoint_counts_and_lists_differences(tmp_path: Path) -> None:
    path, state = tmp_path / "net.pth", make_state()
    del state["conv.weight"], state["norm.running_var"]
    state["extra.weight"] = torch.zeros(1)
    state["head.weight"] = torch.zeros(3, 4)
    torch.save(state, path)
    message = load_error(path)
    assert "does not fit 'tiny'" in message
    assert "2 keys missing, 1 unexpected, 1 mis-shaped" in message
    assert "conv.weight is missing; norm.running_var is missing; extra.weight is unexpected" in (
        message
    )
    assert "head.weight is" not in message  # only the first three are listed


def test_load_checkpoint_says_both_shapes(tmp_path: Path) -> None:
    path, state = tmp_path / "net.pth", make_state()
    state["head.weight"] = torch.zeros(3, 4)
    torch.save(state, path)
    message = load_error(path)
    assert "0 keys missing, 0 unexpected, 1 mis-shaped" in message
    assert "head.weight is float32 [3, 4] where float32 [2, 4] is needed" in message


def test_load_checkpoint_refuses_integers_for_weights(tmp_path: Path) -> None:
    path, state = tmp_path / "net.pth", make_state()
    state["head.weight"] = state["head.weight"].to(torch.int8)
    torch.save(state, path)
    assert "head.weight is int8 [2, 4] where float32 [2, 4] is needed" in load_error(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_load_checkpoint_refuses_weights_that_are_not_finite(
    tmp_path: Path, value: float, suffix: str
) -> None:
    path, state = tmp_path / f"net{suffix}", make_state()
    state["conv.weight"][1, 2, 0, 1] = value
    save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
    assert "conv.weight holds NaN or infinity" in load_error(path)


def test_load_checkpoint_refuses_nan_but_accepts_infinity_in_buffers(tmp_path: Path) -> None:
    path, state = tmp_path / "net.pth", make_state()
    state["mask"][0] = float("-inf")
    torch.save(state, path)
    load_checkpoint(TinyNet(), path, architecture="tiny")
    state["mask"][0] = float("nan")
    torch.save(state, path)
    assert "mask holds NaN" in load_error(path)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.98])
def test_load_checkpoint_refuses_truncated_files(tmp_path: Path, suffix: str, keep: float) -> None:
    path, state = tmp_path / f"net{suffix}", make_state()
    save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    assert "damaged or not a checkpoint" in load_error(path)


@pytest.mark.parametrize("keep", [0.05, 0.3, 0.98])
def test_load_checkpoint_refuses_truncated_files_of_the_old_format(
    tmp_path: Path, keep: float
) -> None:
    path = tmp_path / "net.pth"
    torch.save(make_state(), path, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    load_error(path)


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".safetensors"])
def test_load_checkpoint_refuses_files_of_another_kind(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"net{suffix}"
    path.write_bytes(b"<!DOCTYPE html><html>quota exceeded</html>\n" * 50)
    assert "damaged or not a checkpoint" in load_error(path)


class RunsCode:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("zipped", [True, False])
def test_load_checkpoint_never_runs_code_from_a_file(tmp_path: Path, zipped: bool) -> None:
    path, target = tmp_path / "net.pth", tmp_path / "made_by_the_file"
    content = {**make_state(), "payload": RunsCode(target)}
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    assert "could run code" in load_error(path)
    assert not target.exists()


@pytest.mark.parametrize("version", ["2.4.1", "2.5.1+cpu", "2.6.0", "2.9.1"])
def test_pickles_are_refused_by_versions_of_torch_that_run_their_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    path = tmp_path / "net.pth"
    torch.save(make_state(), path)
    monkeypatch.setattr(torch, "__version__", version)
    said = load_error(path)
    assert f"torch {version} can run code" in said and "upgrade to torch 2.10" in said


def test_load_checkpoint_refuses_torchscript(tmp_path: Path) -> None:
    """Such an archive ran code of its own under older versions, in spite of weights_only."""
    path = tmp_path / "net.pth"
    torch.jit.trace(nn.Linear(2, 2), torch.zeros(1, 2)).save(str(path))
    assert "a TorchScript archive" in load_error(path)


def test_load_checkpoint_refuses_a_whole_pickled_model(tmp_path: Path) -> None:
    path = tmp_path / "net.pth"
    torch.save(nn.Linear(2, 2), path)
    assert "save the bare state_dict" in load_error(path)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ([torch.zeros(2)], "holds no state dict"),
        ({}, "holds no state dict"),
        ({"state_dict": {}}, "holds no state dict"),
        ({"weight": torch.zeros(2), "epoch": 3}, "1 entries are no tensors (first: 'epoch')"),
    ],
)
def test_load_checkpoint_refuses_content_without_a_state_dict(
    tmp_path: Path, content: object, complaint: str
) -> None:
    path = tmp_path / "net.pth"
    torch.save(content, path)
    assert complaint in load_error(path)


def test_load_checkpoint_names_missing_files_folders_and_suffixes(tmp_path: Path) -> None:
    assert "no such checkpoint file" in load_error(tmp_path / "absent.pth")
    assert "no such checkpoint file" in load_error(tmp_path)
    other = tmp_path / "net.ckpt"
    torch.save(make_state(), other)
    message = load_error(other)
    assert "'.ckpt'" in message
    assert ".pth, .pt, .safetensors" in message


def test_create_model_names_the_shipped_file_when_it_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("codtdq.models.registry._MODELS", {})
    register_model(
        "tiny-without-file", description="", input_size=32, weights="tiny-absent.safetensors"
    )(TinyNet)
    named = r"tiny-without-file are not in this .*src/codtdq/weights/tiny-absent\.safetensors; pass"
    with pytest.raises(ConfigError, match=named):
        create_model("tiny-without-file")


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> str:
    """A registered model without shipped weights."""
    monkeypatch.setattr("codtdq.models.registry._MODELS", {})
    register_model("tiny-bare", description="", input_size=32)(TinyNet)
    return "tiny-bare"


def test_create_model_refuses_random_weights_that_nobody_asked_for(bare: str) -> None:
    with pytest.raises(ConfigError, match=r"tiny-bare.*checkpoint=FILE, or pretrained=False"):
        create_model(bare)


def test_create_model_gives_random_weights_when_asked(bare: str) -> None:
    found = []
    for seed in (3, 3, 4):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            found.append(create_model(bare, pretrained=False).state_dict())
    first, again, other = found
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("pretrained", [True, False])
def test_create_model_loads_a_given_checkpoint(tmp_path: Path, bare: str, pretrained: bool) -> None:
    state = make_state()
    torch.save(state, tmp_path / "net.pth")
    model = create_model(bare, checkpoint=tmp_path / "net.pth", pretrained=pretrained)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def test_create_model_without_pretraining_leaves_the_shipped_file_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("codtdq.models.registry._MODELS", {})
    register_model("tiny", description="", input_size=32, weights="absent.safetensors")(TinyNet)
    assert isinstance(create_model("tiny", pretrained=False), TinyNet)


def test_shipped_weights_lie_in_the_package() -> None:
    path = shipped_weights("some.safetensors")
    assert path.parts[-3:] == ("codtdq", "weights", "some.safetensors")
    assert (path.parent / "__init__.py").is_file()


def test_save_weights_round_trips_and_keeps_integers(tmp_path: Path) -> None:
    path, model = tmp_path / "new" / "net.safetensors", TinyNet()
    model.load_state_dict(make_state())
    save_weights(model, path)
    with safe_open(path, framework="pt") as file:
        assert file.metadata()["dtype"] == "float16"
        assert file.get_tensor("head.weight").dtype == torch.float16
        assert file.get_tensor("index").dtype == torch.int64
    again = TinyNet()
    load_checkpoint(again, path, architecture="tiny")
    assert_loaded(again, make_state())
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o644


def test_save_weights_writes_channels_last_models_in_plain_layout(tmp_path: Path) -> None:
    path, model = tmp_path / "net.safetensors", TinyNet().to(memory_format=torch.channels_last)
    save_weights(model, path, dtype=torch.float32)
    again = TinyNet()
    load_checkpoint(again, path, architecture="tiny")
    assert_loaded(again, model.state_dict())


def test_save_weights_keeps_the_old_file_when_it_fails(tmp_path: Path) -> None:
    path, model = tmp_path / "net.safetensors", TinyNet()
    save_weights(model, path)
    before = path.read_bytes()
    with torch.no_grad():
        model.head.weight[0, 0] = 1e6  # beyond float16
    with pytest.raises(CheckpointError, match=r"head\.weight is not finite in float16"):
        save_weights(model, path)
    assert path.read_bytes() == before
    save_weights(model, path, dtype=torch.float32)
    assert path.read_bytes() != before


def test_save_weights_leaves_no_temporary_file_when_writing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("codtdq.io.os.replace", fail)
    with pytest.raises(CheckpointError, match=r"cannot be written .*no space left"):
        save_weights(TinyNet(), tmp_path / "net.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_save_weights_refuses_other_suffixes(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"written as \.safetensors"):
        save_weights(TinyNet(), tmp_path / "net.pth")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mebibytes"), [("cfrn", 755.4), ("escnet", 381.8), ("escnet-v2", 262.35)]
)
def test_saved_state_has_the_size_of_the_release(name, mebibytes, tmp_path):
    """torch.save of a fresh state dict, as the releases were saved."""
    path = tmp_path / "state.pth"
    torch.save(build_model(name).state_dict(), path)
    assert path.stat().st_size / 2**20 == pytest.approx(mebibytes, abs=0.1)


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(40, 30)


def test_block8_is_a_byte_a_value_and_repeats_to_the_bit(tmp_path: Path) -> None:
    path, again = tmp_path / "net.safetensors", tmp_path / "again.safetensors"
    torch.manual_seed(0)
    model, loaded, twice = Wide(), Wide(), Wide()
    save_weights(model, path, "block8")
    load_checkpoint(loaded, path, architecture="wide")
    weight, found = model.linear.weight.detach(), loaded.linear.weight.detach()
    assert 0 < float((weight - found).abs().max()) <= 0.6 * float(weight.max() - weight.min()) / 255
    assert torch.equal(loaded.linear.bias, model.linear.bias)  # shorter than a block
    save_weights(loaded, again, "block8")
    load_checkpoint(twice, again, architecture="wide")
    torch.testing.assert_close(twice.linear.weight, loaded.linear.weight, rtol=0, atol=1e-7)
    with safe_open(path, "pt") as file:
        assert file.get_slice("linear.weight#block8.codes").get_dtype() == "U8"
        assert file.metadata()["dtype"] == "block8"


def test_other_names_of_dtypes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="accepted: 'block8' or a torch dtype"):
        save_weights(Wide(), tmp_path / "net.safetensors", "int3")


@pytest.mark.parametrize("change", ["low", "step", "codes", "short"])
def test_damaged_blocks_are_refused(tmp_path: Path, change: str) -> None:
    from safetensors.torch import load_file

    path = tmp_path / "net.safetensors"
    save_weights(Wide(), path, "block8")
    entries = load_file(path)
    if change == "short":
        entries["linear.weight#block8.low"] = entries["linear.weight#block8.low"][:-1].clone()
    else:
        del entries[f"linear.weight#block8.{change}"]
    save_file(entries, path)
    assert "#block8" in load_error(path, Wide())


def test_a_missing_file_is_said_before_the_network_is_built(monkeypatch):
    """The full networks take seconds and a gigabyte to build."""
    monkeypatch.setattr("codtdq.models.registry.build_model", lambda name: pytest.fail("built"))
    with pytest.raises(CheckpointError, match=r"nowhere\.pth: no such checkpoint file"):
        create_model("cfrn", checkpoint="nowhere.pth")


def test_a_model_that_was_built_empty_owns_its_memory(tmp_path: Path) -> None:
    """Tensors of a file may share memory or be views of more; parameters must not."""
    shared = torch.arange(16.0).reshape(4, 4)
    more = torch.arange(8.0)
    torch.save(
        {"0.weight": shared, "0.bias": more[:4], "1.weight": shared, "1.bias": more[4:]},
        tmp_path / "shared.pth",
    )
    with without_parameters():
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    load_checkpoint(model, tmp_path / "shared.pth", architecture="two")
    with torch.no_grad():
        for parameter in model[0].parameters():
            parameter.zero_()
    assert torch.equal(model[1].weight, shared) and torch.equal(model[1].bias, more[4:])
    assert all(one.is_contiguous() and one.requires_grad for one in model.parameters())
