"""What every blob store promises, in memory and in a folder; and what a folder promises to those who are killed."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runfold.adapters.blobs import SWEPT_AFTER_S, DirectoryBlobs, MemoryBlobs
from runfold.events.types import BlobRef
from runfold.ports import Blobs

PAYLOADS = [b"", b"a", bytes(range(256)), b"x" * 3_000_000]


@pytest.fixture(params=["memory", "folder"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    return MemoryBlobs() if request.param == "memory" else DirectoryBlobs(tmp_path / "blobs")


def files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


# ---- every store


@pytest.mark.requirement("R20")
@pytest.mark.parametrize("payload", PAYLOADS, ids=len)
def test_a_payload_comes_back_whole(blobs: Blobs, payload: bytes) -> None:
    """Under a ticket that its bytes alone determine, however often it is put."""
    ref = blobs.put(payload)
    assert (len(ref.sha256), ref.size_bytes) == (64, len(payload))
    assert blobs.put(payload) == ref
    assert blobs.get(ref) == payload


@pytest.mark.parametrize("sha256", ["0" * 64, "", "../../etc/hostname", "/etc/hostname", "A" * 64, "0" * 64 + "\n"])
def test_a_payload_that_is_not_there_is_a_lookup_error(blobs: Blobs, sha256: str) -> None:
    """Also for a ticket that is none: it came from the log, and must not lead out of the store."""
    with pytest.raises(LookupError):
        blobs.get(BlobRef(sha256=sha256, size_bytes=1))


@pytest.mark.parametrize("size_bytes", [0, 6, 8, -1])
def test_the_size_belongs_to_the_ticket(blobs: Blobs, size_bytes: int) -> None:
    """A ticket that says another size is not for this payload."""
    ref = blobs.put(b"payload")
    with pytest.raises(LookupError, match="not the payload"):
        blobs.get(BlobRef(sha256=ref.sha256, size_bytes=size_bytes))


def test_many_may_put_the_same_and_other_payloads_at_once(blobs: Blobs) -> None:
    """Each comes back whole; one payload that all put is stored once."""
    payloads = [b"shared" * 10_000 if number % 2 else b"own %d" % number for number in range(200)]
    with ThreadPoolExecutor(16) as pool:
        refs = list(pool.map(blobs.put, payloads))
    assert [blobs.get(ref) for ref in refs] == payloads
    assert len({ref.sha256 for ref in refs}) == 101


# ---- a folder

KILLED_BEFORE_RENAME = """
import os, signal, sys
from pathlib import Path
from runfold.adapters.blobs import DirectoryBlobs
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
DirectoryBlobs(Path(sys.argv[1])).put(b"payload" * 1000)
"""


def test_a_process_killed_before_the_rename_leaves_no_payload(tmp_path: Path) -> None:
    """What it wrote aside is nobody's payload, and in nobody's way."""
    services = Path(__file__).parents[2] / "services"
    killed = subprocess.run(  # noqa: PLW1510  its exit status is the point
        [sys.executable, "-c", KILLED_BEFORE_RENAME, str(tmp_path)], env={**os.environ, "PYTHONPATH": str(services)}
    )
    assert killed.returncode == -signal.SIGKILL
    assert [path.parent.name for path in files(tmp_path)] == [".new"]
    ref = MemoryBlobs().put(b"payload" * 1000)
    blobs = DirectoryBlobs(tmp_path)
    with pytest.raises(LookupError):
        blobs.get(ref)
    assert blobs.put(b"payload" * 1000) == ref
    assert blobs.get(ref) == b"payload" * 1000


def test_what_killed_processes_left_is_swept(tmp_path: Path) -> None:
    """Later: what is young may be somebody's who writes at this moment. Payloads stay, whatever their age."""
    blobs = DirectoryBlobs(tmp_path)
    assert blobs.sweep() == 0  # nothing is there yet, not even the folder
    ref = blobs.put(b"payload")
    young, old = tmp_path / ".new" / "young", tmp_path / ".new" / "old"
    for path in (young, old):
        path.write_bytes(b"pay")
    for path in (old, *(path for path in files(tmp_path) if path.name == ref.sha256)):
        os.utime(path, (time.time() - 2 * SWEPT_AFTER_S,) * 2)
    assert blobs.sweep() == 1
    assert (young.exists(), old.exists()) == (True, False)
    assert blobs.get(ref) == b"payload"


def test_a_folder_that_cannot_be_swept_stops_nobody(tmp_path: Path) -> None:
    """It is housekeeping: whoever starts goes on."""
    (tmp_path / ".new").write_text("no folder")
    assert DirectoryBlobs(tmp_path).sweep() == 0


def test_putting_again_writes_nothing(tmp_path: Path) -> None:
    """The file stays the very same."""
    blobs = DirectoryBlobs(tmp_path)
    blobs.put(b"payload")
    before = [path.stat().st_ino for path in files(tmp_path)]
    blobs.put(b"payload")
    assert [path.stat().st_ino for path in files(tmp_path)] == before


@pytest.mark.parametrize("wrong", [b"pay-off", b"pay", b"", b"payload and more"])
def test_wrong_bytes_on_disk_are_found(tmp_path: Path, wrong: bytes) -> None:
    """What comes out is what went in, or an error that says so."""
    blobs = DirectoryBlobs(tmp_path)
    ref = blobs.put(b"payload")
    files(tmp_path)[0].write_bytes(wrong)
    with pytest.raises(LookupError, match="not the payload"):
        blobs.get(ref)


def test_a_payload_of_the_wrong_size_is_written_again(tmp_path: Path) -> None:
    """An unkind disk kept a part of it: that does not pass for the whole."""
    blobs = DirectoryBlobs(tmp_path)
    ref = blobs.put(b"payload")
    files(tmp_path)[0].write_bytes(b"pay")
    blobs.put(b"payload")
    assert blobs.get(ref) == b"payload"


def test_nothing_is_left_beside_a_payload_that_could_not_be_put(tmp_path: Path) -> None:
    """The caller sees the error of the disk, and the folder what it was before."""
    blobs = DirectoryBlobs(tmp_path)
    blobs.put(b"payload")
    place = files(tmp_path)[0]
    place.unlink()
    place.mkdir()
    with pytest.raises(OSError):
        blobs.put(b"payload")
    assert list(place.parent.iterdir()) == [place]


def test_other_users_may_read_what_the_umask_lets_them(tmp_path: Path) -> None:
    """The folder is shared: a payload is not its writer's secret."""
    before = os.umask(0o027)
    try:
        DirectoryBlobs(tmp_path).put(b"payload")
    finally:
        os.umask(before)
    assert files(tmp_path)[0].stat().st_mode & 0o777 == 0o640
