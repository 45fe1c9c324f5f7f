"""Python functions as tools: their schema, their outcome, their output."""

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from runfold.adapters.arguments import argument_problem
from runfold.adapters.blobs import DirectoryBlobs, MemoryBlobs
from runfold.adapters.inline_tools import InlineTools
from runfold.adapters.toolbox import Tool, Toolbox, ToolContext, tool
from runfold.adapters.truncation import head_and_tail
from runfold.events.types import BlobRef, ToolReported
from runfold.ports import Blobs, Permanent, ToolStart


class Place(BaseModel):
    name: str


@tool(immediate=True)
def visit(
    place: Place,
    mood: Literal["fast", "slow"],
    days: Annotated[int, Field(description="whole days")] = 1,
    note: str | None = None,
    *,
    context: ToolContext,
) -> dict[str, object]:
    """Visit a place."""
    return {"name": place.name, "days": days, "mood": mood, "attempt": context.attempt}


def started(name: str, arguments: str) -> ToolStart:
    return ToolStart(
        run_id="r", model_call="m", position=0, dispatch="d", attempt=2, tool=name, arguments=arguments, time_limit_s=1,
        idempotency_key="k",
    )  # fmt: skip


def ran(made: Tool, arguments: str = "{}", blobs: Blobs | None = None, output_bytes_max: int = 1000) -> ToolReported:
    tools = InlineTools(Toolbox([made]), blobs or MemoryBlobs(), "here", output_bytes_max=output_bytes_max)
    report = tools.start(started(made.name, arguments), lambda report: None)
    assert report is not None
    return report


@pytest.mark.requirement("R18")
def test_the_schema_comes_from_the_type_hints() -> None:
    """Name, description, class, time limit and an OpenAI-compatible schema; the context is not part of it."""
    spec = visit.spec()
    assert (spec.name, spec.description, spec.tool_class) == ("visit", "Visit a place.", "inline")
    assert visit.parameters["required"] == ["place", "mood"]
    assert visit.parameters["additionalProperties"] is False
    assert visit.parameters["properties"]["days"]["description"] == "whole days"
    assert "context" not in visit.parameters["properties"]


@pytest.mark.requirement("R17")
@pytest.mark.requirement("R18")
def test_arguments_are_checked_against_the_schema() -> None:
    """A problem is words that a model can act on."""
    Toolbox([visit])
    assert argument_problem(visit.spec(), {"place": {"name": "Rome"}, "mood": "fast"}) is None
    assert "mood" in (argument_problem(visit.spec(), {"place": {"name": "Rome"}, "mood": "sad"}) or "")
    assert "'place', 'mood' are missing" in (argument_problem(visit.spec(), {}) or "")


def test_arguments_arrive_as_what_the_hints_say() -> None:
    """Models, defaults and the context are given; the result is JSON."""
    report = ran(visit, '{"place": {"name": "Rome"}, "mood": "slow"}')
    assert (report.outcome, report.output) == ("succeeded", '{"name":"Rome","days":1,"mood":"slow","attempt":2}')


@pytest.mark.parametrize("name", ["", "has space", "x" * 65])
def test_names_that_model_apis_refuse_are_refused_at_start(name: str) -> None:
    """Not at the first call."""
    with pytest.raises(Permanent, match="1 to 64"):
        Toolbox([tool(name=name)(lambda: "") if name else Tool(name="", description="", parameters={}, function=str)])


def test_two_tools_of_one_name_are_refused() -> None:
    """Which one would run?"""
    with pytest.raises(Permanent, match="twice"):
        Toolbox([visit, visit])


@pytest.mark.requirement("R17")
@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_whatever_a_tool_raises_is_its_outcome(error: BaseException) -> None:
    """Even what would end the process."""

    @tool(immediate=True)
    def bad() -> str:
        """Raises."""
        raise error

    report = ran(bad)
    assert report.outcome == "failed"
    assert report.output.startswith(type(error).__name__)


@pytest.mark.parametrize(
    ("value", "output"),
    [
        (None, ""),
        (b"a\xffb", "a\N{REPLACEMENT CHARACTER}b"),
        ("\ud800\0", "\N{REPLACEMENT CHARACTER}" * 2),
        ([1, "é"], '[1,"é"]'),
    ],
)
def test_results_become_text_that_every_reader_can_hold(value: object, output: str) -> None:
    """Bytes, nothing, lone surrogates and NUL."""

    @tool(immediate=True)
    def give() -> object:
        """Gives."""
        return value

    assert ran(give).output == output


@pytest.mark.requirement("R20")
def test_a_large_output_keeps_head_and_tail_and_is_whole_in_the_blob_store() -> None:
    """Cut between characters, with the size said."""
    whole = "ä" * 500_000 + "end"

    @tool(immediate=True)
    def much() -> str:
        """Says much."""
        return whole

    blobs = MemoryBlobs()
    report = ran(much, blobs=blobs)
    assert len(report.output.encode()) <= 1000
    assert report.output.startswith("ää") and report.output.endswith("end")
    assert "1,000,003 bytes" in report.output
    assert report.output_ref is not None
    assert blobs.get(report.output_ref).decode() == whole
    assert head_and_tail("short", 100) == "short"


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_blobs_come_back_as_they_were_put(kind: str, tmp_path: object) -> None:
    """Putting twice is one; what is not there is said."""
    blobs: Blobs = MemoryBlobs() if kind == "memory" else DirectoryBlobs(tmp_path)  # type: ignore[arg-type]  # a Path
    ref = blobs.put(b"payload")
    assert blobs.put(b"payload") == ref
    assert blobs.get(ref) == b"payload"
    with pytest.raises(LookupError):
        blobs.get(BlobRef(sha256="0" * 64, size_bytes=1))
