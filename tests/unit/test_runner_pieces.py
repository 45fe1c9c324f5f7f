"""The parts of the runner that need no tool to run: files that appear once, output that is kept within bounds."""

import base64
import os
from pathlib import Path

from runfold.runner import contract, function
from runfold.runner.capture import Capture
from runfold.runner.contract import EDGE_BYTES, Bounds, Cage, Plan
from runfold.runner.users import may_become, processes_max


def captured(tmp_path: Path, chunks: list[bytes], bytes_max: int) -> tuple[dict[str, object], bytes]:
    reading, writing = os.pipe()
    path = tmp_path / f"stream-{bytes_max}"
    capture = Capture("stdout", reading, str(path), bytes_max)
    for chunk in chunks:
        os.write(writing, chunk)
        assert capture.read() == len(chunk)
    assert (capture.read(), capture.is_over) == (0, False)
    os.close(writing)
    assert (capture.read(), capture.is_over) == (0, True)
    return capture.close(), path.read_bytes()


def test_output_is_kept_up_to_its_bound_with_both_ends(tmp_path: Path) -> None:
    """The file has the beginning; the ends are in memory, and the size is that of everything."""
    chunks = [bytes([number]) * 30_000 for number in range(10)]
    said, kept = captured(tmp_path, chunks, 100_000)
    whole = b"".join(chunks)
    assert kept == whole[:100_000]
    assert (said["bytes"], said["kept"]) == (300_000, 100_000)
    assert base64.b64decode(str(said["head"])) == whole[:EDGE_BYTES]
    assert base64.b64decode(str(said["tail"])) == whole[-EDGE_BYTES:]


def test_a_full_disk_does_not_stop_the_reading(tmp_path: Path) -> None:
    """What cannot be written is counted, and its ends are kept."""
    reading, writing = os.pipe()
    capture = Capture("stdout", reading, str(tmp_path / "s"), 1000)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, capture._file)
    os.close(full)
    os.write(writing, b"lost")
    capture.read()
    os.write(writing, b" too")
    capture.read()
    os.close(writing)
    said = capture.close()
    assert (said["bytes"], said["kept"]) == (8, 0)
    assert base64.b64decode(str(said["head"])) == b"lost too"


def test_a_file_is_written_once_or_whole(tmp_path: Path) -> None:
    """The first one counts where only one may; nothing written aside stays."""
    path = str(tmp_path / "x.json")
    assert contract.write_once(path, {"a": 1})
    assert not contract.write_once(path, {"a": 2})
    assert contract.read_json(path) == {"a": 1}
    room = contract.reserve(str(tmp_path))
    assert Path(room).stat().st_blocks * 512 >= contract.RESULT_BYTES_MAX
    contract.write_result(str(tmp_path), room, {"a": 3})
    path = str(tmp_path / contract.RESULT)
    assert contract.read_json(path) == {"a": 3}
    assert sorted(each.name for each in tmp_path.iterdir()) == ["result.json", "x.json"]
    Path(path).write_text('{"a":')
    assert contract.read_json(path) is None
    assert contract.read_json(str(tmp_path / "none")) is None


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Bounds and cage included."""
    plan = Plan(
        dispatch="d", nonce="n", boot_id="b", kind="command", target=["x", "ü"], arguments='{"a":"ü"}',
        bounds=Bounds(processes=3), cage=Cage(namespaces="user", uid=5, sandbox=True, readable=["/opt"]),
    )  # fmt: skip
    contract.write_once(str(tmp_path / contract.SPEC), plan.as_json())
    assert Plan.read(str(tmp_path)) == plan


def test_a_process_is_known_by_the_time_it_began() -> None:
    """Read from the kernel, whatever the process is called; nobody has the id of a process that is gone."""
    mine, first = contract.start_time(os.getpid()), contract.start_time(1)
    assert mine is not None
    assert first is not None
    assert mine > first
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert contract.start_time(child) is None


def test_the_limit_on_processes_counts_from_what_the_kernel_counts() -> None:
    """A user or a namespace of its own begins with none; anybody else's processes count, too."""
    assert processes_max(Cage(uid=5), 10) == 10
    assert processes_max(Cage(), 10) > 10
    assert not may_become(1 << 33)


def test_a_functions_result_as_text() -> None:
    """Text as it is, everything else as JSON; what JSON lacks is said in its nearest form."""
    assert function.as_text("ü") == "ü"
    assert function.as_text(None) == ""
    assert function.as_text(b"a\xff") == "a\ufffd"
    assert function.as_text({"a": [1, Path("/x"), {2}]}) == '{"a":[1,"/x",[2]]}'
