"""The executor's side of process tools without a process: declarations, traces on disk, reports made of them."""

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from runfold.adapters.agents import load_tools
from runfold.adapters.blobs import MemoryBlobs
from runfold.adapters.process_output import CHUNK_BYTES_MAX, SHOWN_BYTES_MAX, Output
from runfold.adapters.process_report import Reporter, Style
from runfold.adapters.process_spec import Process
from runfold.adapters.process_spool import Spool, Standing, alive, remove
from runfold.adapters.sandbox_tools import TOOLS
from runfold.adapters.toolbox import Toolbox, tool
from runfold.ports import Permanent, ToolStart
from runfold.runner import contract
from runfold.runner.contract import Bounds, Plan

# ---- declarations


def test_the_sandbox_tools_are_offered_with_schemas() -> None:
    """Five of them; deleting asks a person first; what reads may run side by side, and again."""
    specs = {spec.name: spec for spec in Toolbox(TOOLS).specs()}
    assert sorted(specs) == ["delete_file", "execute_code", "list_files", "read_file", "write_file"]
    assert {spec.tool_class for spec in specs.values()} == {"process"}
    assert [name for name, spec in specs.items() if spec.approval] == ["delete_file"]
    assert (specs["delete_file"].approval, bool(specs["delete_file"].approval_reason)) == ("always", True)
    assert sorted(name for name, spec in specs.items() if spec.changes_state) == [
        "delete_file",
        "execute_code",
        "write_file",
    ]
    assert sorted(name for name, spec in specs.items() if spec.idempotent) == ["list_files", "read_file"]
    assert json.loads(specs["execute_code"].parameters)["properties"]["language"]["enum"] == [
        "python",
        "bash",
        "javascript",
    ]
    with pytest.raises(RuntimeError, match="process of its own"):
        TOOLS[0]()


def at_the_top(a: int) -> int:
    """Found by a process."""
    return a


@pytest.mark.requirement("R18")
def test_a_function_is_declared_for_a_process() -> None:
    """The process finds it by module and name."""
    made = tool(tool_class="process", secrets=["TOKEN"], workspace=True, bounds=Bounds(processes=2))(at_the_top)
    assert made.process == Process(
        function=f"{__name__}:at_the_top", secrets=("TOKEN",), workspace=True, bounds=Bounds(processes=2)
    )
    assert made.spec().tool_class == "process"
    assert made(2) == 2
    assert made.run_alone('{"a": 2.0}', {}) == 2
    Toolbox([made])


def test_what_no_process_can_run_is_refused_when_it_is_declared() -> None:
    """With the reason; never at the first call."""

    def inside() -> None: ...

    with pytest.raises(Permanent, match="define it at the top of a module"):
        Toolbox([tool(tool_class="process")(inside)])
    with pytest.raises(Permanent, match="tool_class is inline or process"):
        tool(tool_class="sandbox")(at_the_top)
    with pytest.raises(Permanent, match="are for process"):
        tool(secrets=["A"])(at_the_top)
    with pytest.raises(Permanent, match="immediate"):
        tool(tool_class="process", immediate=True)(at_the_top)
    for secret in ("PATH", "a b", "", "RUNFOLD_DISPATCH"):
        with pytest.raises(Permanent, match="environment variable"):
            Process(command=("x",), secrets=(secret,))
    for given in ({}, {"command": ("x",), "builtin": "y"}):
        with pytest.raises(Permanent, match="one of"):
            Process(**given)
    with pytest.raises(Permanent, match="processes is 0"):
        Process(command=("x",), bounds=Bounds(processes=0))


FILE = """
[[tool]]
name = "count"
description = "Counts words."
command = ["./count.sh", "-w"]
time_limit_s = 10
changes_state = true
secrets = ["TOKEN"]
approval = "always"
approval_reason = "It costs."
sandbox = true
[tool.parameters]
type = "object"
properties.text.type = "string"
[tool.bounds]
memory_bytes = 1_000_000

[[tool]]
name = "far"
function = "far.away:function"
parameters = { type = "object" }
"""


def test_tools_are_declared_in_a_file(tmp_path: Path) -> None:
    """Commands beside the file, functions that are not imported here."""
    (tmp_path / "tools.toml").write_text(FILE)
    count, far = load_tools(str(tmp_path / "tools.toml"))
    assert count.process == Process(
        command=(str(tmp_path / "count.sh"), "-w"),
        secrets=("TOKEN",),
        sandbox=True,
        bounds=Bounds(memory_bytes=1_000_000),
    )
    spec = count.spec()
    assert (spec.tool_class, spec.time_limit_ms, spec.changes_state) == ("process", 10_000, True)
    assert (spec.approval, spec.approval_reason) == ("always", "It costs.")
    assert far.process == Process(function="far.away:function")
    Toolbox([count, far])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "tool: Field required; x: Extra"),
        ("[[tool]]\nname = 'a'", "tool.0.parameters: Field required"),
        ("[[tool]]\nname = 'a'\nparameters = {}\nnonsense = 1", "tool.0.nonsense: Extra"),
        ("[[tool]]\nname = 'a'\nparameters = {}", "one of: a command, a function"),
        ("[[tool]]\nname = 'a'\nparameters = {}\nfunction = 'x'", "tool.0.function"),
        ("[[tool]", "tools.toml"),
    ],
)
def test_a_broken_tool_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """Naming the file and the field."""
    (tmp_path / "tools.toml").write_text(text)
    with pytest.raises(Permanent, match=said):
        load_tools(str(tmp_path / "tools.toml"))
    with pytest.raises(Permanent, match=r"none\.toml"):
        load_tools(str(tmp_path / "none.toml"))


# ---- traces


def plan(spool: Spool, dispatch: str = "d") -> Plan:
    return Plan(dispatch=dispatch, nonce="n", boot_id=spool.boot_id, kind="command", target=["true"], arguments="{}")


def test_what_the_traces_of_a_call_say(tmp_path: Path) -> None:
    """Unknown, waiting, running, ended, gone."""
    spool = Spool(tmp_path / "spool")
    path = spool.call("d", "n")
    assert spool.look(path).standing is Standing.UNKNOWN
    spool.prepare(plan(spool))
    spool.prepare(plan(spool))
    assert spool.look(path).standing is Standing.WAITING
    me = {"pid": os.getpid(), "start_time": contract.start_time(os.getpid()), "boot_id": spool.boot_id, "nonce": "n"}
    (path / contract.RUNNER).write_text(json.dumps(me))
    traces = spool.look(path)
    assert traces.standing is Standing.RUNNING
    os.close(traces.pidfd)
    (path / contract.RUNNER).write_text(json.dumps({**me, "boot_id": "earlier"}))
    assert spool.look(path).standing is Standing.GONE
    (path / contract.RESULT).write_text("{}")
    assert spool.look(path).standing is Standing.ENDED


def test_a_waiting_call_is_taken_once(tmp_path: Path) -> None:
    """By a runner, or by whoever gives it up; after a restart of the machine by nobody."""
    spool = Spool(tmp_path / "spool")
    spool.prepare(plan(spool))
    assert spool.give_up(spool.call("d", "n"))
    assert not spool.give_up(spool.call("d", "n"))
    assert spool.look(spool.call("d", "n")).standing is Standing.GONE
    spool.prepare(Plan(dispatch="e", nonce="n", boot_id="earlier", kind="command", target=["true"], arguments="{}"))
    assert spool.look(spool.call("e", "n")).standing is Standing.GONE


def test_the_spool_keeps_its_name(tmp_path: Path) -> None:
    """It is one place for every executor that uses it."""
    first, second = Spool(tmp_path / "spool"), Spool(tmp_path / "spool")
    assert first.id == second.id
    assert Spool(tmp_path / "other").id != first.id


def test_only_the_very_process_is_alive() -> None:
    """An id that is reused, one that is free, and one that is none."""
    began = contract.start_time(os.getpid())
    assert began is not None
    pidfd = alive(os.getpid(), began)
    assert pidfd is not None
    os.close(pidfd)
    assert alive(os.getpid(), began + 1) is None
    assert alive(0, 0) is None
    assert alive(4_000_000_000, 0) is None


def test_whatever_a_tool_left_can_be_removed(tmp_path: Path) -> None:
    """Folders nested deeper than Python recurses, and folders that may not be entered."""
    deep = os.open(tmp_path, os.O_RDONLY)
    for _ in range(2_000):
        os.mkdir("d", dir_fd=deep)
        below = os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed" / "file").touch()
    (tmp_path / "closed").chmod(0)
    remove(tmp_path)
    assert not tmp_path.exists()


# ---- reports

START = ToolStart(
    run_id="r", model_call="m", position=1, dispatch="d", attempt=1, tool="t", arguments="{}", time_limit_s=1,
    idempotency_key="k", nonce="n",
)  # fmt: skip


def stream(whole: bytes, kept: int | None = None) -> dict[str, Any]:
    edge = contract.EDGE_BYTES
    return {
        "bytes": len(whole), "kept": len(whole) if kept is None else kept,
        "head": base64.b64encode(whole[:edge]).decode(), "tail": base64.b64encode(whole[-edge:]).decode(),
    }  # fmt: skip


def harvested(folder: Path, style: Style = Style.COMMAND, **given: Any) -> Any:
    result = {
        "dispatch": "d", "nonce": "n", "started_at_ms": 1, "duration_ms": 7, "outcome": "succeeded", "reason": "",
        "exit_code": 0, "left_running": 0, "streams": {"stdout": stream(b""), "stderr": stream(b"")}, **given,
    }  # fmt: skip
    (folder / contract.RESULT).write_text(json.dumps(result))
    return Reporter(MemoryBlobs(), "here", 64 * 1024).harvested(START, folder, style)


def test_without_the_file_both_ends_are_told(tmp_path: Path) -> None:
    """A full disk took the output, not the outcome; the size is that of everything."""
    whole = b"a" * 100_000 + b"z" * 100_000
    report = harvested(tmp_path, streams={"stdout": stream(whole, kept=0), "stderr": stream(b"")})
    assert report.output_bytes == 200_000
    assert report.output.startswith("aaa")
    assert report.output.endswith("zzz")
    small = harvested(tmp_path, streams={"stdout": stream(b"few", kept=0), "stderr": stream(b"")})
    assert (small.output, small.output_bytes) == ("few", 3)


def test_a_file_and_the_end_in_memory_fit_together(tmp_path: Path) -> None:
    """Without a gap where they overlap."""
    whole = b"".join(b"%d " % number for number in range(9_000))
    (tmp_path / "stdout").write_bytes(whole[:30_000])
    assert (
        harvested(tmp_path, streams={"stdout": stream(whole, 30_000), "stderr": stream(b"")}).output == whole.decode()
    )


def test_a_result_of_another_call_is_not_believed(tmp_path: Path) -> None:
    """It names its dispatch and its nonce."""
    report = harvested(tmp_path, nonce="other")
    assert (report.outcome, "not of this call" in report.output) == ("failed", True)


def test_what_could_not_be_ended_is_told(tmp_path: Path) -> None:
    """Never silently."""
    assert "2 of its processes could not be ended" in harvested(tmp_path, left_running=2).output


# ---- output as it comes


def test_pieces_of_output_fit_together(tmp_path: Path) -> None:
    """Characters are never halved; offsets count bytes; a broken end is shown at the end."""
    pieces: list[tuple[Any, ...]] = []
    output = Output(tmp_path, "d", "n", lambda *piece: pieces.append(piece))
    output.look()
    file = tmp_path / "stdout"
    for more in (b"a\xc3", b"\xa4", b"b\xe2\x82"):
        with file.open("ab") as out:
            out.write(more)
        output.look()
    output.look(is_over=True)
    assert pieces == [
        ("d", "n", "stdout", 0, "a"),
        ("d", "n", "stdout", 1, "ä"),
        ("d", "n", "stdout", 3, "b"),
        ("d", "n", "stdout", 4, "\ufffd"),
    ]


def test_pieces_have_a_bound_each_and_together(tmp_path: Path) -> None:
    """The rest is in the report; the last piece says so."""
    pieces: list[tuple[Any, ...]] = []
    output = Output(tmp_path, "d", "n", lambda *piece: pieces.append(piece))
    (tmp_path / "stderr").write_bytes(b"x" * 2 * SHOWN_BYTES_MAX)
    for _ in range(100):
        output.look()
    assert {piece[2] for piece in pieces} == {"stderr"}
    assert all(len(piece[4]) <= CHUNK_BYTES_MAX for piece in pieces[:-1])
    assert sum(len(piece[4]) for piece in pieces) < SHOWN_BYTES_MAX + 2 * CHUNK_BYTES_MAX
    assert pieces[-1][4].endswith("[more is not shown while it runs]\n")
