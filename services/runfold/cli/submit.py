"""`runfold submit`: ask for a task, and wait for its result if asked to."""

import argparse
import sys

from runfold.cli.gateway_client import GatewayClient, GatewayRefused
from runfold.cli.terminal import EXIT_STATUS, finished, say, say_json
from runfold.settings import Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("agent", help="name of a configured agent")
    parser.add_argument("input", help="what it is to do; - reads standard input")
    parser.add_argument("--id", help="task id: the same id with the same task starts nothing new")
    parser.add_argument("--wait", action="store_true", help="wait for the end, and print the result")
    parser.add_argument("--interactive", action="store_true", help="the run waits for messages after each answer")
    parser.add_argument(
        "--limit", action="append", default=[], metavar="NAME=VALUE", type=_limit, help="may be repeated"
    )
    parser.add_argument(
        "--label", action="append", default=[], metavar="NAME=VALUE", type=_pair, help="may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _limit(text: str) -> tuple[str, int]:
    name, value = _pair(text)
    try:
        return name, int(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{value!r} is no whole number") from error


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    client = GatewayClient(settings)
    task = {
        "agent": arguments.agent,
        "input": sys.stdin.read() if arguments.input == "-" else arguments.input,
        "interactive": arguments.interactive,
        "limits": dict(arguments.limit),
        "labels": dict(arguments.label),
    }
    if arguments.id is not None:
        task["task_id"] = arguments.id
    try:
        submitted = client.post("/tasks", task)
    except GatewayRefused as error:
        if error.status != 422:
            raise
        sys.stderr.write(f"runfold: rejected: {error}\n")
        return EXIT_STATUS["rejected"]
    if arguments.json:
        say_json(submitted)
    elif not arguments.wait:
        say(submitted["task_id"])
    else:
        sys.stderr.write(f"task {submitted['task_id']}\n")
    return finished(client.completion(submitted["run_id"]), as_json=arguments.json) if arguments.wait else 0
