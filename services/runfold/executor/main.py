"""The executor service: `runfold executor`."""

import gc
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

from runfold.adapters.agents import Agents, load_agents, load_tools
from runfold.adapters.blobs import DirectoryBlobs
from runfold.adapters.clock import SystemClock
from runfold.adapters.inline_tools import InlineTools
from runfold.adapters.kafka import KafkaOutbox, KafkaRunLog
from runfold.adapters.openai_chat import ChatModel, ChatOptions
from runfold.adapters.processes import ProcessSettings, ProcessTools, ShowOfRun, isolation
from runfold.adapters.toolbox import Tool, Toolbox
from runfold.events.codec import Codec
from runfold.events.envelope import HeaderWriter
from runfold.events.types import ToolOutputChunk
from runfold.executor.build import build_executor
from runfold.executor.loop import Executor
from runfold.executor.settings import ExecutorSettings
from runfold.installation import codec_of, topics_of
from runfold.ports import Blobs, Model, Outbox
from runfold.settings import Settings

log = logging.getLogger("runfold.executor")
COLLECT_AT = (100_000, 50, 100)  # new objects; and how often each older generation is left out


def kafka_executor(
    settings: Settings,
    *,
    toolbox: Toolbox,
    agents: Agents,
    model: Model,
    blobs: Blobs,
    bounds: ExecutorSettings | None = None,
    tell: Callable[[str], None] = log.warning,
    closing: ExitStack | None = None,
) -> Executor:
    """An executor on Kafka. Creates missing topics; raises Permanent if what is there does not fit.

    `closing` gets what is to be closed after the executor.
    """
    names = topics_of(settings)
    codec = codec_of(settings, names)
    outbox = KafkaOutbox(settings.bootstrap_servers, names, client=settings.kafka_client)
    bounds = bounds or ExecutorSettings(name=settings.executor_name)
    inline = InlineTools(toolbox, blobs, bounds.name)
    claimed = _claimed_tools(settings, toolbox, blobs, bounds.name, tell, _show_output(outbox, codec))
    if closing is not None:
        closes = [outbox.close, inline.close, *(tools.close for tools in claimed.values())]
        for close in closes:  # the last one first: what tools still say goes out, too
            closing.callback(close)
    return build_executor(
        log=KafkaRunLog(
            settings.bootstrap_servers,
            names,
            group=f"{settings.topic_prefix}.executor",
            name=bounds.name,
            client=settings.kafka_client,
            outbox=outbox,
        ),
        outbox=outbox,
        clock=SystemClock(),
        codec=codec,
        catalog=agents,
        model=model,
        tools={"inline": inline},
        claimed={**claimed},
        settings=bounds,
        topic=names.events,
        tell=tell,
    )


def _claimed_tools(
    settings: Settings, toolbox: Toolbox, blobs: Blobs, name: str, tell: Callable[[str], None], show: ShowOfRun
) -> dict[str, ProcessTools]:
    """The tools of this deployment that run in processes; a deployment without any needs no spool."""
    if all(tool.process is None for tool in toolbox.tools.values()):
        return {}
    bounds = _process_settings(settings, name)
    return {"process": ProcessTools(toolbox, blobs, bounds, environ=os.environ, show=show, tell=tell)}


def _is_contained(settings: Settings, tools: list[Tool]) -> bool:
    return (
        any(tool.process is not None for tool in tools) and isolation(_process_settings(settings, "")).namespaces != ""
    )


def _process_settings(settings: Settings, name: str) -> ProcessSettings:
    return ProcessSettings(name=name, spool=settings.spool, isolation=settings.isolation)


def _show_output(outbox: Outbox, codec: Codec) -> ShowOfRun:
    """Publishes what running tools print, for eyes only."""
    headers = HeaderWriter("/runfold/executor")

    def show(run_id: str, dispatch: str, nonce: str, stream: str, offset: int, text: str) -> None:
        chunk = ToolOutputChunk(dispatch=dispatch, nonce=nonce, stream=stream, offset=offset, text=text)
        stamped = headers.fact("ToolOutputChunk", f"{dispatch}-{stream}-{offset}", time.time_ns() // 1_000_000)
        outbox.stream(run_id, codec.encode(chunk), stamped)

    return show


def keep_collector_out() -> None:
    """Call once what a process needs is loaded."""
    # Nearly everything the loop makes is freed by its reference count. Looking for cycles among the states of all active
    # runs, at every 700 new objects, was a fifth of the loop's time with 128 runs (measured).
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AT)


def serve(executor: Executor, stop: threading.Event) -> None:
    """Tick until asked to stop; leave the group in good order, whatever happens."""
    keep_collector_out()
    executor.open()
    try:
        while not stop.is_set():
            executor.step()
    finally:
        executor.close()


def run(settings: Settings, stop: threading.Event) -> None:
    """Carry runs until asked to stop. Raises Permanent when that cannot work."""
    blobs = DirectoryBlobs(settings.blobs)
    blobs.sweep()
    tools = [tool for path in settings.tools for tool in load_tools(path)]
    toolbox = Toolbox(tools, is_contained=_is_contained(settings, tools))
    agents = Agents(load_agents(settings.agents) if settings.agents is not None else [], toolbox)
    options = ChatOptions(
        base_url=settings.model_base_url, api_key=settings.model_api_key, stream=settings.model_stream
    )
    with ExitStack() as closing:
        model = ChatModel(options, blobs)
        closing.callback(model.close)
        executor = kafka_executor(settings, toolbox=toolbox, agents=agents, model=model, blobs=blobs, closing=closing)
        log.info(
            "executor %s on %s, topics %s.*", executor.settings.name, settings.bootstrap_servers, settings.topic_prefix
        )
        serve(executor, stop)
