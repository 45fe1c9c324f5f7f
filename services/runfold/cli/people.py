"""What people tell a run: `runfold message`, `answer`, `approve`, `deny`, `cancel`, `pause`, `resume`, `close`."""

import argparse
import getpass
import hashlib
import sys
from collections.abc import Callable
from typing import Any

from runfold.cli.gateway_client import GatewayClient, run_path
from runfold.cli.terminal import safe, say, say_json, short
from runfold.ports import Permanent
from runfold.settings import Settings

WORDS = {
    "message": "say something to a run", "answer": "answer a call that asks a person", "approve": "say yes to a call",
    "deny": "say no to a call", "cancel": "stop a run at the next boundary", "pause": "let a run start nothing new",
    "resume": "let a paused run go on", "close": "end an interactive run once it has answered",
}  # fmt: skip
Body = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser, word: str) -> None:
    parser.add_argument("run_id", metavar="RUN")
    if word in ("message", "answer"):
        parser.add_argument("text", metavar="TEXT", help="- reads standard input")
    if word == "answer":
        parser.add_argument("--call", metavar="MODEL_CALL/POSITION", help="which question, if several are open")
    if word in ("approve", "deny"):
        parser.add_argument("approval", metavar="APPROVAL", nargs="?", help="left out: those that are open are shown")
    if word in ("approve", "deny", "cancel"):
        parser.add_argument("--reason", default="")
    parser.add_argument("--command-id", help="the same id twice has one effect and one answer")
    parser.add_argument("--sender", default=_user(), help="who says so (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.set_defaults(word=word)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # nobody has this user id
        return ""


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    client = GatewayClient(settings)
    common = {"sender": arguments.sender}
    if arguments.command_id is not None:
        common["command_id"] = arguments.command_id
    body = BODIES.get(arguments.word, _nothing)(client, arguments)
    accepted = client.post(run_path(arguments.run_id, arguments.word), {**common, **body})
    if arguments.json:
        say_json(accepted)
    else:
        say(f"accepted; the run is {accepted['status']}")
    return 0


def _nothing(client: GatewayClient, arguments: argparse.Namespace) -> Body:
    return {}


def _text(arguments: argparse.Namespace) -> str:
    return sys.stdin.read() if arguments.text == "-" else str(arguments.text)


def _message(client: GatewayClient, arguments: argparse.Namespace) -> Body:
    return {"text": _text(arguments)}


def _answer(client: GatewayClient, arguments: argparse.Namespace) -> Body:
    if arguments.call is not None:
        model_call, _, position = str(arguments.call).rpartition("/")
        if not model_call or not position.isdecimal():
            raise Permanent("--call is MODEL_CALL/POSITION, as `runfold show` prints it")
        return {"model_call": model_call, "position": int(position), "text": _text(arguments)}
    view = client.get(run_path(arguments.run_id))
    asking = [call for call in view["open_calls"] if call["waits_for"] == "person"]
    if len(asking) != 1:
        found = ", ".join(f"{call['model_call']}/{call['position']}" for call in asking) or "none"
        raise Permanent(f"name the question with --call; open are: {found}")
    return {"model_call": asking[0]["model_call"], "position": asking[0]["position"], "text": _text(arguments)}


def _decision(client: GatewayClient, arguments: argparse.Namespace) -> Body:
    """Of one approval: named, or shown and confirmed. The digest goes along: what runs is what was shown."""
    view = client.get(run_path(arguments.run_id))
    for each in view["open_approvals"]:
        if each["approval"] == arguments.approval or (arguments.approval is None and _confirmed(arguments.word, each)):
            return {
                "approval": each["approval"],
                "arguments_sha256": each["arguments_sha256"],
                "reason": arguments.reason,
            }
    if arguments.approval is None:
        raise Permanent("nothing was decided: name an approval" if view["open_approvals"] else "no approval is open")
    return {**_closed_approval(client, arguments), "reason": arguments.reason}


def _closed_approval(client: GatewayClient, arguments: argparse.Namespace) -> Body:
    """One that is not open any more: the gateway says what became of it."""
    for entry in client.get(run_path(arguments.run_id, "transcript"))["entries"]:
        for call in entry["calls"]:
            if call["approval"] == arguments.approval:
                digest = hashlib.sha256(call["arguments"].encode()).hexdigest()
                return {"approval": arguments.approval, "arguments_sha256": digest}
    raise Permanent(f"this run has no approval {arguments.approval}")


def _confirmed(word: str, approval: dict[str, Any]) -> bool:
    """Show one and ask; where nobody sits at the terminal the answer is no."""
    reason = f"\n    {safe(approval['reason'])}" if approval["reason"] else ""
    say(f"{safe(approval['tool'])}({short(approval['arguments'], 2_000)}){reason}\n    {approval['approval']}")
    if not sys.stdin.isatty():
        return False
    sys.stdout.write(f"{word}? [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _reason(client: GatewayClient, arguments: argparse.Namespace) -> Body:
    return {"reason": arguments.reason}


BODIES: dict[str, Callable[[GatewayClient, argparse.Namespace], Body]] = {
    "message": _message,
    "answer": _answer,
    "approve": _decision,
    "deny": _decision,
    "cancel": _reason,
}
