"""The intake's loop on a log in memory: what is sent, when it may be sent, and what is committed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from runfold.adapters.blobs import MemoryBlobs
from runfold.core.limits import INLINE_BYTES_MAX
from runfold.events.codec import Codec
from runfold.events.envelope import Headers
from runfold.events.partitioner import murmur2_partition
from runfold.events.types import (
    BlobRef,
    CancelRequested,
    Event,
    Quarantined,
    RunRequested,
    TaskCancelled,
    TaskCompleted,
    TaskRequested,
    Totals,
)
from runfold.intake.loop import FRESH_MS, OTHER_BODY, REST_MS, Intake
from runfold.intake.ports import Fate, Outgoing, RequestListener, Settled, Topic
from runfold.intake.requests import digest_of
from runfold.ports import Delivery, Transient

CODEC = Codec()
PARTITIONS = 2
HERE, THERE = 0, 1


def id_in(partition: int, name: str = "t") -> str:
    """A task id that lives there."""
    return next(i for n in range(100) if murmur2_partition((i := f"{name}-{n}").encode(), PARTITIONS) == partition)


ID = id_in(HERE)
GOOD = TaskRequested(task_id=ID, agent="clerk", input="go")


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return self.now_ms


@dataclass
class MemoryRequestLog:
    """Both topics and what was sent. A send is settled at once, unless `fates` says otherwise."""

    topic: str = "requests"
    partitions: int = PARTITIONS
    requests: list[Delivery] = field(default_factory=list)
    completed: list[Delivery] = field(default_factory=list)
    hidden: int = 0  # of the completions, the newest: not fetched yet
    handed: int = 0
    position: int = 0
    held: set[int] = field(default_factory=set)
    fates: list[Fate | None] = field(default_factory=list)  # of the next sends; None: later
    later: list[Settled] = field(default_factory=list)
    sent: list[Outgoing] = field(default_factory=list)
    committed: dict[int, int] = field(default_factory=dict)
    is_away: bool = False
    ends_asked: int = 0
    listener: RequestListener | None = None

    def open(self, listener: RequestListener) -> None:
        self.listener = listener
        listener.on_assigned([HERE])

    def request(self, value: bytes | Event | None, key: str | None = None, headers: Headers | None = None) -> None:
        bytes_ = value if value is None or isinstance(value, bytes) else CODEC.encode(value)
        key_ = None if key is None else key.encode()
        self.requests.append(Delivery(HERE, 10 + len(self.requests), 0, key_, bytes_, headers))

    def completion(self, task_id: str, request: TaskRequested | None, value: bytes | None = b"") -> None:
        if request is not None:
            done = TaskCompleted(
                task_id=task_id, status="completed", totals=Totals(), request_digest=digest_of(request)
            )
            value = CODEC.encode(done)
        self.completed.append(Delivery(HERE, len(self.completed), 0, task_id.encode(), value, None))

    def poll(self, timeout_s: float) -> list[Delivery]:
        if HERE in self.held:
            return []
        found, self.position = self.requests[self.position :], len(self.requests)
        return found

    def hold(self, partition: int) -> None:
        self.held.add(partition)

    def release(self, partition: int) -> None:
        self.held.remove(partition)

    def completions(self) -> list[Delivery]:
        until = len(self.completed) - self.hidden
        found, self.handed = self.completed[self.handed : until], max(self.handed, until)
        return found

    def completions_read(self, partition: int) -> int:
        return self.handed

    def completions_end(self, partitions: Sequence[int]) -> Mapping[int, int]:
        self.ends_asked += 1
        if self.is_away:
            raise Transient("away")
        return dict.fromkeys(partitions, len(self.completed))

    def send(self, outgoing: Outgoing, settled: Settled) -> None:
        self.sent.append(outgoing)
        fate = self.fates.pop(0) if self.fates else Fate.DONE
        if fate is None:
            self.later.append(settled)
        else:
            settled(fate, "the test said so")

    def commit(self, positions: Mapping[int, int], *, wait: bool) -> None:
        self.committed.update(positions)

    def flush(self) -> None:
        while self.later:
            self.later.pop(0)(Fate.DONE, "")

    def close(self) -> None:
        assert self.listener is not None
        self.listener.on_revoked([HERE], lost=False)


class World:
    def __init__(self) -> None:
        self.log, self.clock, self.blobs = MemoryRequestLog(), Clock(), MemoryBlobs()
        self.told: list[str] = []
        self.intake = Intake(
            log=self.log,
            codec=CODEC,
            blobs=self.blobs,
            clock=self.clock,
            name="test",
            tell=self.told.append,
            commit_ms=0,
        )

    def open(self) -> "World":
        self.intake.open()
        self.step()
        return self

    def step(self, times: int = 2) -> None:
        for _ in range(times):
            self.intake.step()

    def wait(self, ms: int) -> None:
        self.clock.now_ms += ms
        self.step()

    def events(self, topic: Topic = Topic.EVENTS) -> list[Event]:
        return [CODEC.decode(outgoing.value) for outgoing in self.log.sent if outgoing.topic is topic]

    def quarantined(self) -> list[str]:
        return [event.reason for event in self.events(Topic.QUARANTINE) if isinstance(event, Quarantined)]


@pytest.fixture
def world() -> World:
    return World().open()


def test_a_request_begins_a_run(world: World) -> None:
    """Keyed by its id, in its trace, committed once it is acknowledged."""
    trace = b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"
    world.log.request(GOOD, headers=[("traceparent", trace), ("mine", b"1")])
    world.step()
    (sent,) = world.log.sent
    assert (sent.topic, sent.key, sent.partition) == (Topic.EVENTS, ID, None)
    headers = dict(sent.headers)
    assert (headers["ce_type"], headers["traceparent"]) == (b"runfold.RunRequested", trace)
    assert "mine" not in headers
    assert world.events() == [
        RunRequested(task_id=ID, agent="clerk", input="go", request_digest=digest_of(GOOD)),
    ]
    assert world.log.committed == {HERE: 11}
    assert world.intake.counts == {"started": 1}


@pytest.mark.requirement("R33")
def test_nothing_is_taken_before_the_completions_were_read() -> None:
    """To the end that was seen at the assignment; an id in them starts nothing."""
    world = World()
    world.log.completion(ID, GOOD)
    world.log.hidden = 1
    world.log.request(GOOD)
    world.log.request(replace(GOOD, task_id=id_in(HERE, "other")))
    world.open()
    world.step(5)
    assert (world.log.sent, world.log.position) == ([], 0)
    world.log.hidden = 0
    world.step(3)
    assert [sent.key for sent in world.log.sent] == [id_in(HERE, "other")]
    assert world.log.committed == {HERE: 12}
    assert world.intake.counts == {"repeated": 1, "started": 1}


@pytest.mark.requirement("R33")
def test_an_id_that_ended_meanwhile_starts_nothing(world: World) -> None:
    """The completions are followed after the assignment too."""
    world.log.completion(ID, GOOD)
    world.log.request(GOOD)
    world.step()
    assert (world.log.sent, world.log.committed) == ([], {HERE: 11})


@pytest.mark.requirement("R33")
def test_whoever_slept_reads_the_completions_first(world: World) -> None:
    """A stopped process wakes with an old picture; the executor has forgotten the id by then."""
    world.log.completion(ID, GOOD)
    world.log.hidden = 1  # not fetched before it wakes
    world.log.request(GOOD)
    world.clock.now_ms += FRESH_MS
    world.step()
    assert world.log.sent == []
    world.log.hidden = 0
    world.step()
    assert world.log.sent == []
    assert world.intake.counts == {"repeated": 1}


def test_without_kafka_s_word_on_the_end_requests_wait(world: World) -> None:
    """And go on when it is back; nothing is asked for while nobody has anything to take."""
    asked = world.log.ends_asked
    world.wait(FRESH_MS * 10)
    assert world.log.ends_asked == asked
    world.log.is_away = True
    world.log.request(GOOD)
    world.step()
    assert (world.log.sent, world.log.held) == ([], {HERE})
    assert ["requests wait" in text for text in world.told] == [True]  # once, not with each look
    world.log.is_away = False
    world.step()
    assert len(world.log.sent) == 1
    assert world.log.held == set()


@pytest.mark.requirement("R33")
def test_a_repeat_of_an_id_that_runs_is_dropped(world: World) -> None:
    """Also before the first was acknowledged: then its place is not committed either."""
    world.log.fates = [None]
    for _ in range(3):
        world.log.request(GOOD)
    world.step()
    assert len(world.log.sent) == 1
    assert world.log.committed == {}
    world.log.flush()
    world.step()
    assert world.log.committed == {HERE: 13}
    assert world.intake.counts == {"started": 1, "repeated": 2}


@pytest.mark.requirement("R33")
@pytest.mark.parametrize("ended", [False, True])
def test_another_body_under_the_same_id_goes_to_quarantine(world: World, ended: bool) -> None:
    """Two tasks of one name are somebody's mistake: neither is silently dropped."""
    world.log.request(GOOD)
    world.step()
    if ended:
        world.log.completion(ID, GOOD)
    world.log.request(replace(GOOD, input="something else"))
    world.step()
    assert len(world.events()) == 1
    assert world.quarantined() == [OTHER_BODY]
    assert world.log.committed == {HERE: 12}


@pytest.mark.requirement("R34")
def test_a_malformed_repeat_does_not_replace_the_real_completion(world: World) -> None:
    """Its rejection would be the newest record of that key: compaction would delete the truth."""
    world.log.completion(ID, GOOD)
    world.log.request(replace(GOOD, agent=""))
    world.log.request(b"garbage", key=ID)
    world.step()
    assert world.events() == []
    assert [reason.startswith(OTHER_BODY) for reason in world.quarantined()] == [True, True]


@pytest.mark.requirement("R34")
def test_a_malformed_request_that_is_read_again_is_a_repeat(world: World) -> None:
    """It was rejected already: that is no reason for quarantine."""
    for _ in range(2):
        world.log.request(b"garbage", key=ID)
    world.step()
    (event,) = world.events()
    assert isinstance(event, RunRequested)
    assert event.problem
    assert (world.quarantined(), world.intake.counts) == ([], {"rejected": 1, "repeated": 1})


@pytest.mark.requirement("R34")
def test_what_cannot_be_read_is_set_aside_and_the_partition_goes_on(world: World) -> None:
    """With its place, its reason and what it was; shortened to what the topic takes."""
    world.log.request(b"x" * 4_000_000, headers=[("a", b"1"), ("b", b"x" * 1_000_000), ("c", b"2")])
    world.log.request(None)
    world.log.request(GOOD)
    world.step()
    first, second = world.events(Topic.QUARANTINE)
    assert isinstance(first, Quarantined)
    assert isinstance(second, Quarantined)
    assert (first.topic, first.partition, first.offset, first.headers) == ("requests", HERE, 10, {"a": b"1"})
    assert len(first.value or b"") == 256 * 1024
    assert (second.offset, second.value, second.key) == (11, b"", None)
    assert len(world.events()) == 1
    assert world.log.committed == {HERE: 13}


def test_a_request_in_another_partition_is_sent_to_its_own(world: World) -> None:
    """As it was, with all headers, marked; there its completion will be found."""
    there = replace(GOOD, task_id=id_in(THERE))
    world.log.request(there, key="customer", headers=[("mine", b"1"), ("ce_id", b"x")])
    world.step()
    (sent,) = world.log.sent
    assert (sent.topic, sent.partition, sent.key) == (Topic.REQUESTS, THERE, there.task_id)
    assert sent.value == CODEC.encode(there)
    assert sent.headers == [("mine", b"1"), ("ce_id", b"x"), ("runfold-rerouted", b"1")]
    assert world.log.committed == {HERE: 11}


@pytest.mark.parametrize(("said", "sent_on"), [(b"1", b"2"), (b"2", b"3"), (b"3", None), (b"what", None)])
def test_a_request_is_not_sent_round_for_ever(world: World, said: bytes, sent_on: bytes | None) -> None:
    """Two intakes that disagree about the number of partitions would play ping-pong."""
    world.log.request(replace(GOOD, task_id=id_in(THERE)), headers=[("runfold-rerouted", said)])
    world.step()
    (sent,) = world.log.sent
    if sent_on is None:
        assert "number of partitions" in world.quarantined()[0]
    else:
        assert sent.headers == [("runfold-rerouted", sent_on)]


@pytest.mark.requirement("R10")
def test_a_cancel_reaches_the_run_unless_it_ended(world: World) -> None:
    """Before its run, while it runs; afterwards it is counted and nothing else."""
    world.log.request(TaskCancelled(task_id=ID, reason="changed my mind"))
    world.step()
    world.log.completion(ID, GOOD)
    world.log.request(TaskCancelled(task_id=ID))
    world.step()
    assert world.events() == [CancelRequested(command_id="cancel-0-10", reason="changed my mind", sender="task")]
    assert world.intake.counts == {"cancelled": 1, "late_cancels": 1}


@pytest.mark.requirement("R10")
def test_a_cancel_that_waits_already_stands_before_its_run(world: World) -> None:
    """A task that nobody wants any more is not begun to be cancelled; the cancel's own turn repeats it, counted once."""
    cancel = [("ce_type", b"runfold.TaskCancelled")]
    world.log.request(GOOD, ID)
    world.log.request(TaskCancelled(task_id=ID), ID, cancel)
    world.step()
    first, second, third = world.events()
    assert isinstance(first, CancelRequested) and isinstance(second, RunRequested)
    assert third == first


def test_a_large_input_is_stored_before_its_run_begins(world: World) -> None:
    """The event holds the ticket; when it cannot be stored, the request waits and nothing else is lost."""
    text = "y" * (INLINE_BYTES_MAX + 1)
    stored = world.blobs.put

    def full(payload: bytes) -> BlobRef:
        raise OSError("disk full")

    world.blobs.put = full  # type: ignore[method-assign]
    world.log.request(replace(GOOD, input=text))
    world.step()
    assert world.log.sent == []
    assert "disk full" in world.told[0]
    world.blobs.put = stored  # type: ignore[method-assign]
    world.wait(REST_MS)
    (event,) = world.events()
    assert isinstance(event, RunRequested)
    assert event.input_ref is not None
    assert world.blobs.get(event.input_ref) == text.encode()


def test_a_request_of_unknown_fate_is_taken_again(world: World) -> None:
    """After a pause, under the same event id, before those that came later; nothing is committed meanwhile."""
    later = replace(GOOD, task_id=id_in(HERE, "later"))
    world.log.fates = [Fate.UNKNOWN]
    world.log.request(GOOD)
    world.log.request(later)
    world.step()
    assert ([sent.key for sent in world.log.sent], world.log.committed) == ([ID], {})
    world.wait(REST_MS)
    first, again, other = world.log.sent
    assert dict(first.headers)["ce_id"] == dict(again.headers)["ce_id"]
    assert (first.value, other.key) == (again.value, later.task_id)
    assert world.log.committed == {HERE: 12}
    assert world.intake.counts == {"started": 2}


@pytest.mark.requirement("R33")
def test_a_request_of_unknown_fate_that_ran_meanwhile_is_not_sent_again(world: World) -> None:
    """It had landed after all."""
    world.log.fates = [None]
    world.log.request(GOOD)
    world.step()
    world.log.completion(ID, GOOD)
    world.log.later.pop()(Fate.UNKNOWN, "timed out")
    world.wait(REST_MS)
    assert len(world.log.sent) == 1
    assert world.log.committed == {HERE: 11}


@pytest.mark.requirement("R34")
def test_a_rejection_of_unknown_fate_is_sent_again(world: World) -> None:
    """It is no repeat of itself, and does not end in quarantine."""
    world.log.fates = [Fate.UNKNOWN]
    world.log.request(replace(GOOD, agent=""))
    world.step()
    world.wait(REST_MS)
    assert len(world.events()) == 2
    assert world.quarantined() == []


def test_what_kafka_refuses_goes_to_quarantine_and_the_partition_goes_on(world: World) -> None:
    """Sending it again would be refused again. Where even that is refused, it is told."""
    world.log.fates = [Fate.REFUSED, Fate.DONE, Fate.DONE, Fate.REFUSED, Fate.REFUSED]
    world.log.request(GOOD)
    world.log.request(GOOD)  # the first did not begin, so this one does
    world.log.request(b"garbage")
    world.step()
    assert [sent.topic for sent in world.log.sent] == [
        Topic.EVENTS, Topic.QUARANTINE, Topic.EVENTS, Topic.QUARANTINE, Topic.QUARANTINE,
    ]  # fmt: skip
    assert "Kafka refused" in world.quarantined()[0]
    assert "cannot be quarantined" in world.told[-1]
    assert world.log.committed == {HERE: 13}


def test_only_what_stands_before_the_first_open_request_is_committed(world: World) -> None:
    """Acknowledgements of one producer to many partitions come in any order."""
    ids = [id_in(HERE, name) for name in "abc"]
    world.log.fates = [Fate.DONE, None, Fate.DONE]
    for task_id in ids:
        world.log.request(replace(GOOD, task_id=task_id))
    world.step()
    assert world.log.committed == {HERE: 11}
    world.log.flush()
    world.step()
    assert world.log.committed == {HERE: 13}


def test_commits_are_rare(world: World) -> None:
    """What a crash repeats starts nothing new; a commit for every request would cost as much as the request."""
    world.intake.commit_ms = 500
    world.clock.now_ms += 10_000
    for number in range(3):
        world.log.request(replace(GOOD, task_id=id_in(HERE, f"c{number}")))
        world.step(1)
    assert world.log.committed == {HERE: 11}
    world.clock.now_ms += 500
    world.step(1)
    assert world.log.committed == {HERE: 13}


def test_a_revoked_partition_is_settled_and_committed_first(world: World) -> None:
    """The next owner need not take again what we took."""
    world.log.fates = [None]
    world.log.request(GOOD)
    world.step()
    world.intake.close()
    assert world.log.committed == {HERE: 11}
    assert world.intake.partitions == {}


def test_a_lost_partition_is_left_as_it_is(world: World) -> None:
    """Somebody else owns it: committing would move their place."""
    world.log.fates = [None]
    world.log.request(GOOD)
    world.step()
    world.intake.on_revoked([HERE], lost=True)
    world.log.flush()
    world.step()
    assert world.log.committed == {}


def test_requests_lost_to_retention_are_told(world: World) -> None:
    """What was ended is still known; the partition goes on from its start."""
    world.log.completion(ID, GOOD)
    world.step()
    world.intake.on_truncated(HERE)
    world.log.request(GOOD)
    world.step()
    assert "are gone" in world.told[0]
    assert (world.log.sent, world.log.committed) == ([], {HERE: 11})


@pytest.mark.parametrize("value", [b"from a newer version", CODEC.encode(GOOD)])
def test_a_completion_that_cannot_be_read_still_ends_its_id(world: World, value: bytes) -> None:
    """Its key is enough; a repeat with any body starts nothing."""
    world.log.completion(ID, None, value)
    world.log.request(GOOD)
    world.step()
    assert (world.log.sent, world.intake.counts) == ([], {"repeated": 1})


def test_a_deleted_completion_frees_its_id(world: World) -> None:
    """The promise holds for as long as the completion is kept."""
    world.log.completion(ID, GOOD)
    world.log.completion(ID, None, None)
    world.log.request(GOOD)
    world.step()
    assert len(world.events()) == 1
