"""Results: TaskCompleted as JSON, waited for within bounds."""

import asyncio

from runfold.core.waits import status_of
from runfold.gateway.gateway import Gateway, in_thread, until
from runfold.gateway.models import Completion, NotYet
from runfold.gateway.tracked import Tracked
from runfold.gateway.views import completion_view
from runfold.gateway.watching import Watch


async def completion_within(gateway: Gateway, run_id: str, wait_s: float) -> Completion | None:
    """The run's completion, if it has ended or ends in time. A run that did not begin yet may begin meanwhile."""
    watch = Watch(asyncio.get_running_loop())
    with gateway.reading.watching(run_id, watch):
        return await until(lambda: _completion(gateway, run_id), watch, wait_s)


async def _completion(gateway: Gateway, run_id: str) -> Completion | None:
    return await in_thread(lambda: completion_view(gateway.reading.completion(run_id)))


async def result(gateway: Gateway, run_id: str, wait_s: float) -> tuple[int, Completion | NotYet]:
    """200 with the completion, or 202 with how the run stands. Raises Refused for an unknown run."""
    completion = await completion_within(gateway, run_id, wait_s)
    if completion is not None:
        return 200, completion

    def not_yet(tracked: Tracked, position: int) -> NotYet:
        return NotYet(run_id=run_id, status=status_of(tracked.state))

    return 202, await gateway.look(run_id, not_yet)
