"""Puts an executor together from its ports: the one place that knows how the parts of `executor/` fit."""

from collections.abc import Callable, Mapping

from runfold.core.steps import Catalog
from runfold.events.codec import Codec
from runfold.events.types import ModelTextDelta
from runfold.executor.claims import Claims
from runfold.executor.effects import Effects
from runfold.executor.loop import Executor
from runfold.executor.outward import Outward
from runfold.executor.quarantine import Quarantine
from runfold.executor.settings import ExecutorSettings
from runfold.executor.writer import Writer
from runfold.ports import ClaimedTools, Clock, Model, Outbox, RunLog, Tools


def build_executor(
    *,
    log: RunLog,
    outbox: Outbox,
    clock: Clock,
    codec: Codec,
    catalog: Catalog,
    model: Model,
    tools: Mapping[str, Tools],
    claimed: Mapping[str, ClaimedTools] | None = None,
    settings: ExecutorSettings,
    topic: str,
    tell: Callable[[str], None],
) -> Executor:
    """An executor that only waits for `open` and `step`. `tools` and `claimed` by class; `topic` names the log in quarantine."""
    writer = Writer(log=log, codec=codec, clock=clock, source=f"/runfold/executor/{settings.name}")

    def show(run_id: str, model_call: str, offset: int, text: str) -> None:
        delta = ModelTextDelta(model_call=model_call, offset=offset, text=text)
        outbox.stream(run_id, codec.encode(delta), writer.headers("ModelTextDelta", f"{model_call}-{offset}"))

    effects = Effects(
        writer=writer,
        model=model,
        tools=dict(tools),
        claims=Claims(writer, settings.name, dict(claimed or {})),
        show=show,
    )
    quarantine = Quarantine(outbox=outbox, codec=codec, topic=topic, headers=writer.headers)
    return Executor(
        log=log,
        codec=codec,
        clock=clock,
        catalog=catalog,
        writer=writer,
        effects=effects,
        outward=Outward(writer=writer, outbox=outbox),
        quarantine=quarantine,
        settings=settings,
        tell=tell,
    )
