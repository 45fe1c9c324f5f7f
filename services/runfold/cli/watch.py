"""`runfold watch`: follow a run as it goes on, the model's text while it is written."""

import argparse
import sys
from collections.abc import Callable
from typing import Any

from runfold.cli.gateway_client import GatewayClient, Seen
from runfold.cli.terminal import EXIT_STATUS, clock, safe, say, say_json, short
from runfold.core.live_text import LiveText
from runfold.events.types import ModelTextDelta
from runfold.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_id", metavar="RUN")
    parser.add_argument("--json", action="store_true", help="one JSON object a line: every event, and the text between")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    client = GatewayClient(settings)
    screen = Screen(arguments.run_id)
    for seen in client.events(arguments.run_id):
        if arguments.json:
            say_json({"event": seen.event, **seen.data})
        else:
            screen.take(seen)
    completion = client.completion(arguments.run_id)
    if not arguments.json:
        screen.end_line()
        say(
            f"the run ended as {completion['status']}"
            + (f": {short(completion['reason'])}" if completion["reason"] else "")
        )
    return EXIT_STATUS.get(completion["status"], 1)


class Screen:
    """Lines about what happens, and between them the text as it grows."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._live = LiveText()
        self._shown = ""  # of the text of the model call that is written now
        self._is_open = False  # the last line is text without an end
        self._tools: dict[tuple[str, int], str] = {}
        self._approvals: dict[str, str] = {}

    def take(self, seen: Seen) -> None:
        if seen.event == "text":
            self._live.take_delta(ModelTextDelta(**seen.data))
            self._grow()
            return
        data = seen.data.get("data")
        if seen.event == "output" or data is None or seen.data["taken"] == "without effect":
            return
        if seen.event == "ModelCallStarted":
            self._live = LiveText(model_call=seen.data["event_id"])
            self._shown = ""
        said = LINES.get(seen.event)
        text = said(self, data, seen.data["event_id"]) if said is not None else ""
        if text:
            self.end_line()
            say(f"{clock(seen.data['at_ms'])}  {text}")

    def _grow(self) -> None:
        """Write what is new of the text; all of it where it is another one."""
        text = self._live.text
        if not text.startswith(self._shown):
            self.end_line()
            self._shown = ""
        sys.stdout.write(safe(text[len(self._shown) :]))
        sys.stdout.flush()
        self._is_open = self._is_open or text != self._shown
        self._shown = text

    def end_line(self) -> None:
        if self._is_open:
            say()
        self._is_open = False

    # ---- one line an event

    def requested(self, data: dict[str, Any], event_id: str) -> str:
        return f"asked for: {short(data['input'])}"

    def called(self, data: dict[str, Any], event_id: str) -> str:
        again = f" (attempt {data['attempt']})" if data["attempt"] > 1 else ""
        return f"turn {data['turn']}: the model is called{again}"

    def replied(self, data: dict[str, Any], event_id: str) -> str:
        for position, item in enumerate(item for item in data["items"] if item["kind"] == "call"):
            self._tools[data["model_call"], position] = f"{item['name']}({short(item['arguments'], 100)})"
        text = "".join(item["text"] for item in data["items"] if item["kind"] in ("text", "refusal"))
        if data["model_call"] == self._live.model_call and text and text != self._shown:
            self._live.model_call = ""
            self.end_line()
            say(safe(text))
        return ""

    def failed(self, data: dict[str, Any], event_id: str) -> str:
        return f"the model call failed: {data['kind']}: {short(data['message'])}"

    def approval(self, data: dict[str, Any], event_id: str) -> str:
        self._approvals[event_id] = self._tool(data)
        why = f" ({safe(data['reason'])})" if data["reason"] else ""
        return f"waits for a yes to {self._tool(data)}{why}: runfold approve {self._run_id} {event_id}"

    def decided(self, data: dict[str, Any], event_id: str) -> str:
        word = "approved" if data["approved"] else "denied"
        return f"{self._approvals.get(data['approval'], 'a call')} is {word} by {safe(data['sender']) or 'somebody'}"

    def started(self, data: dict[str, Any], event_id: str) -> str:
        return f"{self._tool(data)} starts"

    def reported(self, data: dict[str, Any], event_id: str) -> str:
        return f"{self._tool(data)} {data['outcome']}: {short(data['output'])}"

    def settled(self, data: dict[str, Any], event_id: str) -> str:
        return f"{self._tool(data)} is closed as {data['outcome']}: {short(data['message'])}"

    def answered(self, data: dict[str, Any], event_id: str) -> str:
        return f"{self._tool(data)} is answered by {safe(data['sender']) or 'somebody'}: {short(data['text'])}"

    def child(self, data: dict[str, Any], event_id: str) -> str:
        return f"the task {safe(data['child'])} ended as {data['status']}"

    def message(self, data: dict[str, Any], event_id: str) -> str:
        return f"{safe(data['sender']) or 'somebody'} says: {short(data['text'])}"

    def _tool(self, data: dict[str, Any]) -> str:
        return self._tools.get((data["model_call"], data["position"]), "a call")


def _said(text: str) -> Callable[[Screen, dict[str, Any], str], str]:
    """A line that needs no more than who said so."""
    return lambda screen, data, event_id: f"{text}{' by ' + safe(data['sender']) if data.get('sender') else ''}"


LINES: dict[str, Callable[[Screen, dict[str, Any], str], str]] = {
    "RunRequested": Screen.requested,
    "ModelCallStarted": Screen.called,
    "ModelReplied": Screen.replied,
    "ModelFailed": Screen.failed,
    "ApprovalRequired": Screen.approval,
    "ApprovalDecided": Screen.decided,
    "ToolDispatchStarted": Screen.started,
    "ToolReported": Screen.reported,
    "ToolSettled": Screen.settled,
    "QuestionAnswered": Screen.answered,
    "ChildCompleted": Screen.child,
    "MessageReceived": Screen.message,
    "CancelRequested": _said("a cancel is asked for"),
    "PauseRequested": _said("paused"),
    "ResumeRequested": _said("resumed"),
    "CloseRequested": _said("closed"),
    "RunParked": lambda screen, data, event_id: f"set aside: {short(data['reason'])}",
    "RunFailed": lambda screen, data, event_id: f"failed: {data['kind']}: {short(data['message'])}",
}
