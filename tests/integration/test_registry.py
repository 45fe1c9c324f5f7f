"""The schema registry's client against a real HTTP server that behaves like a registry, and like a broken one."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from runfold.adapters.registry import FORGET_S, SchemaRegistry, topic_of
from runfold.adapters.topics import TopicNames
from runfold.events.codec import Codec, Undecodable, released_schemas
from runfold.events.types import OTHERS, RunLost, TaskCompleted, Totals
from runfold.ports import Permanent, Transient
from tests.integration.fake_registry import Registry, serving

SCHEMAS = released_schemas()
LOST = RunLost(reason="the log begins later")
COMPLETED = TaskCompleted(task_id="t", status="completed", result="42", totals=Totals())


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as server:
        yield server


class Clock:
    """Time that passes only in pauses."""

    def __init__(self) -> None:
        self.s = 0.0

    def now_s(self) -> float:
        return self.s

    def pause(self, seconds: float) -> None:
        self.s += seconds


def client(url: str, clock: Clock | None = None) -> SchemaRegistry:
    clock = clock or Clock()
    return SchemaRegistry(url, topic_of(TopicNames("p")), now_s=clock.now_s, pause=clock.pause)


def one_codec(registry: Registry) -> Codec:
    return Codec(client(registry.url), {name: SCHEMAS[name] for name in ("RunLost", "TaskCompleted")})


# ---- what it is for


@pytest.mark.requirement("R32")
def test_one_codec_reads_what_was_written_with_and_without_a_registry(registry: Registry) -> None:
    """An installation may begin to use one at any time: its older records stay readable."""
    codec = one_codec(registry)
    for event in (LOST, COMPLETED):
        with_id, without = codec.encode(event), Codec().encode(event)
        assert (with_id[:1], without[:2]) == (b"\0", b"\xc3\x01")
        assert codec.decode(with_id) == codec.decode(without) == event


@pytest.mark.requirement("R32")
def test_another_process_reads_a_record_by_its_id(registry: Registry) -> None:
    """It asks once for each id, whatever the number of records."""
    values = [one_codec(registry).encode(LOST) for _ in range(3)]
    reader = one_codec(registry)
    registry.asked.clear()
    assert [reader.decode(value) for value in values] == [LOST] * 3
    assert registry.asked == []  # the same schema as its own: the id is known from registering it
    newer = copy.deepcopy(SCHEMAS["RunLost"][-1])
    newer["fields"].append({"name": "host", "type": "string", "default": ""})
    newer_id = client(registry.url).id_of("RunLost", json.dumps(newer))
    registry.asked.clear()
    record = b"\0" + newer_id.to_bytes(4, "big") + Codec().encode(LOST)[10:] + b"\x04n1"
    assert [reader.decode(record) for _ in range(3)] == [LOST] * 3
    assert registry.asked == [f"GET /schemas/ids/{newer_id}"]


@pytest.mark.requirement("R32")
def test_every_record_is_a_subject_of_its_topic(registry: Registry) -> None:
    """TopicRecordNameStrategy: consumers with Confluent's own clients find the schema where they look for it."""
    Codec(client(registry.url))
    assert set(registry.subjects) == {
        f"p.{topic}-runfold.{name}" for name in SCHEMAS for topic in [TOPICS.get(name, "run-events")]
    }
    assert len(registry.asked) == len(SCHEMAS)


TOPICS = {
    "TaskRequested": "task-requests",
    "TaskCancelled": "task-requests",
    "TaskCompleted": "task-completions",
    "ModelTextDelta": "run-stream",
    "ToolOutputChunk": "run-stream",
    "Quarantined": "quarantine",
}


def test_no_record_is_forgotten_among_the_topics() -> None:
    """A type that is neither fact nor decision has a topic of its own to be named."""
    assert {cls.__name__ for cls in OTHERS} == set(TOPICS)


def test_a_schema_that_is_registered_already_keeps_its_id(registry: Registry) -> None:
    """Any number of processes may start at once; one asks once."""
    text = json.dumps(SCHEMAS["RunLost"][-1])
    first = client(registry.url)
    assert first.id_of("RunLost", text) == first.id_of("RunLost", text) == client(registry.url).id_of("RunLost", text)
    assert len(registry.asked) == 2


def test_credentials_come_from_the_address(registry: Registry) -> None:
    """As Basic authentication; no message shows them."""
    url = registry.url.replace("//", "//me:se%40cret@") + "/"
    client(url).id_of("RunLost", json.dumps(SCHEMAS["RunLost"][-1]))
    assert registry.authorization == "Basic bWU6c2VAY3JldA=="
    registry.broken = [(401, b'{"error_code": 401, "message": "Unauthorized"}')]
    with pytest.raises(Permanent, match=r"Unauthorized \(401\)") as refused:
        client(url).id_of("RunLost", json.dumps(SCHEMAS["RunLost"][-1]))
    assert "cret" not in str(refused.value)


# ---- when it says no


def test_an_incompatible_schema_is_refused_with_its_subject(registry: Registry) -> None:
    """At the start of the process that would write it."""
    one_codec(registry)
    changed = copy.deepcopy(SCHEMAS["RunLost"][-1])
    changed["fields"][0]["type"] = "long"
    with pytest.raises(Permanent, match=r"p\.run-events-runfold\.RunLost: .* not compatible .*incompatible for"):
        client(registry.url).id_of("RunLost", json.dumps(changed))


@pytest.mark.requirement("R34")
def test_an_id_that_the_registry_does_not_know_is_undecodable(registry: Registry) -> None:
    """A flood of such records asks once, and again when the registry may have learnt it."""
    clock = Clock()
    codec = Codec(client(registry.url, clock), {"RunLost": SCHEMAS["RunLost"]})
    registry.asked.clear()
    for _ in range(5):
        with pytest.raises(Undecodable, match=r"schema id 999: .*has none of this id"):
            codec.decode(b"\0\0\0\3\xe7body")
    assert registry.asked == ["GET /schemas/ids/999"]
    clock.s += FORGET_S
    with pytest.raises(Undecodable):
        codec.decode(b"\0\0\0\3\xe7body")
    assert len(registry.asked) == 2


@pytest.mark.parametrize(
    "answer", [{"schema": "syntax = 'proto3'", "schemaType": "PROTOBUF"}, {"schema": "no json"}, {"schema": 5}, {}]
)
@pytest.mark.requirement("R34")
def test_an_id_of_something_else_is_undecodable(registry: Registry, answer: Any) -> None:
    """The registry serves others too."""
    codec = one_codec(registry)
    registry.schemas.append([answer])
    with pytest.raises(Undecodable, match="schema id 3"):
        codec.decode(b"\0\0\0\0\3body")


# ---- when it is not well


@pytest.mark.parametrize("answer", [(500, b"oops"), (503, b"<html>"), (429, b""), (0, b"")])
def test_a_registry_that_stumbles_is_asked_again(registry: Registry, answer: tuple[int, bytes]) -> None:
    """Errors of the server and broken connections pass."""
    registry.broken = [answer, answer]
    assert client(registry.url).id_of("RunLost", json.dumps(SCHEMAS["RunLost"][-1])) == 1


def test_an_outage_is_no_property_of_the_record(registry: Registry) -> None:
    """It is Transient, never Undecodable: the record would be set aside for the registry's fault."""
    clock = Clock()
    codec = Codec(client(registry.url, clock), {"RunLost": SCHEMAS["RunLost"]})
    registry.broken = [(500, b"oops")] * 100
    with pytest.raises(Transient, match="500: oops"):
        codec.decode(b"\0\0\0\0\7body")
    assert 10 < clock.s <= 15
    registry.broken = []
    registry.schemas += [SCHEMAS["RunLost"][-1]] * 6
    assert codec.decode(b"\0\0\0\0\7" + Codec().encode(LOST)[10:]) == LOST


def test_a_registry_that_is_not_there_is_transient(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its address in the message."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Registry() as never_served:
        url = never_served.url
    with pytest.raises(Transient, match=r"127\.0\.0\.1"):
        client(url).schema_of(1)


@pytest.mark.parametrize("content", [b"<html>welcome</html>", b"[]", b'"id"', b"\xff"])
def test_something_else_at_the_address_is_said(registry: Registry, content: bytes) -> None:
    """A web page answers anything with success."""
    registry.broken = [(200, content)]
    with pytest.raises(Permanent, match="is no schema registry"):
        client(registry.url).schema_of(1)


@pytest.mark.parametrize("answer", [b"{}", b'{"id": "7"}', b'{"id": -1}', b'{"id": 4294967296}', b'{"id": true}'])
def test_an_answer_without_a_usable_id_is_said(registry: Registry, answer: bytes) -> None:
    """The framing has four bytes for it."""
    registry.broken = [(200, answer)]
    with pytest.raises(Permanent, match="gave no id"):
        client(registry.url).id_of("RunLost", json.dumps(SCHEMAS["RunLost"][-1]))


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8081", "ftp://h/x", "http://", "http://h:port", "http://h /x", "file:///etc/x", "http://[::1"],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    """When the client is made, with the setting's name."""
    with pytest.raises(Permanent, match="SCHEMA_REGISTRY_URL"):
        client(url)
