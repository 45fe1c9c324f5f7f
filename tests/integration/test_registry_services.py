"""The services with SCHEMA_REGISTRY_URL: every record is framed with an id, and an outage costs nothing but time."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from runfold.adapters.registry import SchemaRegistry, topic_of
from runfold.cli.main import main
from runfold.events.codec import Codec, released_schemas
from runfold.events.types import Event, MessageReceived, RunRequested, TaskCompleted, TaskRequested
from runfold.installation import codec_of
from runfold.ports import Permanent, Transient
from tests.integration.fake_registry import Registry, serving
from tests.integration.services import Installation, installation

pytestmark = pytest.mark.kafka
SCRIPT = {"clerk": [{"text": "four"}, {"text": "five"}]}
BY_ID, ALONE = b"\0", b"\xc3\x01"


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as server:
        yield server


@pytest.fixture
def here(kafka_bootstrap: str, topic_prefix: str, registry: Registry, tmp_path: Path) -> Iterator[Installation]:
    with installation(kafka_bootstrap, topic_prefix, tmp_path, SCRIPT, schema_registry_url=registry.url) as made:
        yield made


@pytest.mark.requirement("R32")
def test_a_task_runs_from_request_to_completion_by_schema_ids(here: Installation) -> None:
    """Every value that the services write names its schema by an id; the request may come in either framing."""
    here.intake()
    here.executor()
    framed = codec_of(here.settings, here.names)
    for number, codec in enumerate((framed, Codec())):
        task = TaskRequested(task_id=f"t{number}", agent="clerk", input="count")
        here.put(here.names.requests, task.task_id, task, f"asked-{number}", codec.encode(task))
    here.until(lambda: len(here.of("task-completions")) == 2, "two completions")
    completed = [framed.decode(each.value) for each in here.of("task-completions")]
    assert [(type(each), each.status, each.result) for each in completed] == [(TaskCompleted, "completed", "four")] * 2
    here.until(lambda: len(here.of("run-events", "TaskReported")) == 2, "the runs' ends")
    written = {each.value[:1] for each in here.records if each.topic != "task-requests"}
    assert written == {BY_ID}
    assert {each.value[:2] for each in here.of("task-requests")} >= {ALONE}
    assert here.of("quarantine") == []


REFUSAL = (403, b'{"error_code": 403, "message": "Forbidden"}')
OUTAGE = (0, b"")


@pytest.mark.parametrize(
    ("answer", "raised"),
    [
        pytest.param(REFUSAL, Permanent, id="refusal"),
        pytest.param(OUTAGE, Transient, id="outage", marks=pytest.mark.slow),
    ],
)
def test_an_executor_without_its_registry_ends_and_the_next_one_goes_on(
    here: Installation, registry: Registry, answer: tuple[int, bytes], raised: type[Exception]
) -> None:
    """It says so; nothing is parked or quarantined, and the run takes up the message that nobody could read then."""
    first = here.executor()
    codec = codec_of(here.settings, here.names)
    task = RunRequested(task_id="run", agent="clerk", input="count", interactive=True)
    here.put(here.names.events, "run", task, "asked", codec.encode(task))
    here.until(lambda: bool(here.of("run-events", "PhaseEntered")), "the run waits for a message")
    message = MessageReceived(command_id="m", text="and?")
    value = of_a_later_release(here, registry, message)
    registry.always = answer
    here.put(here.names.events, "run", message, "m", value)
    ended = first.ended()
    assert isinstance(ended, raised)
    assert f"the schema registry at {registry.url}" in str(ended)
    registry.always = None
    here.executor()
    here.until(lambda: len(here.of("run-events", "ModelReplied")) == 2, "the answer to the message")
    assert here.of("quarantine") == []
    assert here.of("run-events", "RunParked") == []


def of_a_later_release(here: Installation, registry: Registry, event: Event) -> bytes:
    """The event as a release writes it that has one field more, by an id that no running process knows."""
    name = type(event).__name__
    schema = copy.deepcopy(released_schemas()[name][-1])
    schema["fields"].append({"name": "mood", "type": "string", "default": ""})
    schema_id = SchemaRegistry(registry.url, topic_of(here.names)).id_of(name, json.dumps(schema))
    return BY_ID + schema_id.to_bytes(4, "big") + Codec().encode(event)[10:] + b"\0"


def test_a_registry_that_refuses_at_the_start_is_said_by_every_command(
    here: Installation, registry: Registry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the address and the registry's own words, and status 1: executor, intake and doctor."""
    for name, value in {
        "KAFKA_BOOTSTRAP_SERVERS": here.settings.bootstrap_servers,
        "RUNFOLD_TOPIC_PREFIX": here.settings.topic_prefix,
        "RUNFOLD_RUN_PARTITIONS": "1",
        "RUNFOLD_BLOBS": str(here.settings.blobs),
        "SCHEMA_REGISTRY_URL": registry.url,
    }.items():
        monkeypatch.setenv(name, value)
    registry.always = REFUSAL
    for command in ("executor", "intake", "doctor"):
        assert main([command]) == 1
        assert f"runfold: the schema registry at {registry.url} refuses" in capsys.readouterr().err
