"""`runfold`: the services, and what people do with them.

Exit status: 0 success or completed, 1 failure, 2 usage, 3 cancelled, 4 timed out or over a limit, 5 rejected.
"""

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from runfold.cli import people, show, submit, watch
from runfold.cli.gateway_client import GatewayRefused
from runfold.cli.terminal import safe
from runfold.ports import Permanent, Transient
from runfold.settings import Settings

DEV_FOLDER = Path.home() / ".local" / "share" / "runfold" / "dev"
Command = Callable[[argparse.Namespace, Settings], int]


def _until_stopped(service: Callable[[Settings, threading.Event], None], settings: Settings) -> int:
    """Run a service until SIGTERM or SIGINT; a second signal ends it at once."""
    stop = threading.Event()

    def asked(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    signal.signal(signal.SIGTERM, asked)
    signal.signal(signal.SIGINT, asked)
    service(settings, stop)
    return 0


def _executor(arguments: argparse.Namespace, settings: Settings) -> int:
    from runfold.executor.main import run  # each command loads only what it needs

    return _until_stopped(run, settings)


def _intake(arguments: argparse.Namespace, settings: Settings) -> int:
    from runfold.intake.main import run

    return _until_stopped(run, settings)


def _gateway(arguments: argparse.Namespace, settings: Settings) -> int:
    from runfold.gateway.main import run

    return _until_stopped(run, settings)


def _dev_model(arguments: argparse.Namespace, settings: Settings) -> int:
    from runfold.dev.model_server import serve

    return serve(Path(arguments.script), arguments.port)


def _bench_executor(arguments: argparse.Namespace, settings: Settings) -> int:
    from runfold.dev.bench_executor import run

    return _until_stopped(run, settings)


def _kafka(arguments: argparse.Namespace, settings: Settings) -> int:
    from runfold.dev.embedded_kafka import main

    return main()


def _demo(arguments: argparse.Namespace, settings: Settings) -> int:
    from runfold.dev.demo import demo

    return demo(os.environ.get("KAFKA_BOOTSTRAP_SERVERS"))


def _doctor(arguments: argparse.Namespace, settings: Settings) -> int:
    from runfold.cli.doctor import doctor

    return doctor(settings, accept_loss=arguments.accept_loss)


def _dev(arguments: argparse.Namespace, settings: Settings) -> int:
    from runfold.dev.keep import keep

    return keep(dict(os.environ), arguments.data, arguments.kafka_port)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="runfold", description="Runs LLM agents durably on Kafka.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Command, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        return added

    command("executor", _executor, "carry runs (any number of these)")
    command("intake", _intake, "turn requests into runs (any number of these)")
    command("gateway", _gateway, "serve people and programs over HTTP (any number of these)")
    submit.add_arguments(command("submit", submit.run, "ask for a task to be done"))
    watch.add_arguments(command("watch", watch.run, "follow a run as it goes on"))
    show.add_arguments(command("show", show.run, "a run as it stands, and whom it waits for"))
    for word, text in people.WORDS.items():
        people.add_arguments(command(word, people.run, text), word)
    dev = command("dev", _dev, "the whole stack on this machine, until Ctrl-C")
    dev.add_argument("--data", type=Path, default=DEV_FOLDER, help="kept from one start to the next (%(default)s)")
    dev.add_argument("--kafka-port", type=int, default=0, help="of the embedded Kafka; 0 takes a free one")
    command("kafka", _kafka, "run a broker of one node, for development")
    command("demo", _demo, "three tasks from request to completion")
    command("bench-executor", _bench_executor, "the executor that scripts/bench measures")
    dev_model = command("dev-model", _dev_model, "a scripted model behind the Chat Completions API")
    dev_model.add_argument("--script", required=True, help="JSON file: scenario name to replies")
    dev_model.add_argument("--port", type=int, default=0, help="0 takes a free one")
    doctor = command("doctor", _doctor, "check that Kafka keeps what it acknowledges, and that the topics fit")
    doctor.add_argument("--accept-loss", action="store_true", help="end runs whose beginning is gone as failed")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # one line a model call is the log's business
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    try:
        status: int = arguments.run(arguments, Settings.read(os.environ))
    except (Permanent, Transient) as error:
        sys.stderr.write(f"runfold: {error}\n")
        return 1
    except GatewayRefused as error:
        sys.stderr.write(f"runfold: refused: {safe(str(error))}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


if __name__ == "__main__":
    sys.exit(main())
