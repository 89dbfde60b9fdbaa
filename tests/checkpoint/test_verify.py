"""`codtdq verify`: a sound file passes, a changed one does not, a signature is somebody's."""

import json
import shutil
import subprocess

import pytest
import torch
from altering import edit_meta, rewrite
from engine_cases import needs_engine

from codtdq.api import save, verify
from codtdq.cli import main
from codtdq.errors import CheckpointError
from codtdq.models.registry import build_model
from small_nets import images, simulate, small_net


@pytest.fixture(scope="module")
def registered(tmp_path_factory):
    torch.manual_seed(0)
    model = simulate(build_model("cfrn-small"), "cod-tdq")
    return save(model, tmp_path_factory.mktemp("verify") / "m")


@pytest.fixture
def copy(registered, tmp_path):
    return shutil.copytree(registered, tmp_path / "m")


def test_a_sound_checkpoint_passes(copy, capsys):
    assert main(["verify", str(copy), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["network"] and found["architecture"] == "cfrn-small" and found["operators"] > 10
    assert found["method"] == "cod-tdq" and found["signed_by"] is None
    assert main(["verify", str(copy)]) == 0
    assert "sound" in capsys.readouterr().out


def test_a_model_that_is_not_registered_is_compared_with_its_plan(tmp_path):
    model = simulate(small_net(), "cod-tdq-plus", calibration=[images(2)])
    found = verify(save(model, tmp_path / "m"))
    assert not found.network and found.operators == 8
    rewrite(tmp_path / "m", lambda e: e.update({"mlp.fc1.weight_scheme.packed": torch.zeros(3)}))
    with pytest.raises(CheckpointError, match=r"mlp\.fc1\.weight_scheme"):
        verify(tmp_path / "m")


def test_a_changed_checkpoint_is_one_line_and_exit_code_2(copy, capsys):
    edit_meta(copy, sha256="0" * 64)
    assert main(["verify", str(copy)]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and "sha256" in said


@pytest.fixture
def program(registered, tmp_path):
    path = tmp_path / "net.codtdq"
    assert main(["export", str(registered), "--to", "program", "--out", str(path)]) == 0
    return path


@needs_engine
def test_a_sound_program_file_passes(program, capsys):
    capsys.readouterr()
    assert main(["verify", str(program), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["model"], found["method"]) == ("cfrn-small", "cod-tdq")
    assert found["inputs"] == [[1, 3, 160, 160]] and found["bytes"] == program.stat().st_size
    assert found["run_bytes"] > 1e6 and found["weight_bytes"] > 1e6 and found["format"] == 1
    assert main(["verify", str(program)]) == 0
    assert capsys.readouterr().out.startswith(f"{program}: sound\n")


@needs_engine
@pytest.mark.parametrize("damage", ["cut", "changed", "foreign"])
def test_a_damaged_program_file_is_one_line_and_exit_code_2(program, damage, capsys):
    data = bytearray(program.read_bytes())
    data[len(data) // 2] ^= damage == "changed"
    whole = {"cut": data[:5000], "changed": data, "foreign": b"PK" + bytes(5000)}[damage]
    program.write_bytes(bytes(whole))
    capsys.readouterr()
    assert main(["verify", str(program)]) == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and str(program) in said


def keygen(*words):
    subprocess.run(["ssh-keygen", *words], check=True, capture_output=True)


@pytest.fixture
def signers(tmp_path):
    """A key (tmp_path / "key"), and the file that says whose it is."""
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not installed")
    keygen("-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key"))
    key = (tmp_path / "key.pub").read_text()
    (tmp_path / "signers").write_text(f'me@example.org namespaces="codtdq" {key}')
    return tmp_path / "signers"


@needs_engine
def test_signatures_of_program_files(program, signers, tmp_path, capsys):
    ask = ["verify", str(program), "--signers", str(signers), "--identity", "me@example.org"]
    assert main(ask) == 2 and "no such file" in capsys.readouterr().err
    keygen("-Y", "sign", "-f", str(tmp_path / "key"), "-n", "codtdq", str(program))
    assert main(ask) == 0 and "me@example.org" in capsys.readouterr().out
    keygen("-Y", "sign", "-f", str(tmp_path / "key"), "-n", "codtdq", str(signers))
    other = f"{signers}.sig"  # of another file
    assert main([*ask, "--signature", other]) == 2
    assert "no signature of" in capsys.readouterr().err


def test_signatures(copy, signers, tmp_path, capsys):
    ask = ["verify", str(copy), "--signers", str(signers), "--identity", "me@example.org"]
    assert main(ask) == 2 and "no such file" in capsys.readouterr().err
    keygen("-Y", "sign", "-f", str(tmp_path / "key"), "-n", "codtdq", str(copy / "codtdq.json"))
    assert main(ask) == 0 and "me@example.org" in capsys.readouterr().out
    assert main([*ask[:-1], "you@example.org"]) == 2
    said = capsys.readouterr().err
    assert "no signature of 'you@example.org'" in said and "\\x0a" not in said
    assert said.count("\n") == 1
    assert main(ask[:-2]) == 2 and "--identity" in capsys.readouterr().err
    edit_meta(copy, codtdq="9.9")  # sealed anew: sound in itself, but not what was signed
    assert main(["verify", str(copy)]) == 0
    capsys.readouterr()
    assert main(ask) == 2 and "no signature of" in capsys.readouterr().err


def test_nothing_there_is_what_is_said(tmp_path, capsys):
    assert main(["verify", str(tmp_path / "gone")]) == 2
    assert "gone: no such file or directory" in capsys.readouterr().err
