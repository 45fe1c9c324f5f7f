"""The recorded runs of `../shared/cases` as plain data. Imports nothing of Runfold: it is the other side of a comparison.

A run is a list of items in the order in which a model saw or said them:

    {"role": "system" | "user", "text": ...}
    {"role": "assistant", "text": ..., "calls": [{"id": ..., "name": ..., "arguments": ...}], "finish": ... or None}
    {"role": "tool", "output": ...}     one for each call, in call order

Reasoning is left out. Results are matched to calls by position: ids repeat in these recordings.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHARED = Path(__file__).parents[2].parent / "shared"
CASES = SHARED / "cases"
Item = dict[str, Any]

# What cases/README.md says of each file: calls of each run, or of all runs together where it tells only the sum.
CALLS: dict[str, int | list[int]] = {
    "tau-bench/airline-runs-000-059.json": 361,
    "nemo-gym/anyterminal_agent__example_rollouts_hermes.jsonl": [6, 13, 17, 16, 90],
    "nemo-gym/finance_sec_search__example_rollouts.jsonl": [4, 5, 6, 10, 10],
    "nemo-gym/google_search__example_rollouts.jsonl": [0, 2, 0, 2, 1],
    "nemo-gym/workplace_assistant__example_rollouts.jsonl": [1, 1, 2, 2, 2],
    "swe-agent/function_calling_simple.traj.json": [5],
    "swe-agent/marshmallow-1867_function_calling.traj.json": [11],
    "openhands/multi_swe_bench_example_output.jsonl": [23],
}


@dataclass(frozen=True)
class Recording:
    """One recorded run."""

    name: str
    file: str  # from the folder of the cases
    items: list[Item]
    interactive: bool = False

    @property
    def instructions(self) -> str:
        return str(self.items[0]["text"]) if self.items[0]["role"] == "system" else ""

    @property
    def messages(self) -> list[str]:
        """What people said; the first one starts the run."""
        return [item["text"] for item in self.items if item["role"] == "user"]

    @property
    def replies(self) -> list[Item]:
        return [item for item in self.items if item["role"] == "assistant"]

    @property
    def calls(self) -> int:
        return sum(len(reply["calls"]) for reply in self.replies)

    @property
    def tools(self) -> list[str]:
        return sorted({call["name"] for reply in self.replies for call in reply["calls"]})

    @property
    def is_answered(self) -> bool:
        """Whether its last item is an answer: otherwise one more model call follows, which nobody recorded."""
        last = self.items[-1]
        return bool(last["role"] == "assistant" and not last["calls"])

    @property
    def batches(self) -> list[list[str]]:
        """The outputs of each reply's calls, for the replies that have calls."""
        found: list[list[str]] = []
        for item in self.items:
            if item["role"] == "assistant" and item["calls"]:
                found.append([])
            elif item["role"] == "tool":
                found[-1].append(item["output"])
        return found


class NotRecorded(Exception):
    """A recording is not what it is said to be."""


def recordings() -> list[Recording]:
    """All 83, in an order that never changes. Raises NotRecorded, and OSError for what is not there."""
    found = [*_tau_bench(), *_nemo_gym(), *_swe_agent(), *_openhands()]
    for recording in found:
        _check(recording)
    return found


def call_problems(counted: dict[str, list[int]]) -> list[str]:
    """Where the calls of each file's runs, as counted, are not those of cases/README.md."""
    problems = []
    for file, wanted in CALLS.items():
        found = counted.get(file, [])
        if (sum(found) if isinstance(wanted, int) else found) != wanted:
            problems.append(f"{file}: {found} calls, recorded are {wanted}")
    return problems


def _check(recording: Recording) -> None:
    """Every call has its result, and the first thing after the instructions is a user's."""
    roles = [item["role"] for item in recording.items if item["role"] != "system"]
    sizes = [len(reply["calls"]) for reply in recording.replies if reply["calls"]]
    if roles[0] != "user" or [len(batch) for batch in recording.batches] != sizes:
        raise NotRecorded(f"{recording.name}: calls {sizes}, results {[len(batch) for batch in recording.batches]}")


def _tau_bench() -> Iterator[Recording]:
    file = "tau-bench/airline-runs-000-059.json"
    for number, run in enumerate(json.loads((CASES / file).read_text(encoding="utf-8"))):
        yield Recording(f"tau-bench-{number:02}", file, _chat(run["traj"]), interactive=True)


def _swe_agent() -> Iterator[Recording]:
    for path in sorted((CASES / "swe-agent").glob("*.traj.json")):
        history = json.loads(path.read_text(encoding="utf-8"))["history"]
        yield Recording(f"swe-agent-{path.name.removesuffix('.traj.json')}", f"swe-agent/{path.name}", _chat(history))


def _chat(messages: list[dict[str, Any]]) -> list[Item]:
    items: list[Item] = []
    for message in messages:
        text = message["content"] or ""
        match message["role"]:
            case "assistant":
                items.append(_assistant(text, message.get("tool_calls") or []))
            case "tool":
                items.append({"role": "tool", "output": text})
            case role:
                items.append({"role": role, "text": text})
    return items


def _assistant(text: str, calls: list[dict[str, Any]], finish: str | None = None) -> Item:
    made = [
        {"id": call["id"], "name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        for call in calls
    ]
    return {"role": "assistant", "text": text, "calls": made, "finish": finish}


def _nemo_gym() -> Iterator[Recording]:
    for path in sorted((CASES / "nemo-gym").glob("*.jsonl")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
            run = json.loads(line)
            asked = run["responses_create_params"]
            items: list[Item] = []
            if asked.get("instructions"):
                items.append({"role": "system", "text": asked["instructions"]})
            if isinstance(asked["input"], str):
                items.append({"role": "user", "text": asked["input"]})
            else:
                items += [{"role": message["role"], "text": message["content"]} for message in asked["input"]]
            items += _responses(run["response"]["output"])
            yield Recording(f"nemo-gym-{path.name.partition('__')[0]}-{number}", f"nemo-gym/{path.name}", items)


def _responses(output: list[dict[str, Any]]) -> list[Item]:
    """One reply for each run of items up to the next output."""
    items: list[Item] = []
    reply: Item | None = None
    for item in output:
        if item["type"] == "function_call_output":
            items.append({"role": "tool", "output": item["output"]})
            reply = None
            continue
        if reply is None:
            reply = _assistant("", [])
            items.append(reply)
        if item["type"] == "message":
            reply["text"] += "".join(part["text"] for part in item["content"])
        elif item["type"] == "function_call":
            reply["calls"].append({"id": item["call_id"], "name": item["name"], "arguments": item["arguments"]})
    return items


def _openhands() -> Iterator[Recording]:
    file = "openhands/multi_swe_bench_example_output.jsonl"
    history = json.loads((CASES / file).read_text(encoding="utf-8").splitlines()[0])["history"]
    items: list[Item] = []
    for event in history:
        metadata = event.get("tool_call_metadata")
        if metadata is None:  # a recall and what it found are not part of the conversation
            role = {"system": "system", "message": "user"}.get(event.get("action"))
            if role is not None:
                items.append({"role": role, "text": event["args"]["content"]})
        elif "action" in event:
            choice = metadata["model_response"]["choices"][0]
            message = choice["message"]
            items.append(_assistant(message["content"] or "", message["tool_calls"], choice["finish_reason"]))
        else:
            items.append({"role": "tool", "output": event["content"]})
    items.append({"role": "tool", "output": ""})  # its last call, finish, ended the recording and has no result there
    yield Recording("openhands", file, items)
