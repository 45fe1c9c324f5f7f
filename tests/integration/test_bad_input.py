"""Whatever lies on run-events: one bad record or run is set aside with its place, and its partition goes on."""

import signal
import time
from pathlib import Path

import pytest

from runfold.events.types import MessageReceived, RunRequested, UnparkRequested
from tests.integration.harness import CODEC, Place, place
from tests.integration.oracle import accepted, problems

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
UNKNOWN_SCHEMA = b"\xc3\x01" + b"\x07" * 8 + b"whatever"
MESSAGE = CODEC.encode(MessageReceived(command_id="c", text="hello"))
LATER_MS = 5_000  # how long a run waits for its first step: time to do something to it


def headers(kind: str, event_id: str, **more: str) -> list[tuple[str, bytes]]:
    given = {"ce_specversion": "1.0", "ce_id": event_id, "ce_type": f"runfold.{kind}", "ce_source": "/test", **more}
    return [(name, value.encode()) for name, value in given.items()]


# key, value, headers
BAD = {
    "garbage": (b"run-1", b"\x00\xff garbage", None),
    "nothing at all": (None, None, None),
    "no type": (b"run-1", MESSAGE, [("ce_id", b"x")]),
    "no id": (b"run-1", MESSAGE, [("ce_type", b"runfold.MessageReceived")]),
    "somebody else's type": (b"run-1", MESSAGE, [("ce_id", b"x"), ("ce_type", b"shop.OrderPlaced")]),
    "header without value": (b"run-1", MESSAGE, [("ce_id", None), ("ce_type", b"runfold.MessageReceived")]),
    "empty id": (b"run-1", MESSAGE, headers("MessageReceived", "")),
    "id that is no text": (b"run-1", MESSAGE, [("ce_type", b"runfold.MessageReceived"), ("ce_id", b"\xff\xfe")]),
    "no key": (None, MESSAGE, headers("MessageReceived", "m1")),
    "empty key": (b"", MESSAGE, headers("MessageReceived", "m2")),
    "key that is no text": (b"\xff\xfe", MESSAGE, headers("MessageReceived", "m3")),
    "revision that is no number": (b"run-1", MESSAGE, headers("PhaseEntered", "d1", follows="x", revision="one")),
    "unknown schema": (b"waiting", UNKNOWN_SCHEMA, headers("MessageReceived", "m4")),
    "no body": (b"waiting", None, headers("MessageReceived", "m5")),
    "cut body": (b"waiting", MESSAGE[:-2], headers("MessageReceived", "m6")),
    "body too long": (b"waiting", MESSAGE + b"!", headers("MessageReceived", "m7")),
    "another type's body": (b"waiting", MESSAGE, headers("CancelRequested", "m8")),
    "unknown schema of a beginning": (b"never-began", UNKNOWN_SCHEMA, headers("RunRequested", "m9")),
}


def put(here: Place, key: bytes | None, value: bytes | None, given: list[tuple[str, bytes]] | None) -> int:
    """Append as it is; answers its offset."""
    offsets: list[int] = []
    here.producer.produce(
        here.names.events, value, key, 0, headers=given, on_delivery=lambda error, m: offsets.append(m.offset())
    )
    here.producer.flush(30)
    return offsets[0]


def ask_for_later(here: Place, run: str) -> None:
    later = int(time.time() * 1000) + LATER_MS
    here.fact(run, RunRequested(task_id=run, agent="short", input="go", not_before_ms=later), f"{run}-asked")
    here.producer.flush(30)


def quarantined(here: Place) -> set[int]:
    return {each.body.offset for each in here.records if each.topic == "quarantine" and each.body.partition == 0}


def test_bad_records_are_set_aside_and_the_partition_goes_on(
    kafka_bootstrap: str, topic_prefix: str, tmp_path: Path
) -> None:
    """Each lies in quarantine with topic, partition, offset and reason; runs before, between and after are completed."""
    with place(kafka_bootstrap, topic_prefix, tmp_path) as here:
        here.executor("one").wait("live")
        ask_for_later(here, "waiting")
        runs = ["waiting"]
        bad = {}
        for number, (name, record) in enumerate(BAD.items(), 1):
            runs.append(f"run-{number}")
            here.request(runs[-1])
            bad[name] = put(here, *record)
        here.until(lambda: here.reported() >= set(runs), "every run over")
        here.until(lambda: quarantined(here) >= set(bad.values()), "every bad record in quarantine")
        assert quarantined(here) == set(bad.values())
        for each in here.records:
            if each.topic == "quarantine":
                assert each.body.reason
                assert each.id == f"quarantined-{here.names.events}-0-{each.body.offset}"
        effects = here.effects()
        found = {run: wrong for run in runs if (wrong := problems(here.records, run, effects))}
        assert not found, found


def test_bad_records_read_by_a_new_owner(kafka_bootstrap: str, topic_prefix: str, tmp_path: Path) -> None:
    """They hinder no restore either: a process that finds them all on the log is soon at work."""
    with place(kafka_bootstrap, topic_prefix, tmp_path) as here:
        runs = ["waiting"]
        ask_for_later(here, "waiting")
        for number, record in enumerate(BAD.values(), 1):
            runs.append(f"run-{number}")
            here.request(runs[-1])
            put(here, *record)
        here.executor("one")
        here.until(lambda: here.reported() >= set(runs), "every run over")
        effects = here.effects()
        found = {run: wrong for run in runs if (wrong := problems(here.records, run, effects))}
        assert not found, found


def test_a_decision_of_the_future_parks_its_run_alone(kafka_bootstrap: str, topic_prefix: str, tmp_path: Path) -> None:
    """An unknown type on the chain parks the run, through a restart too; skipping it takes the run up to its end."""
    with place(kafka_bootstrap, topic_prefix, tmp_path) as here:
        owner = here.executor("one")
        owner.wait("live")
        ask_for_later(here, "parked")
        given = headers("FromTheFuture", "unknown", follows="parked-asked", revision="1", phase="loading_context")
        bad = put(here, b"parked", UNKNOWN_SCHEMA, given)
        here.request("other")
        here.until(lambda: any(each.type == "RunParked" for each in here.run("parked")), "the run parked")
        parked = next(each for each in here.run("parked") if each.type == "RunParked")
        assert parked.body.bad_offset == bad
        assert "FromTheFuture" in parked.body.reason
        here.until(lambda: quarantined(here) == {bad}, "the record in quarantine")
        owner.send(signal.SIGKILL)
        assert owner.ends_within(30)
        here.executor("one").wait("live")
        here.request("another")
        here.until(lambda: here.reported() >= {"other", "another"}, "the others over")
        assert accepted(here.run("parked"))[-1].type == "RunParked"
        here.fact("parked", UnparkRequested(command_id="skip-it", mode="skip"), "unpark")
        here.producer.flush(30)
        here.until(lambda: "parked" in here.reported(), "the parked run over")
        kinds = [each.type for each in accepted(here.run("parked"))]
        assert kinds[:3] == ["FromTheFuture", "RunParked", "RunUnparked"]
        effects = here.effects()
        found = {
            run: wrong for run in ("parked", "other", "another") if (wrong := problems(here.records, run, effects))
        }
        assert not found, found
