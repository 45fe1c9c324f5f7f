"""Walking inside a folder: whatever a path says, and whatever the folder is filled with, nothing outside is opened."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from runfold.runner import files
from runfold.runner.paths import FOLDER, PARTS_MAX, Refused, folder, parts, plain_file

OUTSIDE = "of somebody else"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    """A workspace with a file beside it that nobody may reach."""
    (tmp_path / "outside").write_text(OUTSIDE)
    inside = tmp_path / "workspace"
    inside.mkdir()
    (inside / "a").mkdir()
    (inside / "a" / "b.txt").write_text("b")
    (inside / "up").symlink_to("..")
    (inside / "link").symlink_to("../outside")
    (inside / "absolute").symlink_to(tmp_path / "outside")
    (inside / "loop").symlink_to("loop")
    opened = os.open(inside, FOLDER)
    yield opened
    os.close(opened)


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("a", ["a"]),
        ("./a//b/", ["a", "b"]),
        ("/workspace/a", ["a"]),
        ("/workspace", []),
        ("/workspace/", []),
        (".", []),
        ("", []),
        ("...", ["..."]),
        ("a\\..\\b", ["a\\..\\b"]),
    ],
)
def test_a_path_is_a_list_of_names(path: str, names: list[str]) -> None:
    """What programs in the sandbox call the workspace is understood."""
    assert parts(path) == names


@pytest.mark.requirement("R19")
@pytest.mark.parametrize("path", ["..", "a/..", "/", "/etc", "//workspace/a", "/workspace/../x", "/workspace//../x", "a\0b", "/workspaces/x", "x/" * (PARTS_MAX + 1)])  # fmt: skip
def test_a_path_that_leads_out_is_refused(path: str) -> None:
    """Before anything is opened."""
    with pytest.raises(Refused):
        parts(path)


@pytest.mark.requirement("R19")
@pytest.mark.parametrize("path", ["link", "absolute", "loop", "up/outside", "up/workspace/a/b.txt", "link/x", "a/b.txt/c", "a", "missing/x"])  # fmt: skip
def test_no_link_is_followed(root: int, path: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """At the end or on the way: neither to read nor to write nor to add."""
    for name, more in (("read_file", {}), ("write_file", {"content": "x", "append": True})):
        if (name, path) == ("write_file", "missing/x"):
            continue  # folders on the way are made
        with pytest.raises((Refused, OSError)):
            files.TOOLS[name](root, {"path": path, **more})
    assert OUTSIDE.encode() not in capfdbinary.readouterr().out


def test_writing_replaces_a_link_and_leaves_what_it_named(root: int, tmp_path: Path) -> None:
    """The name in the workspace is a file afterwards."""
    files.write_file(root, {"path": "link", "content": "mine"})
    assert (tmp_path / "outside").read_text() == OUTSIDE
    assert (tmp_path / "workspace" / "link").read_text() == "mine"
    assert not (tmp_path / "workspace" / "link").is_symlink()


def test_deleting_a_link_leaves_what_it_named(root: int, tmp_path: Path) -> None:
    """The link goes; a folder behind a link is not entered."""
    files.delete_file(root, {"path": "absolute"})
    assert not (tmp_path / "workspace" / "absolute").is_symlink()
    with pytest.raises(Refused):
        files.delete_file(root, {"path": "up/outside"})
    assert (tmp_path / "outside").read_text() == OUTSIDE


def test_pipes_sockets_and_folders_are_no_files(root: int, tmp_path: Path) -> None:
    """Nobody waits for whoever is at the other end."""
    os.mkfifo(tmp_path / "workspace" / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        here = Path.cwd()
        os.chdir(tmp_path / "workspace")  # a socket's path must be short
        try:
            bound.bind("socket")
        finally:
            os.chdir(here)
        for name in ("pipe", "socket", "a"):
            for flags in (os.O_RDONLY, os.O_WRONLY):
                with pytest.raises(Refused), plain_file(root, name, flags):
                    pass


def test_a_folder_that_becomes_a_link_while_it_is_walked_is_noticed(root: int, tmp_path: Path) -> None:
    """What was opened stays what it was; what is opened next is looked at again."""
    with folder(root, ["a"]) as here:
        (tmp_path / "workspace" / "a").rename(tmp_path / "workspace" / "moved")
        (tmp_path / "workspace" / "a").symlink_to("..")
        with plain_file(here, "b.txt", os.O_RDONLY) as opened:
            assert os.read(opened, 10) == b"b"
    with pytest.raises(Refused, match="symbolic links are not followed"), folder(root, ["a"]):
        pass


def test_no_descriptor_is_left_open(root: int) -> None:
    """Also where a path was refused on the way."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    for path in ("a/b.txt", "link", "up/outside", "a/x/y"):
        with pytest.raises((Refused, OSError)) if path != "a/b.txt" else folder(root, []):
            files.read_file(root, {"path": path})
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# ---- the tools


def test_a_file_is_replaced_as_a_whole_and_keeps_its_mode(root: int, tmp_path: Path) -> None:
    """A program stays one; nothing written aside stays."""
    path = tmp_path / "workspace" / "a" / "b.txt"
    path.chmod(0o755)
    assert files.write_file(root, {"path": "a/b.txt", "content": "ü"}) == b"wrote 2 bytes to a/b.txt"
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("ü", 0o755)
    assert [each.name for each in path.parent.iterdir()] == ["b.txt"]


def test_half_a_character_can_be_written(root: int, tmp_path: Path) -> None:
    """Models send lone surrogates."""
    files.write_file(root, {"path": "s", "content": "a\ud800b"})
    assert (tmp_path / "workspace" / "s").read_text() == "a?b"


def test_lines_of_a_file(root: int, tmp_path: Path) -> None:
    """From a line on, so many; lines that are not there are none."""
    (tmp_path / "workspace" / "l").write_text("1\n2\n3")
    for first, count, expected in (
        (None, None, b"1\n2\n3"),
        (2, None, b"2\n3"),
        (2, 1, b"2\n"),
        (None, 1, b"1\n"),
        (9, 9, b""),
    ):
        assert files.read_file(root, {"path": "l", "first_line": first, "lines": count}) == expected


def test_a_listing_has_bounds(root: int, tmp_path: Path) -> None:
    """In number and in depth."""
    deep = tmp_path / "workspace" / "deep"
    for number in range(files.ENTRIES_MAX):
        (tmp_path / "workspace" / f"f{number}").touch()
    lines = files.list_files(root, {}).decode().splitlines()
    assert len(lines) == files.ENTRIES_MAX + 1
    assert lines[-1].startswith("… more than 1,000")
    deep.joinpath(*"d" * (PARTS_MAX + 10)).mkdir(parents=True)
    assert len(files.list_files(root, {"path": "deep"}).decode().splitlines()) == PARTS_MAX - 1
    assert files.list_files(root, {"path": "a"}) == b"a/b.txt (1 bytes)"


def test_an_error_is_a_sentence_and_a_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Whatever the operating system says."""
    monkeypatch.chdir(tmp_path)
    assert files.run("read_file", {"path": "x"}) == 1
    assert files.run("read_file", {"path": "\ud800"}) == 1
    assert files.run("write_file", {"path": "n" * 300, "content": ""}) == 1
    assert files.run("list_files", {}) == 0
    said = capfdbinary.readouterr().out
    assert said.startswith(b"'x': No such file or directory")
    assert said.endswith(b"File name too long(empty)")
