"""Files are written whole or not at all, and by one piece of code."""

import json
import os
import stat
from pathlib import Path

import pytest

import codtdq
from codtdq.io import atomic_path, draft_folder, write_bytes, write_json, write_text

SOURCE = Path(codtdq.__file__).parent


@pytest.fixture
def umask():
    """Sets the umask of this process; the old one comes back after the test."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_atomic_path_keeps_the_old_file_when_the_writer_fails(tmp_path, error):
    target = write_text(tmp_path / "a.txt", "old")
    with pytest.raises(error), atomic_path(target) as temporary:
        temporary.write_text("half of the n")
        raise error
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_atomic_path_shows_the_old_file_until_the_block_ends(tmp_path):
    target = write_text(tmp_path / "a.txt", "old")
    with atomic_path(target) as temporary:
        temporary.write_text("new")
        assert target.read_text() == "old"
        assert temporary.parent == tmp_path
    assert target.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_content_is_on_disk_before_its_name(tmp_path, monkeypatch):
    """The file is synced, then renamed, then its folder is synced: no crash leaves 0 bytes."""
    done = []

    def watched(name, target):
        real = getattr(os, name)

        def call(*args, **kwargs):
            done.append((name, target(*args)))
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, call)

    def synced(handle):
        return Path(os.readlink(f"/proc/self/fd/{handle}"))

    watched("fsync", synced)
    watched("replace", lambda old, new: (Path(old), Path(new)))
    with atomic_path(tmp_path / "a") as temporary:
        temporary.write_bytes(b"x")
    renamed = ("replace", (temporary, tmp_path / "a"))
    assert done == [("fsync", temporary), renamed, ("fsync", tmp_path)]


def test_atomic_path_removes_the_temporary_file_when_the_rename_fails(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError), atomic_path(tmp_path / "folder") as temporary:
        temporary.write_text("text")
    assert os.listdir(tmp_path) == ["folder"]


def test_atomic_path_accepts_a_writer_that_puts_a_private_file_in_its_place(tmp_path, umask):
    umask(0o027)
    target = tmp_path / "a.txt"
    with atomic_path(target) as temporary:
        temporary.unlink()
        temporary.write_text("new")
        temporary.chmod(0o600)
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o600), (0o022, 0o644), (0o002, 0o664)])
def test_written_files_have_the_mode_that_the_umask_allows(tmp_path, umask, mask, mode):
    umask(mask)
    for path in (write_text(tmp_path / "a.txt", "x"), write_json(tmp_path / "b.json", {})):
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_parent_folders_are_created(tmp_path):
    assert write_bytes(tmp_path / "a" / "b" / "c.bin", b"\x00").read_bytes() == b"\x00"


def test_write_text_leaves_a_link_at_a_guessable_name_alone(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    target = tmp_path / "a.txt"
    for name in ("a.txt.tmp", ".a.txt.tmp", "a.tmp", ".a.txt.partial", "a.partial"):
        (tmp_path / name).symlink_to(victim)
    write_text(target, "new")
    assert victim.read_text() == "precious"
    assert target.read_text() == "new"
    assert not target.is_symlink()


def test_temporary_names_differ_and_are_never_reused(tmp_path, monkeypatch):
    with atomic_path(tmp_path / "a") as first, atomic_path(tmp_path / "a") as second:
        assert first != second
    victim = tmp_path / "victim"
    victim.write_text("precious")
    numbers = iter([b"\x01" * 8, b"\x02" * 8])
    monkeypatch.setattr("codtdq.io.os.urandom", lambda count: next(numbers))
    (tmp_path / f".codtdq-{'01' * 8}.tmp").symlink_to(victim)  # guessed, against all odds
    write_text(tmp_path / "a", "new")
    assert victim.read_text() == "precious"


def test_write_text_replaces_a_link_instead_of_writing_through_it(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "a.txt").symlink_to(victim)
    write_text(tmp_path / "a.txt", "new")
    assert victim.read_text() == "precious"


def test_write_json_refuses_what_json_cannot_hold_and_writes_nothing(tmp_path):
    target = write_json(tmp_path / "a.json", {"a": [1, None]}, indent=1)
    with pytest.raises(TypeError):
        write_json(target, {"a": object()})
    with pytest.raises(ValueError):
        write_json(target, float("nan"), allow_nan=False)
    assert json.loads(target.read_text()) == {"a": [1, None]}
    assert target.read_text().endswith("}\n")


def test_write_text_keeps_letters_and_line_ends(tmp_path):
    assert write_text(tmp_path / "a", "é\r\nσ\n").read_bytes() == "é\r\nσ\n".encode()


def test_draft_folder_moves_its_content_and_keeps_other_files(tmp_path):
    out = tmp_path / "out"
    (out / "images").mkdir(parents=True)
    (out / "images" / "old.png").touch()
    (out / "mine.txt").write_text("mine")
    with draft_folder(out) as draft:
        (draft / "images").mkdir()
        (draft / "images" / "new.png").touch()
        assert (out / "images" / "old.png").exists()
    assert sorted(p.name for p in out.rglob("*")) == ["images", "mine.txt", "new.png"]
    assert os.listdir(tmp_path) == ["out"]


def test_draft_folder_changes_nothing_on_an_interrupt(tmp_path):
    with pytest.raises(KeyboardInterrupt), draft_folder(tmp_path / "out") as draft:
        (draft / "a").touch()
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []


def test_no_other_module_renames_files_into_place():
    words = (
        "os.replace(",
        "os.rename(",
        ".rename(",
        "mkstemp(",
        "NamedTemporaryFile(",
        "temporary.replace(",
        '.tmp"',
    )
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if any(word in path.read_text() for word in words)
    }
    assert found == {"io.py"}
