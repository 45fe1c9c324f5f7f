"""A second opinion on a log: what may have happened, read from headers and bodies without any code of the core.

A generation is the time between two PartitionOpened of a partition. A tool's process lives in one of them, so the
allowed outcome of a call follows from where its records stand: dispatched and reported in one generation, its report;
dispatched and silent, `interrupted`, by a later generation; never repeated in either case.
"""

import itertools
from dataclasses import dataclass
from typing import Any

from runfold.events.codec import Codec

CODEC = Codec()


@dataclass(frozen=True)
class Seen:
    """One record as any Kafka client sees it."""

    topic: str
    partition: int
    offset: int
    key: str
    value: bytes
    headers: dict[str, bytes]

    @property
    def type(self) -> str:
        return self.headers.get("ce_type", b"").decode("utf-8", "replace").removeprefix("runfold.")

    @property
    def id(self) -> str:
        return self.headers.get("ce_id", b"").decode("utf-8", "replace")

    @property
    def body(self) -> Any:
        return CODEC.decode(self.value)

    @property
    def size(self) -> int:
        return len(self.value) + sum(len(name) + len(value) for name, value in self.headers.items())


def accepted(records: list[Seen]) -> list[Seen]:
    """The decisions of one run that every reader must obey: each follows the one before."""
    last, chain = b"", []
    for each in records:
        follows = each.headers.get("follows")
        if follows is None and not last and each.type == "RunRequested":
            last = each.headers["ce_id"]
        elif follows is not None and follows == last:
            last = each.headers["ce_id"]
            chain.append(each)
    return chain


def problems(records: list[Seen], run_id: str, effects: list[tuple[str, str, str]]) -> list[str]:
    """What must not be, of one run that is over. `records`: everything read; `effects`: what tools did."""
    run = [each for each in records if each.topic == "run-events" and each.key == run_id]
    chain = accepted(run)
    completions = [each for each in records if each.topic == "task-completions" and each.key == run_id]
    ends = [each.body.status for each in chain if each.type == "RunFinished"]
    found = [f"ends: {ends}"] if ends != ["completed"] else []
    if len({each.id for each in completions}) != 1 or {each.body.status for each in completions} != {"completed"}:
        found.append(f"completions: {[(each.id, each.body.status) for each in completions]}")
    if not chain or chain[-1].type != "TaskReported":
        found.append("nothing was reported at the end")
    partition = run[0].partition
    opened = [e.offset for e in records if e.partition == partition and e.type == "PartitionOpened"]
    order = [each.type for each in chain if each.type in ("ModelCallStarted", "TurnAdvanced", "RunFinished")]
    if any(a == b == "TurnAdvanced" for a, b in itertools.pairwise(order)):
        found.append(f"turns: {order}")
    calls = 0
    for advanced in (each for each in chain if each.type == "TurnAdvanced"):
        asked = advanced.body.model_call
        calls += len(advanced.body.calls)
        if advanced.body.calls != sorted(advanced.body.calls):
            found.append(f"calls out of order: {advanced.body.calls}")
        for position in advanced.body.calls:
            wrong = _wrong_with_call(run, chain, opened, advanced.offset, asked, position)
            if wrong:
                found.append(f"call {asked}-{position}: {wrong}")
    dispatches = {each.id for each in chain if each.type == "ToolDispatchStarted"}
    mine = [each for each in effects if each[0] == run_id]
    keys = [key for _, key, _ in mine]
    found += [f"{key} had its effect twice" for key in set(keys) if keys.count(key) > 1]
    found += [f"{key} ran without an accepted promise" for _, key, dispatch in mine if dispatch not in dispatches]
    for each in run:  # R12: what reported had its effect
        if each.type == "ToolReported" and f"{each.body.model_call}-{each.body.position}" not in keys:
            found.append(f"{each.body.model_call}-{each.body.position} reported without effect")
    return found if calls else [*found, "no call was made"]


def _wrong_with_call(
    run: list[Seen], chain: list[Seen], opened: list[int], advanced_at: int, asked: str, position: int
) -> str:
    def of_call(each: Seen) -> bool:
        return bool(each.body.model_call == asked and each.body.position == position)

    def generation(offset: int) -> int:
        return sum(mark < offset for mark in opened)

    promised = [each for each in chain if each.type == "ToolDispatchStarted" and of_call(each)]
    if len(promised) != 1:
        return f"{len(promised)} promises"
    settled = [each for each in chain if each.type == "ToolSettled" and of_call(each)]
    reports = [each for each in run if each.type == "ToolReported" and of_call(each)]
    if len({each.id for each in reports}) > 1:
        return "reported twice"
    closing = min([*settled, *reports], key=lambda each: each.offset, default=None)
    if closing is None or closing.offset > advanced_at:
        return "open when the turn advanced"
    if closing.type == "ToolReported":
        name = promised[0].body.tool
        allowed = "failed" if name == "fails" else "succeeded"
        return "" if closing.body.outcome == allowed else f"{name} {closing.body.outcome}"
    if closing.body.outcome != "interrupted" or generation(closing.offset) <= generation(promised[0].offset):
        return f"{closing.body.outcome} in generation {generation(closing.offset)}"
    return ""
