"""`runfold show`: a run as it stands: its conversation with call and result in one row, its phases, whom it waits for."""

import argparse
from typing import Any

from runfold.cli.gateway_client import GatewayClient, run_path
from runfold.cli.terminal import clock, safe, say, say_json, short
from runfold.settings import Settings

WHOM = {
    "person": "a person's answer", "approval": "a person's approval", "child": "its own task", "time": "its time",
    "external": "whoever runs it to report", "tool": "the tool", "turn": "its turn",
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_id", metavar="RUN")
    parser.add_argument("--json", action="store_true", help="one JSON object a line: run, phases, entries")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    client = GatewayClient(settings)
    view = client.get(run_path(arguments.run_id))
    told = client.get(run_path(arguments.run_id, "transcript"))
    if arguments.json:
        say_json({"kind": "run", "run": view})
        for phase in told["phases"]:
            say_json({"kind": "phase", "phase": phase})
        for entry in told["entries"]:
            say_json({"kind": "entry", "entry": entry})
        return 0
    _head(view)
    for entry in told["entries"]:
        _entry(entry)
    _phases(told["phases"])
    _waits(view)
    for failure in told["failures"]:
        say(f"failed model call: {short(failure)}")
    for child in view["children"]:
        say(f"child {safe(child['run_id'])}: {child['status']}")
    return 0


def _head(view: dict[str, Any]) -> None:
    totals = view["totals"]
    say(f"{safe(view['run_id'])}: {view['status']}" + (f": {short(view['reason'], 500)}" if view["reason"] else ""))
    model = f" ({safe(view['model'])})" if view["model"] else ""
    say(
        f"agent {safe(view['agent']) or '(inline)'}{model}, phase {view['phase']}, turn {view['turn']}, "
        f"{totals['tool_calls']} tool calls ({totals['tool_errors']} errors), {totals['tokens']:,} tokens, "
        f"{totals['active_ms'] / 1000:.1f} s active"
    )
    if view["parent"]:
        say(f"parent {safe(view['parent'])}")
    say()


def _entry(entry: dict[str, Any]) -> None:
    who = safe(entry["sender"]) or "somebody" if entry["kind"] == "message" else f"turn {entry['turn']}"
    text = entry["text"] or entry["refusal"] or (f"[blob {entry['blob']}]" if entry["blob"] else "")
    say(f"{clock(entry['at_ms'])}  {who}: {safe(text)}")
    for call in entry["calls"]:
        _call(call)


def _call(call: dict[str, Any]) -> None:
    result = (
        f"waits for {WHOM[call['waits_for']]}"
        if call["outcome"] is None
        else f"{call['outcome']}: {short(call['output'])}"
    )
    took = ""
    if call["closed_at_ms"] and call["starts"]:
        took = f" [{(call['closed_at_ms'] - call['starts'][0]['at_ms']) / 1000:.1f} s]"
    cut = f" [cut: {call['output_bytes']:,} bytes in all]" if call["output_bytes"] else ""
    say(f"    {safe(call['tool'])}({short(call['arguments'], 120)}) → {result}{took}{cut}")
    if call["approved"] is not None:
        say(f"        {'approved' if call['approved'] else 'denied'} by {safe(call['decided_by'] or '') or 'somebody'}")
    if len(call["starts"]) > 1:
        say(f"        started {len(call['starts'])} times")
    if call["child"]:
        say(f"        task {safe(call['child'])}")
    for late in call["late_reports"]:
        say(f"        late report at {clock(late['at_ms'])}: {late['outcome']}: {short(late['output'])}")


def _phases(phases: list[dict[str, Any]]) -> None:
    say()
    for phase in phases:
        say(f"{clock(phase['at_ms'])}  turn {phase['turn']}  {phase['phase']}")


def _waits(view: dict[str, Any]) -> None:
    approvals = {(each["model_call"], each["position"]): each for each in view["open_approvals"]}
    run_id = safe(view["run_id"])
    for call in view["open_calls"]:
        say(f"{safe(call['tool'])}({short(call['arguments'], 120)}) waits for {WHOM[call['waits_for']]}")
        approval = approvals.get((call["model_call"], call["position"]))
        if approval is not None:
            reason = f": {safe(approval['reason'])}" if approval["reason"] else ""
            say(
                f"    until {clock(approval['expires_at_ms'])}{reason}; runfold approve {run_id} {approval['approval']}"
            )
        elif call["waits_for"] == "person":
            say(f"    runfold answer {run_id} TEXT --call {call['model_call']}/{call['position']}")
    for message in view["mailbox"]:
        say(f"a message of {safe(message['sender']) or 'somebody'} is not read yet")
