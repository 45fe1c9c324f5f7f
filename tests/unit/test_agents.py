"""Agents: files and inline definitions become what a run will use, or a sentence that says what is wrong."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from runfold.adapters.agents import AgentConfig, Agents, load_agents, load_tools
from runfold.adapters.toolbox import Toolbox, tool
from runfold.core.limits import INLINE_BYTES_MAX, Limits
from runfold.events.types import ContextLoaded, RunRequested
from runfold.ports import Permanent

requirement = pytest.mark.requirement


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@tool
def shout(word: str) -> str:
    """Shouts."""
    return word.upper()


BOX = Toolbox([shout, add])
HELPER = AgentConfig(name="helper", model="m1", instructions="Help.", limits={"tool_ms": 5_000, "tool_calls": 7})


def asked(agent: str = "", *, task_limits: dict[str, int] | None = None, **definition: Any) -> ContextLoaded | str:
    task = RunRequested(
        task_id="t",
        agent=agent,
        definition=json.dumps(definition) if definition else None,
        limits=task_limits or {},
    )
    return Agents([HELPER], BOX).context(task)


def loaded(agent: str = "", *, task_limits: dict[str, int] | None = None, **definition: Any) -> ContextLoaded:
    context = asked(agent, task_limits=task_limits, **definition)
    assert isinstance(context, ContextLoaded), context
    return context


@requirement("R18")
def test_an_agent_brings_its_model_its_words_and_its_tools() -> None:
    """All deployed tools if it names none, in an order that never changes: prompt caches depend on it."""
    context = loaded("helper")
    assert (context.agent, context.model, context.instructions) == ("helper", "m1", "Help.")
    assert [spec.name for spec in context.tools] == ["add", "shout"]
    assert context == Agents([HELPER], Toolbox([add, shout])).context(RunRequested(task_id="u", agent="helper"))


@requirement("R30")
def test_a_tasks_limits_go_before_the_agents_and_these_before_the_defaults() -> None:
    """Every limit in force is written down."""
    limits = loaded("helper", task_limits={"tool_calls": 3}).limits
    assert (limits["tool_calls"], limits["tool_ms"], limits["turn_ms"]) == (3, 5_000, Limits().turn_ms)


@pytest.mark.parametrize(
    ("names", "offered"), [([], []), (["shout"], ["shout"]), (["shout", "add", "shout"], ["add", "shout"])]
)
def test_an_agent_may_choose_its_tools(names: list[str], offered: list[str]) -> None:
    """None at all, some; one that is named twice is offered once: model APIs refuse a repeated name."""
    assert [spec.name for spec in loaded(model="m", tools=names).tools] == offered


def test_the_version_tells_agents_apart() -> None:
    """It moves with the model, the instructions and the tools, and with nothing else."""
    plain = loaded(model="m", instructions="x", tools=["add"]).version
    assert loaded(model="m", instructions="x", tools=["add"], name="n", limits={"turn_ms": 1}).version == plain
    others = [
        loaded(model="n", instructions="x", tools=["add"]).version,
        loaded(model="m", instructions="y", tools=["add"]).version,
        loaded(model="m", instructions="x", tools=["shout"]).version,
    ]
    assert len({plain, *others}) == 4


@pytest.mark.parametrize(
    ("agent", "definition", "said"),
    [
        ("nobody", {}, "no agent 'nobody'; known are helper"),
        ("", {"model": ""}, "model"),
        ("", {"instructions": "no model"}, "model: Field required"),
        ("", {"model": "m", "colour": "red"}, "colour: Extra inputs"),
        ("", {"model": "m", "tools": ["fly"]}, "no tool 'fly'; known are add, shout"),
        ("", {"model": "m", "limits": {"patience": 1}}, "unknown limit 'patience'"),
        ("", {"model": "m", "limits": {"turn_ms": -1}}, "must be positive"),
        ("", {"model": "m", "instructions": "ü" * INLINE_BYTES_MAX}, "are the limit"),
    ],
)
def test_what_is_wrong_is_said_in_words(agent: str, definition: dict[str, Any], said: str) -> None:
    """The task is rejected with this sentence; nothing is raised while a run decides."""
    problem = asked(agent, **definition)
    assert isinstance(problem, str)
    assert said in problem


@pytest.mark.parametrize("definition", ["", "{", "[]", "null", '"m"', '{"model":"\\ud800"}', "[" * 100_000])
def test_a_definition_that_is_no_object_is_a_problem_too(definition: str) -> None:
    """Whatever a client sent in that field."""
    problem = Agents([HELPER], BOX).context(RunRequested(task_id="t", agent="", definition=definition))
    assert isinstance(problem, str)


@pytest.mark.parametrize(
    ("configs", "said"),
    [
        ([HELPER, HELPER], "a name of its own"),
        ([AgentConfig(model="m")], "a name of its own"),
        ([AgentConfig(name="a", model="m", tools=("fly",))], "no tool 'fly'"),
        ([AgentConfig(name="a", model="m", limits={"x": 1})], "unknown limit"),
    ],
)
def test_a_deployment_that_cannot_work_is_refused_at_the_start(configs: list[AgentConfig], said: str) -> None:
    """Not when the first task comes."""
    with pytest.raises(Permanent, match=said):
        Agents(configs, BOX)


def test_files_become_agents_named_for_the_file(tmp_path: Path) -> None:
    """In the order of their names; a file may say another name."""
    (tmp_path / "b.toml").write_text('model = "m2"\nname = "second"\n')
    (tmp_path / "a.toml").write_text('model = "m1"\ntools = ["add"]\n[limits]\ntool_calls = 5\n')
    (tmp_path / "notes.txt").write_text("not an agent")
    assert load_agents(tmp_path) == [
        AgentConfig(name="a", model="m1", tools=("add",), limits={"tool_calls": 5}),
        AgentConfig(name="second", model="m2"),
    ]


@pytest.mark.parametrize("content", [b"model = ", b'instructions = "no model"', b'model = "m"\nx = 1', b"\xff\xfe"])
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, content: bytes) -> None:
    """Whoever wrote it finds the place."""
    (tmp_path / "bad.toml").write_bytes(content)
    with pytest.raises(Permanent, match=r"bad\.toml"):
        load_agents(tmp_path)


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    """With the setting that names it."""
    with pytest.raises(Permanent, match="RUNFOLD_AGENTS"):
        load_agents(tmp_path / "nowhere")


def test_tools_are_named_by_module_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """One tool, a plain function, or a list of both."""
    module = ModuleType("their_tools")
    vars(module).update(one=add, plain=lambda: "x", several=[add, shout.function])
    monkeypatch.setitem(sys.modules, "their_tools", module)
    assert load_tools("their_tools:one") == [add]
    assert [made.name for made in load_tools("their_tools:several")] == ["add", "shout"]
    assert len(load_tools("their_tools:plain")) == 1


@pytest.mark.parametrize("path", ["nowhere.at_all:x", "json:nothing", "json", "", ":x", ".json:x"])
def test_a_module_path_that_leads_nowhere_is_said(path: str) -> None:
    """With the form it should have."""
    with pytest.raises(Permanent, match=r"package\.module:attribute"):
        load_tools(path)


# ---- what many runs share, and what nobody expected


@pytest.mark.parametrize(
    "task",
    [{"agent": "helper"}, {"agent": "helper", "limits": {"turn_ms": 5}}, {"agent": "", "definition": '{"model":"m"}'}],
)
def test_runs_of_one_agent_share_its_context(task: dict[str, Any]) -> None:
    """The same object: thousands of runs hold it."""
    agents = Agents([HELPER], BOX)
    first, second = (agents.context(RunRequested(task_id=task_id, **task)) for task_id in ("a", "b"))
    assert isinstance(first, ContextLoaded)
    assert first is second


@requirement("R30")
@pytest.mark.parametrize(
    ("limits", "said"), [({"patience": 1}, "unknown limit"), ({"turn_ms": -1}, "must be positive")]
)
@pytest.mark.parametrize("definition", [None, '{"model":"m"}'])
def test_a_tasks_limits_are_checked_whoever_wrote_the_request(
    limits: dict[str, int], said: str, definition: str | None
) -> None:
    """Intake checks them at the door; the log has other doors."""
    problem = Agents([HELPER], BOX).context(
        RunRequested(task_id="t", agent="helper", definition=definition, limits=limits)
    )
    assert isinstance(problem, str)
    assert said in problem


def test_texts_that_no_database_can_store_are_mended() -> None:
    """NUL is legal in JSON and in TOML."""
    context = loaded(model="m", name="a\0b", instructions="x\0y")
    assert (context.agent, context.instructions) == ("a\N{REPLACEMENT CHARACTER}b", "x\N{REPLACEMENT CHARACTER}y")


def test_what_is_wrong_is_said_briefly_whatever_was_sent() -> None:
    """The sentence goes into a record."""
    for definition in ({"model": "m", "k\0" * 100_000: 1}, {"model": "m", "tools": ["\0" * 100_000]}):
        problem = asked(**definition)
        assert isinstance(problem, str)
        assert len(problem) <= 4_000
        assert "\0" not in problem


def test_numbers_that_no_record_can_hold_are_a_problem() -> None:
    """Avro's long ends at 63 bits."""
    problem = asked(model="m", limits={"turn_ms": 1 << 63})
    assert isinstance(problem, str)
    assert "limits.turn_ms" in problem


def test_more_tools_than_a_record_holds_are_a_problem() -> None:
    """Found before it is written; the agent may name those that it needs."""
    many = Toolbox([tool(name=f"t{n}", description="x" * 10_000)(add.function) for n in range(100)])
    problem = Agents([], many).context(RunRequested(task_id="t", agent="", definition='{"model":"m"}'))
    assert isinstance(problem, str)
    assert "name fewer tools" in problem
    few = Agents([], many).context(RunRequested(task_id="t", agent="", definition='{"model":"m","tools":["t1"]}'))
    assert isinstance(few, ContextLoaded)


def test_a_files_problems_are_said_in_one_line_with_their_fields(tmp_path: Path) -> None:
    """All of them at once, without what was in the file."""
    (tmp_path / "bad.toml").write_text('colour = "red"\n[limits]\ntool_ms = "secret"\n')
    with pytest.raises(Permanent) as refused:
        load_agents(tmp_path)
    said = str(refused.value)
    assert all(f"{field}: " in said for field in ("model", "colour", "limits.tool_ms"))
    assert "\n" not in said
    assert "secret" not in said


@pytest.mark.parametrize("source", ["def broken(:", "undefined_name", "import nowhere_at_all", "1 + ''"])
def test_a_module_that_cannot_be_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """With what Python said of it."""
    (tmp_path / "broken_tools.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Permanent, match=r"'broken_tools:x' cannot be loaded \(\w+Error: "):
        load_tools("broken_tools:x")
    sys.modules.pop("broken_tools", None)


def test_something_that_is_no_tool_is_named() -> None:
    """With the path that led there."""
    with pytest.raises(Permanent, match="'json:__name__': a tool is a function, not 'json'"):
        load_tools("json:__name__")
