"""Payloads by their digest: whole or not at all, and never another one than was meant."""

from pathlib import Path

import pytest

from runfold.adapters.blobs import DirectoryBlobs, MemoryBlobs
from runfold.events.types import BlobRef

requirement = pytest.mark.requirement


@pytest.fixture(params=["memory", "folder"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryBlobs | DirectoryBlobs:
    return MemoryBlobs() if request.param == "memory" else DirectoryBlobs(tmp_path)


@requirement("R20")
@pytest.mark.parametrize("payload", [b"", b"a", bytes(range(256)), b"x" * 1_000_000], ids=len)
def test_a_payload_comes_back_whole(blobs: MemoryBlobs | DirectoryBlobs, payload: bytes) -> None:
    """Any bytes; putting them again is success and the same ticket."""
    ref = blobs.put(payload)
    assert ref.size_bytes == len(payload)
    assert blobs.put(payload) == ref
    assert blobs.get(ref) == payload


def test_a_payload_that_is_not_there_is_said(blobs: MemoryBlobs | DirectoryBlobs) -> None:
    """The caller makes an outcome of it."""
    with pytest.raises(LookupError):
        blobs.get(BlobRef(sha256="0" * 64, size_bytes=1))


def test_a_ticket_with_another_size_is_refused(blobs: MemoryBlobs | DirectoryBlobs) -> None:
    """Digest and size belong together."""
    ref = blobs.put(b"payload")
    with pytest.raises(LookupError, match="not the payload"):
        blobs.get(BlobRef(sha256=ref.sha256, size_bytes=1))


def test_a_payload_that_was_changed_on_disk_is_refused(tmp_path: Path) -> None:
    """What comes out is what went in, or an error."""
    blobs = DirectoryBlobs(tmp_path)
    ref = blobs.put(b"payload")
    next(path for path in tmp_path.rglob("*") if path.is_file()).write_bytes(b"pay-off")
    with pytest.raises(LookupError, match="not the payload"):
        blobs.get(ref)


def test_a_payload_that_broke_off_is_written_again(tmp_path: Path) -> None:
    """A half-written file of an unkind disk does not pass for the whole."""
    blobs = DirectoryBlobs(tmp_path)
    ref = blobs.put(b"payload")
    next(path for path in tmp_path.rglob("*") if path.is_file()).write_bytes(b"pay")
    assert blobs.put(b"payload") == ref
    assert blobs.get(ref) == b"payload"


def test_nothing_half_written_is_left_behind(tmp_path: Path) -> None:
    """When a payload cannot be put in its place, the file beside it goes too."""
    blobs = DirectoryBlobs(tmp_path)
    ref = blobs.put(b"payload")
    place = next(path for path in tmp_path.rglob("*") if path.is_file())
    place.unlink()
    place.mkdir()
    with pytest.raises(OSError):
        blobs.put(b"payload")
    assert [path.name for path in place.parent.iterdir()] == [ref.sha256]


def test_services_share_a_folder(tmp_path: Path) -> None:
    """One puts, another gets."""
    assert DirectoryBlobs(tmp_path).get(DirectoryBlobs(tmp_path).put(b"payload")) == b"payload"
