"""The commands of people, as processes, against a real gateway: what they print, and the status they exit with."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.gateway_place import PATIENCE_S, TOKEN, Client, Place, place

pytestmark = pytest.mark.kafka
STORY = "One sheep jumped over the fence. " * 30
ASKS = {"name": "ask_person", "arguments": {"question": "Which colour?"}}
PAYS = {"name": "pay", "arguments": {"amount": 5}}
SCRIPT: dict[str, Any] = {
    "short": [
        {"calls": [{"name": "echo", "arguments": {"text": "two \x1b[31mwords"}}]},
        {"text": "all \x1b]0;is\x07 well"},
    ],
    "slow": [{"text": STORY, "fault": {"trickle_ms": 30}}],
    "broken": [{"text": "x", "fault": {"status": 400, "times": None}}],
    "limited": [{"text": "x" * 100, "fault": {"trickle_ms": 300}}],
    "people": [{"calls": [ASKS, PAYS]}, {"text": "done"}],
    "asks": [{"calls": [ASKS]}, {"text": "noted"}],
    "talks": [{"text": "first"}, {"text": "second"}],
    "delegates": [{"calls": [{"name": "delegate", "arguments": {"task": "go", "agent": "short"}}]}, {"text": "done"}],
}


class Cli:
    """`runfold` at a terminal that nobody sits at."""

    def __init__(self, port: int) -> None:
        self._environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "RUNFOLD_GATEWAY_URL": f"http://127.0.0.1:{port}",
            "RUNFOLD_GATEWAY_TOKEN": TOKEN, "USER": "ana", "LOGNAME": "ana",
        }  # fmt: skip

    def __call__(self, *words: str, given: str = "", **more: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "runfold.cli.main", *words], input=given, capture_output=True, text=True,
            env={**self._environment, **more}, timeout=PATIENCE_S, check=False,
        )  # fmt: skip


@pytest.fixture(scope="module")
def here(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(kafka_bootstrap, tmp_path_factory.mktemp("cli"), SCRIPT, "intake", "executor") as made:
        yield made


@pytest.fixture(scope="module")
def client(here: Place) -> Client:
    return here.gateway()


@pytest.fixture(scope="module")
def cli(client: Client) -> Cli:
    return Cli(client.port)


def test_a_task_is_submitted_and_its_result_printed(cli: Cli, client: Client) -> None:
    """The result alone on standard output, nothing in it that a terminal would obey; labels and limits arrive."""
    done = cli(
        "submit", "short", "-", "--wait", "--id", "cli-1", "--label", "team=red", "--limit", "tokens=5000", given="go"
    )
    assert (done.returncode, done.stdout) == (0, "all \N{REPLACEMENT CHARACTER}]0;is\N{REPLACEMENT CHARACTER} well\n")
    assert "cli-1" in done.stderr
    assert client.run("cli-1")["labels"] == {"team": "red"}
    again = cli("submit", "short", "go", "--id", "cli-1", "--label", "team=red", "--limit", "tokens=5000")
    assert (again.returncode, again.stdout) == (0, "cli-1\n")
    other = cli("submit", "short", "another", "--id", "cli-1")
    assert (other.returncode, "another body" in other.stderr) == (1, True)


def test_json_is_one_object_a_line(cli: Cli) -> None:
    """For every command that answers something."""
    done = cli("submit", "short", "go", "--wait", "--json")
    submitted, completion = map(json.loads, done.stdout.splitlines())
    assert (submitted["task_id"], completion["status"]) == (completion["task_id"], "completed")
    run_id = submitted["run_id"]
    shown = [json.loads(line) for line in cli("show", run_id, "--json").stdout.splitlines()]
    assert [line["kind"] for line in shown].count("entry") == 3
    assert shown[0]["run"]["run_id"] == run_id
    watched = [json.loads(line) for line in cli("watch", run_id, "--json").stdout.splitlines()]
    assert (watched[0]["event"], watched[-1]["event"]) == ("RunRequested", "TaskReported")


STATUSES = [
    ("short", (), 0), ("broken", (), 1), ("limited", ("--limit", "turn_ms=500"), 4), ("nobody", (), 5),
    ("short", ("--limit", "speed=1"), 5), ("short", ("--limit", "tokens=0"), 5), ("short", ("--limit", "tokens=x"), 2),
]  # fmt: skip


@pytest.mark.requirement("R30")
@pytest.mark.parametrize(("agent", "more", "status"), STATUSES)
def test_the_exit_status_says_how_the_task_ended(cli: Cli, agent: str, more: tuple[str, ...], status: int) -> None:
    """Completed, failed, timed out, rejected by the executor or at the door, misused; the reason on standard error."""
    done = cli("submit", agent, "go", "--wait", *more)
    assert done.returncode == status, done
    assert "Traceback" not in done.stderr
    assert status == 0 or done.stderr.count("\n") >= 1


@pytest.mark.requirement("R29")
def test_watching_shows_the_text_once(cli: Cli, client: Client) -> None:
    """While it is written, and not again with the reply; the end of the run is the end of watching."""
    run_id = client.submit("slow")
    done = cli("watch", run_id)
    assert (done.returncode, done.stdout.count("One sheep")) == (0, 30)
    assert done.stdout.splitlines()[-1] == "the run ended as completed"


@pytest.mark.requirement("R27")
def test_people_have_their_say(cli: Cli, client: Client) -> None:
    """show says whom a run waits for and how to help; answers and approvals do; watching tells of them."""
    run_id = client.submit("people")
    client.until(run_id, lambda view: len(view["open_calls"]) == 2 and view["open_approvals"], "both waits")
    client.until(run_id, lambda view: any(c["waits_for"] == "person" for c in view["open_calls"]), "the question")
    shown = cli("show", run_id).stdout
    approval = client.run(run_id)["open_approvals"][0]["approval"]
    assert f"runfold approve {run_id} {approval}" in shown
    assert "waits for a person's answer" in shown
    unsure = cli("approve", run_id)
    assert (unsure.returncode, 'pay({"amount": 5})' in unsure.stdout, "name an approval" in unsure.stderr) == (
        1,
        True,
        True,
    )
    assert cli("approve", run_id, approval, "--reason", "fine").stdout.startswith("accepted")
    late = cli("deny", run_id, approval, "--sender", "bob")
    assert (late.returncode, late.stderr) == (1, "runfold: refused: it was already approved by ana\n")
    assert cli("answer", run_id, "blue").returncode == 0
    client.ends(run_id)
    assert "already approved by ana" in cli("deny", run_id, approval).stderr
    watched = cli("watch", run_id).stdout
    assert "is approved by ana" in watched
    assert "is answered by ana: blue" in watched
    shown = cli("show", run_id).stdout
    assert "ask_person" in shown
    assert "approved by ana" in shown


def test_a_conversation_is_paused_resumed_and_closed(cli: Cli, client: Client) -> None:
    """The same command id twice is one command; what comes too late is refused in words."""
    run_id = cli("submit", "talks", "go", "--interactive").stdout.strip()
    client.until(run_id, lambda view: view["status"] == "waiting_message", "the first answer")
    assert cli("pause", run_id).stdout == "accepted; the run is paused\n"
    assert "paused already" in cli("pause", run_id).stderr
    first, again = (cli("message", run_id, "more", "--command-id", "m1", "--json") for _ in range(2))
    assert first.stdout == again.stdout
    assert cli("resume", run_id).returncode == 0
    client.until(run_id, lambda view: view["turn"] == 2 and view["status"] == "waiting_message", "the second answer")
    assert cli("close", run_id).returncode == 0
    client.ends(run_id)
    assert cli("message", run_id, "hello?").stderr == "runfold: refused: the run has ended as completed\n"


@pytest.mark.requirement("R27")
def test_a_cancelled_task_exits_with_three(cli: Cli, client: Client) -> None:
    """Whoever watches learns it, too."""
    run_id = client.submit("asks")
    client.until(run_id, lambda view: view["status"] == "waiting_answer", "the question")
    assert cli("cancel", run_id, "--reason", "enough").returncode == 0
    assert cli("watch", run_id).returncode == 3


@pytest.mark.requirement("R39")
def test_show_has_everything_about_a_run(cli: Cli, client: Client) -> None:
    """Phases, call and result in one row, children."""
    run_id = client.submit("delegates")
    client.ends(run_id)
    shown = cli("show", run_id).stdout
    child = client.run(run_id)["children"][0]["run_id"]
    assert f"child {child}: completed" in shown
    assert "delegate(" in shown
    assert "→ succeeded" in shown
    assert "turn 1  awaiting_tools" in shown
    shown = cli("show", child).stdout
    assert f"parent {run_id}" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    ("words", "more", "status", "said"),
    [
        (("show", "nobody"), {}, 1, "there is no run"), (("watch", "nobody"), {}, 1, "there is no run"),
        (("show", "x"), {"RUNFOLD_GATEWAY_TOKEN": "wrong"}, 1, "Authorization"),
        (("show", "x"), {"RUNFOLD_GATEWAY_URL": "http://127.0.0.1:9"}, 1, "start `runfold gateway`"),
        (("show", "x"), {"RUNFOLD_GATEWAY_URL": "nonsense"}, 1, "RUNFOLD_GATEWAY_URL"),
        (("submit", "short"), {}, 2, "required"), (("nothing",), {}, 2, "invalid choice"),
        (("submit", "short", "x", "--label", "team"), {}, 2, "NAME=VALUE"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_said_in_one_line(
    cli: Cli, words: tuple[str, ...], more: dict[str, str], status: int, said: str
) -> None:
    """With what to do about it; never a traceback."""
    done = cli(*words, **more)
    assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (status, True, False), done.stderr
