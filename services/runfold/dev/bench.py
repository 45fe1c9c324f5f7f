"""`scripts/bench`: what a turn costs, on real Kafka, with default settings, one executor, model in process.

    scripts/bench [--json] [--peers DIR] [--workload DIR]

`DIR/workload.py` is the workload that peers are measured on too, taken as it is; a run is from producing TaskRequested
to reading TaskCompleted. With --peers, `DIR/peers.sh` runs between three measurements of ours, in one call, and ratios
of medians are printed. After each measurement the log itself is checked: all events there, each dispatch before its
report. Also printed: CPU µs and bytes a turn, and the memory of an executor with 1,000 active runs.
"""

import argparse
import asyncio
import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

from runfold.adapters.topics import TopicNames, ensure_topics
from runfold.dev.bench_client import BenchClient
from runfold.dev.bench_log import checked_log
from runfold.dev.embedded_kafka import EmbeddedKafka
from runfold.dev.stack import Stack
from runfold.ports import Permanent

PARTITIONS = 4
ROUNDS = 3
RUNS_IN_MEMORY = 1_000
WARM_ROUNDS, WARM_RUNS = 50, 16


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench")
    parser.add_argument("--json", action="store_true", help="only JSON lines on standard output")
    parser.add_argument("--peers", type=Path, help="folder with workload.py and peers.sh")
    parser.add_argument("--workload", type=Path, help="folder with workload.py")
    parser.add_argument("--no-memory", action="store_true", help="leave the memory measurement out")
    options = parser.parse_args(argv)
    folder = options.workload or options.peers or Path(__file__).parents[4] / "shared" / "bench"
    if not (folder / "workload.py").is_file():
        sys.stderr.write(f"bench: there is no workload.py in {folder}; name its folder with --workload DIR\n")
        return 2
    sys.path.insert(0, str(folder))
    os.environ["BENCH_WORKLOAD"] = str(folder)
    ours: list[dict[str, Any]] = []
    peers: list[dict[str, Any]] = []
    with _kafka() as servers:
        for number in range(ROUNDS if options.peers else 1):
            if number and options.peers:
                peers += _peers(options.peers)
            ours.append(_measure(servers))
            _print(ours[-1])
        if not options.no_memory:
            _print(_memory(servers))
    for line in peers:
        _print(line)
    if peers:
        _print(_ratios(ours, peers))
    return 0


def _print(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _measure(servers: str) -> dict[str, Any]:
    """One pass of the workload on topics of its own."""
    import workload  # type: ignore[import-not-found]  # the peers' folder, put on the path by `main`

    with _stack(servers) as (stack, executor, names):
        said = io.StringIO()

        async def measured() -> None:
            client = BenchClient(servers, names, "bench")
            first = asyncio.ensure_future(client.run())
            while not (await asyncio.wait([first], timeout=1))[0]:
                if (problem := stack.failed()) is not None:
                    raise Permanent(f"{problem}; run it by hand to see why")
            with contextlib.redirect_stdout(said):
                await workload.measure("runfold", client.run)
            client.close()

        before = _cpu_s(executor)
        asyncio.run(measured())
        cpu_s = _cpu_s(executor) - before
    figures: dict[str, Any] = json.loads(said.getvalue())
    log = checked_log(servers, names)
    figures["cpu_us_per_turn"] = round(cpu_s / log.turns * 1e6)
    figures["bytes_per_turn"] = round(log.bytes / log.turns)
    figures["events_checked"] = log.events
    return figures


def _memory(servers: str) -> dict[str, Any]:
    """Resident memory of an executor with many active runs of 10 turns and 20 KB."""
    with _stack(servers, BENCH_LAST_TURN_WAITS="1") as (_, executor, names):
        asyncio.run(_fill(servers, names))
        return {"active_runs": RUNS_IN_MEMORY, "resident_mb": round(_resident_mb(executor), 1)}


@contextlib.contextmanager
def _stack(servers: str, **more: str) -> Iterator[tuple[Stack, int, TopicNames]]:
    """An intake and the executor that is measured (its process id), on topics of their own."""
    names = TopicNames(f"bench-{uuid4().hex[:8]}")
    ensure_topics(servers, names.prefix, run_partitions=PARTITIONS, task_partitions=PARTITIONS)
    environment = {
        "KAFKA_BOOTSTRAP_SERVERS": servers,
        "RUNFOLD_TOPIC_PREFIX": names.prefix,
        "RUNFOLD_RUN_PARTITIONS": str(PARTITIONS),
        **more,
    }
    with Stack(environment) as stack:
        stack.start("intake")
        yield stack, stack.start("bench-executor").pid, names


@contextlib.contextmanager
def _kafka() -> Iterator[str]:
    """The addresses in KAFKA_BOOTSTRAP_SERVERS, or of an embedded broker, as warm as one that has run for a while."""
    if servers := os.environ.get("KAFKA_BOOTSTRAP_SERVERS"):
        yield servers
        return
    with EmbeddedKafka() as kafka:
        with _stack(kafka.bootstrap_servers) as (_, _, names):
            asyncio.run(_warm(kafka.bootstrap_servers, names))
        yield kafka.bootstrap_servers


async def _warm(servers: str, names: TopicNames) -> None:
    """A broker's Java code is interpreted until it is compiled: its first minute is several times slower (measured)."""
    client = BenchClient(servers, names, "bench")
    for _ in range(WARM_ROUNDS):
        await client.run()  # alone: another path through the broker than many at once
        await asyncio.gather(*[client.run() for _ in range(WARM_RUNS)])
    client.close()


async def _fill(servers: str, names: TopicNames) -> None:
    """Start the runs, and wait until every one is in its last, waiting turn."""
    client = BenchClient(servers, names, "bench", text="x" * 10_000)
    tasks = [asyncio.create_task(client.run()) for _ in range(RUNS_IN_MEMORY)]
    for _ in range(600):
        await asyncio.sleep(1)
        if checked_log(servers, names).model_calls >= RUNS_IN_MEMORY * 11:
            break
    else:
        raise TimeoutError("the runs did not reach their last turn")
    for task in tasks:
        task.cancel()
    client.close()


def _peers(folder: Path) -> list[dict[str, Any]]:
    found = subprocess.run(["bash", str(folder / "peers.sh")], check=False, stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in found.stdout.splitlines() if line.startswith("{")]


def _ratios(ours: list[dict[str, Any]], peers: list[dict[str, Any]]) -> dict[str, Any]:
    """Ours against the best peer, each by its median."""

    def median(lines: list[dict[str, Any]], key: str) -> float:
        return float(statistics.median(line[key] for line in lines))

    names = {line["peer"] for line in peers}
    by_name = {name: [line for line in peers if line["peer"] == name] for name in names}
    ratios: dict[str, Any] = {"ratio_of": "medians against the best peer"}
    best = min(median(lines, "ms_per_turn") for lines in by_name.values())
    ratios["ms_per_turn"] = round(median(ours, "ms_per_turn") / best, 2)
    for key in ("turns_per_s_32", "turns_per_s_128"):
        best = max(median(lines, key) for lines in by_name.values())
        ratios[key] = round(median(ours, key) / best, 2)
    return ratios


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_mb(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
