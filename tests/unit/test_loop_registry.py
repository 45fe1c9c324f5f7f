"""What the loops do when the schema registry does not answer: nothing is set aside for its fault; the process ends."""

import pytest

from runfold.events.codec import Codec
from runfold.events.types import MessageReceived, TaskCompleted, TaskRequested, Totals
from runfold.ports import Permanent, Transient
from tests.unit.loops import CODEC, Place, settle
from tests.unit.test_intake_loop import ID, World

NEW_ID = 1_000
MESSAGE = MessageReceived(command_id="m", text="hello")
FRAME = b"\0" + NEW_ID.to_bytes(4, "big")


def framed(event: MessageReceived | TaskCompleted | TaskRequested) -> bytes:
    """As a newer release writes it, with an id that this process has to ask for."""
    return FRAME + CODEC.encode(event)[10:]


class Ids:
    """A registry's client. It knows the ids that it gave; asked about others it has its problem, or is well."""

    def __init__(self, problem: Exception | None = None) -> None:
        self.problem = problem
        self.given: list[str] = []
        self.new = ""

    def id_of(self, record: str, schema: str) -> int:
        if record == "MessageReceived":
            self.new = schema
        self.given.append(schema)
        return len(self.given)

    def schema_of(self, schema_id: int) -> str:
        if schema_id <= len(self.given):
            return self.given[schema_id - 1]
        if self.problem is not None:
            raise self.problem
        return self.new


PROBLEMS = [Transient("the schema registry does not answer"), Permanent("the schema registry refuses")]
problems = pytest.mark.parametrize("problem", PROBLEMS, ids=["outage", "refusal"])


@problems
def test_a_registry_that_fails_ends_the_executor_and_spoils_no_run(problem: Exception) -> None:
    """The next process, with a registry that answers, goes on from the log as if nothing had happened."""
    place = Place()
    executor = place.executor(Codec(Ids(problem)))
    settle(executor)
    place.request("run", interactive=True)
    settle(executor)
    place.put("run", MESSAGE, "m1", framed(MESSAGE))
    with pytest.raises(type(problem), match="schema registry"):
        settle(executor)
    executor.close()
    assert "RunParked" not in place.types("run")
    assert place.kafka.quarantined == []
    settle(place.executor(Codec(Ids())))
    assert place.types("run").count("ModelReplied") == 2  # to the task, and to the message
    assert place.kafka.quarantined == []


@problems
def test_a_registry_that_fails_during_a_restore_sets_no_run_aside(problem: Exception) -> None:
    """Its records are as good as they were."""
    place = Place()
    place.request("run")
    place.put("run", MESSAGE, "m1", framed(MESSAGE))
    with pytest.raises(type(problem), match="schema registry"):
        settle(place.executor(Codec(Ids(problem))))
    assert place.kafka.quarantined == []
    settle(place.executor(Codec(Ids())))
    assert place.completed == {"run"}
    assert place.kafka.quarantined == []


@problems
def test_a_registry_that_fails_ends_the_intake_and_loses_no_request(problem: Exception) -> None:
    """The request is neither quarantined nor committed: it is read again."""
    ids = Ids(problem)
    world = World()
    world.intake.codec = Codec(ids)
    world.open()
    world.log.request(framed(TaskRequested(task_id=ID, agent="clerk", input="go")), ID)
    with pytest.raises(type(problem), match="schema registry"):
        world.step()
    world.intake.close()
    assert (world.log.sent, world.log.committed) == ([], {})


@problems
def test_a_registry_that_fails_at_a_completion_ends_the_intake(problem: Exception) -> None:
    """An id would count as finished without its body: a request with another body would be taken for a repeat."""
    world = World()
    world.intake.codec = Codec(Ids(problem))
    world.log.completion(ID, None, framed(TaskCompleted(task_id=ID, status="completed", totals=Totals())))
    with pytest.raises(type(problem), match="schema registry"):
        world.open()
    assert world.told == []


@pytest.mark.parametrize("schema", ['{"type": "record"}', '{"type": "nothing"}', "[[[]]]", '"nothing"', "7", "null"])
def test_a_schema_that_is_none_spoils_its_record_only(schema: str) -> None:
    """The registry serves others too, and what it holds is not ours: the record is set aside, the partition goes on."""
    ids = Ids()
    place = Place()
    executor = place.executor(Codec(ids))
    ids.new = schema
    place.request("run")
    place.put("run", MESSAGE, "m1", framed(MESSAGE))
    settle(executor)
    assert place.completed == {"run"}
    assert len(place.kafka.quarantined) == 1
