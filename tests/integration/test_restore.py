"""How long a new owner reads before it is at work: 240,000 records of runs that are over, 200 runs that are not."""

import signal
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from runfold.events.envelope import Headers
from runfold.events.partitioner import murmur2_partition
from runfold.events.types import (
    ContextLoaded,
    Event,
    Item,
    ModelCallStarted,
    ModelReplied,
    PhaseEntered,
    RunFinished,
    RunRequested,
    TaskReported,
    ToolDispatchStarted,
    ToolReported,
    Totals,
    TurnAdvanced,
)
from tests.integration.harness import CODEC, PATIENCE_S, Place, place

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
FINISHED, ACTIVE, PARTITIONS = 20_000, 200, 4
AT_WORK_S, SURVIVOR_S = 5.0, 10.0
CALIBRATION = 60_000
# On a slow or busy machine: this many times what a client without any of our code needs to read the same records.
COST_MAX = 3.0

TOTALS = Totals()
RUN: list[tuple[Event, str]] = [  # with the phase of a decision
    (RunRequested(task_id="t", agent="short", input="go"), ""),
    (
        ContextLoaded(agent="short", version="1", model="short", instructions="0", tools=[], limits={}),
        "loading_context",
    ),
    (
        ModelCallStarted(
            turn=1, attempt=1, model="short", prompt_digest="0" * 64, transcript_length=1, messages=[]
        ),
        "calling_model",
    ),
    (ModelReplied(model_call="m", items=[Item(kind="call", name="mark", arguments="{}")], finish_reason="stop"), ""),
    (
        ToolDispatchStarted(
            model_call="m", position=0, attempt=1, arguments_sha256="0" * 64, tool="mark", tool_class="inline",
            time_limit_ms=1000, idempotency_key="m-0",
        ),
        "dispatching_tools",
    ),
    (PhaseEntered(phase="awaiting_tools", turn=1), "awaiting_tools"),
    (ToolReported(model_call="m", position=0, dispatch="d", source="s", outcome="succeeded", output="x" * 100), ""),
    (TurnAdvanced(model_call="m", turn=1, calls=[0]), "advancing_turn"),
    (
        ModelCallStarted(
            turn=2, attempt=1, model="short", prompt_digest="0" * 64, transcript_length=3, messages=[]
        ),
        "calling_model",
    ),
    (ModelReplied(model_call="n", items=[Item(kind="text", text="done " * 20)], finish_reason="stop"), ""),
    (RunFinished(status="completed", result_of="n", totals=TOTALS), "reporting"),
    (TaskReported(completion="c"), "done"),
]  # fmt: skip
ENCODED = [CODEC.encode(event) for event, _ in RUN]
BEGUN = 3  # an active run is in its first model call, and whoever made the call is gone


def write(here: Place, run: str, many: int) -> None:
    """The first records of a run's life, as an executor would write them."""
    last, revision, partition = "", 0, murmur2_partition(run.encode(), PARTITIONS)
    for number in range(many):
        event, phase = RUN[number]
        event_id, kind = f"{run}-{number:026}", type(event).__name__
        if phase:
            revision += 1
            given: Headers = here.headers.decision(kind, event_id, 0, follows=last, revision=revision, phase=phase)
        else:
            given = here.headers.fact(kind, event_id, 0)
        if phase or not number:
            last = event_id
        while True:
            try:
                here.append(run, ENCODED[number], given, partition)
                break
            except BufferError:
                here.producer.poll(0.1)


def calibrated(here: Place) -> float:
    """Records that a bare client reads in a second, here and now."""
    reader = Consumer({"bootstrap.servers": here.bootstrap, "group.id": "-"})
    reader.assign([TopicPartition(here.names.events, number, 0) for number in range(PARTITIONS)])
    began, read = 0.0, 0
    while read < CALIBRATION:
        messages = reader.consume(500, 1.0)
        began = began or time.perf_counter()
        for message in messages:
            (message.partition(), message.offset(), message.timestamp(), message.key(), message.value())
            message.headers()
        read += len(messages)
    took = time.perf_counter() - began
    reader.close()
    return read / took


@pytest.mark.requirement("R2")
@pytest.mark.requirement("R36")
def test_a_new_owner_is_soon_at_work(kafka_bootstrap: str, topic_prefix: str, tmp_path: Path) -> None:
    """Every active run goes on 5 s after the assignment, 10 s after a SIGKILL; or as fast as this machine can read."""
    with place(kafka_bootstrap, topic_prefix, tmp_path, PARTITIONS) as here:
        began = time.perf_counter()
        active = [f"active-{number}" for number in range(ACTIVE)]
        third = ACTIVE // 3
        for run in active[:third]:
            write(here, run, BEGUN)
        for number in range(FINISHED):
            write(here, f"finished-{number}", len(RUN))
            if number == FINISHED // 2:
                for run in active[third : 2 * third]:
                    write(here, run, BEGUN)
        for run in active[2 * third :]:
            write(here, run, BEGUN)
        assert here.producer.flush(PATIENCE_S) == 0
        print(f"written in {time.perf_counter() - began:.1f} s")
        speed = calibrated(here)
        ends = [here.reader.get_watermark_offsets(TopicPartition(here.names.events, n))[1] for n in range(PARTITIONS)]
        here.reader.assign(
            [TopicPartition(here.names.events, number, end) for number, end in enumerate(ends)]
        )  # what comes now
        bare_s = sum(ends) / speed

        first = here.executor("first")
        assigned = first.wait("assigned")["at"]
        waiting = set(active)
        here.until(lambda: not _decided(here, waiting), "the first decisions")
        took = time.time() - assigned
        live = first.wait("live")
        print(
            f"a bare client reads {speed:,.0f} records/s here, all in {bare_s:.1f} s; live after {live['at'] - assigned:.1f} s"
            f" ({live['records'] / (live['at'] - assigned):,.0f} records/s, {live['cpu_s']:.1f} s of processor), all at work after {took:.1f} s"
        )
        assert took <= max(AT_WORK_S, COST_MAX * bare_s)

        second = here.executor("second", session_ms=6_000)
        second.wait("live")
        long = {f"long-{number}" for number in range(8)}
        for run in long:
            here.request(run, "long")
        mark = len(here.records)
        here.until(lambda: len(here.records) > mark + 200, "the long runs at work")
        first.send(signal.SIGKILL)
        assert first.ends_within(30)
        killed = time.time()
        mark = len(here.records)
        theirs = [f"late-{number}" for number in range(40)]
        for run in theirs:  # some live where the killed one was
            here.request(run)
        waiting = set(theirs)
        here.until(lambda: not _decided(here, waiting, mark), "the survivor's decisions")
        took = time.time() - killed
        print(f"survivor at work everywhere {took:.1f} s after the SIGKILL")
        assert took <= max(SURVIVOR_S, SURVIVOR_S - AT_WORK_S + COST_MAX * bare_s)


def _decided(here: Place, waiting: set[str], since: int = 0) -> set[str]:
    """Those of the runs that no decision was read of. Takes the others out."""
    for each in here.records[since:]:
        if "follows" in each.headers:
            waiting.discard(each.key)
    return waiting
