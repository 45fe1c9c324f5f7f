"""Commands: append what somebody wants, read it back, and say what became of it.

1. Asked before? The answer stands in the log under the command's id. A crash after the append costs nothing: whoever
   asks again, of whichever gateway, gets the answer that the first would have given.
2. What names nothing of the run is refused, and appended nowhere.
3. Append, and wait until the record comes back: only its place in the log says whether it counted. It may be told too
   late: then it is recorded, changes nothing, and its sender is told why.
"""

import asyncio
from typing import NamedTuple

from runfold.core.limits import RECORD_BYTES_MAX
from runfold.gateway.commands import Command, Judged, command_digest, command_key
from runfold.gateway.gateway import READ_BACK_S, Gateway, in_thread, until
from runfold.gateway.models import Accepted, AsOf
from runfold.gateway.ports import Topic
from runfold.gateway.problems import Refused
from runfold.gateway.tracked import Tracked
from runfold.gateway.watching import Watch


class Known(NamedTuple):
    """What the run has to say about a command before it is appended."""

    partition: int
    judged: Judged | None
    unfounded: str


async def act(gateway: Gateway, run_id: str, event: Command, command_id: str) -> Accepted:
    """Carry out one command. Raises Refused."""
    key = command_key(event)

    def known(tracked: Tracked, position: int) -> Known:
        return Known(tracked.partition, tracked.commands.get(key), tracked.unfounded(event))

    found = await gateway.look(run_id, known)
    if found.judged is None and found.unfounded:
        await gateway.catch_up(run_id)  # another gateway may have shown what this one has not read yet
        found = await gateway.look(run_id, known)
    if found.judged is not None:
        return _answer(run_id, event, command_id, found.judged, found.partition)
    if found.unfounded:
        raise Refused(409, found.unfounded, command_id=command_id)
    size = len(gateway.codec.encode(event))
    if size > RECORD_BYTES_MAX:
        raise Refused(413, f"this would be a record of {size:,} bytes; {RECORD_BYTES_MAX:,} are the limit")
    judged = await _appended(gateway, run_id, event, command_id)
    return _answer(run_id, event, command_id, judged, found.partition)


async def _appended(gateway: Gateway, run_id: str, event: Command, command_id: str) -> Judged:
    key = command_key(event)
    watch = Watch(asyncio.get_running_loop())
    with gateway.reading.watching(run_id, watch):
        sent = await gateway.append(Topic.EVENTS, run_id, event, gateway.new_id())
        again = "ask again with the same command_id: it has one effect"
        if sent.problem:
            raise Refused(503, f"Kafka did not take it, or may have: {sent.problem}; {again}", command_id=command_id)

        async def is_read() -> bool:
            return await in_thread(lambda: gateway.reading.has_read(run_id, sent.offset))

        if not await until(is_read, watch, READ_BACK_S):
            raise Refused(504, f"it stands in the log, and was not read back yet; {again}", command_id=command_id)
    judged = await gateway.look(run_id, lambda tracked, _: (tracked.commands.get(key),))
    if judged[0] is None:
        raise Refused(409, "it was not taken: it stands before the run's beginning", command_id=command_id)
    return judged[0]


def _answer(run_id: str, event: Command, command_id: str, judged: Judged, partition: int) -> Accepted:
    if judged.digest != command_digest(event):
        said = "this dispatch was reported already" if not hasattr(event, "command_id") else "this command_id was used"
        raise Refused(409, f"{said} with another body: use a new one for something new", command_id=command_id)
    if judged.refused:
        raise Refused(409, judged.refused, command_id=command_id)
    as_of = AsOf(partition=partition, offset=judged.offset + 1)
    return Accepted(run_id=run_id, command_id=command_id, status=judged.status, as_of=as_of)
