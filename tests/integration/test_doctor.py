"""`runfold doctor` on a real Kafka: what it finds, and what becomes of runs whose beginning is gone."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource  # type: ignore[attr-defined]

from runfold.cli.main import main
from runfold.events.types import RunRequested
from tests.integration.services import PATIENCE_S, Installation, installation

pytestmark = pytest.mark.kafka
SCRIPT = {"clerk": [{"text": "four"}]}
ONE_BROKER = {"replicas", "min.insync.replicas"}  # what is found on every cluster of one broker

Doctor = Callable[..., tuple[int, str, str]]


@pytest.fixture
def here(kafka_bootstrap: str, topic_prefix: str, tmp_path: Path) -> Iterator[Installation]:
    with installation(kafka_bootstrap, topic_prefix, tmp_path, SCRIPT) as made:
        yield made


@pytest.fixture
def doctor(here: Installation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """The command as a shell gives it: answers status, output and complaints."""
    for name, value in {
        "KAFKA_BOOTSTRAP_SERVERS": here.settings.bootstrap_servers,
        "RUNFOLD_TOPIC_PREFIX": here.settings.topic_prefix,
        "RUNFOLD_RUN_PARTITIONS": "1",
    }.items():
        monkeypatch.setenv(name, value)

    def asked(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(["doctor", *arguments])
        said = capsys.readouterr()
        return status, said.out, said.err

    return asked


def alter(here: Installation, topic: str, **settings: str) -> None:
    """Set settings of a topic; dots are written as double underscores."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, f"{here.names.prefix}.{topic}")
    for name, value in settings.items():
        entry = ConfigEntry(name.replace("__", "."), value, incremental_operation=AlterConfigOpType.SET)
        resource.add_incremental_config(entry)
    admin = AdminClient({"bootstrap.servers": here.settings.bootstrap_servers})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(PATIENCE_S)


# ---- the topics


def test_one_broker_keeps_nothing_for_sure(here: Installation, doctor: Doctor) -> None:
    """Each topic that matters, with what is missing; the status says that somebody has to act."""
    status, found, _ = doctor()
    assert status == 1
    for topic in ("task-requests", "run-events", "task-completions"):
        assert f"! {here.names.prefix}.{topic} has 1 replicas: a production cluster needs 3" in found
        assert f"! {here.names.prefix}.{topic}: min.insync.replicas is below 2" in found
    assert found.endswith("6 findings\n")


def test_a_topic_that_waits_for_two_replicas_is_not_found_fault_with(here: Installation, doctor: Doctor) -> None:
    """What is in order is not mentioned."""
    alter(here, "run-events", min__insync__replicas="2")
    _, found, _ = doctor()
    assert "run-events: min.insync.replicas" not in found
    assert found.endswith("5 findings\n")


@pytest.mark.parametrize(
    ("topic", "settings", "finding"),
    [
        ("run-events", {"unclean__leader__election__enable": "true"}, "run-events: unclean leader election is on"),
        ("task-completions", {"unclean__leader__election__enable": "true"}, "completions: unclean leader election"),
        ("run-events", {"retention__ms": "3600000"}, "run-events: retention.ms is 3600000: runs that last"),
        ("run-events", {"retention__bytes": "1000000000"}, "run-events: retention.bytes is set"),
    ],
)
def test_a_setting_that_forgets_is_a_finding(
    here: Installation, doctor: Doctor, topic: str, settings: dict[str, str], finding: str
) -> None:
    """Records that runs still need would be deleted, or acknowledged ones lost."""
    alter(here, topic, **settings)
    status, found, _ = doctor()
    assert status == 1
    assert finding in found
    assert found.endswith("7 findings\n")


def test_a_log_that_is_kept_for_ever_is_in_order(here: Installation, doctor: Doctor) -> None:
    """-1 is Kafka's word for it."""
    alter(here, "run-events", retention__ms="-1")
    assert "retention" not in doctor()[1]


@pytest.mark.parametrize(
    ("topic", "settings", "words"),
    [
        ("task-completions", {"cleanup__policy": "delete"}, "cleanup.policy=delete and needs compact"),
        ("run-events", {"cleanup__policy": "compact"}, "cleanup.policy=compact and needs delete"),
        ("run-events", {"message__timestamp__type": "CreateTime"}, "CreateTime and needs LogAppendTime"),
    ],
)
def test_a_topic_that_cannot_carry_runs_is_refused(
    here: Installation, doctor: Doctor, topic: str, settings: dict[str, str], words: str
) -> None:
    """With the command that puts it right, as at the start of every service."""
    alter(here, topic, **settings)
    status, _, complaint = doctor()
    assert status == 1
    assert words in complaint
    assert f"kafka-configs.sh --alter --topic {here.names.prefix}.{topic}" in complaint


def test_another_number_of_partitions_is_refused(
    here: Installation, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs would change partition."""
    monkeypatch.setenv("RUNFOLD_RUN_PARTITIONS", "2")
    status, _, complaint = doctor()
    assert status == 1
    assert "run-events has 1 partitions, 2 are configured: runs would change partition" in complaint


# ---- losses


def ask(here: Installation, run: str, *, interactive: bool = False) -> None:
    task = RunRequested(task_id=run, agent="clerk", input="count", interactive=interactive)
    here.put(here.names.events, run, task, f"{run}-asked")


def lose_beginnings(here: Installation, runs: list[str]) -> None:
    """These runs wait for messages, their executor stops, and retention takes what they began with."""
    first = here.executor()
    for run in runs:
        ask(here, run, interactive=True)
    here.until(lambda: len(here.of("run-events", "PhaseEntered")) == len(runs), "all wait for a message")
    assert first.stop() is None
    place = TopicPartition(here.names.events, 0, max(each.offset for each in here.of("run-events", "ContextLoaded")))
    admin = AdminClient({"bootstrap.servers": here.settings.bootstrap_servers})
    for future in admin.delete_records([place]).values():
        future.result(PATIENCE_S)


@pytest.mark.requirement("R9")
def test_an_accepted_loss_ends_each_run_and_starts_the_partition(
    here: Installation, doctor: Doctor, caplog: pytest.LogCaptureFixture
) -> None:
    """The executor that found it goes on by itself: each lost run is completed as failed, the others are carried."""
    runs = ["one", "two"]
    lose_beginnings(here, runs)
    caplog.set_level(logging.WARNING)
    executor = here.executor()
    here.until(lambda: "partition 0 is not started" in caplog.text, "the partition is refused")
    ask(here, "next")
    status, found, _ = doctor()
    assert status == 1
    for run in runs:
        assert f"! run {run} lost its beginning; `runfold doctor --accept-loss` ends it as failed" in found
    assert found.endswith("8 findings\n")
    assert here.of("run-events", "RunLost") == []

    status, found, _ = doctor("--accept-loss")
    assert status == 1  # the cluster has one broker still
    for run in runs:
        assert f"run {run}: RunLost was written" in found
    assert found.endswith("6 findings\n")
    here.until(lambda: len(here.of("task-completions")) == 3, "three completions")
    ends = {each.key: (each.body.status, each.body.kind) for each in here.of("task-completions")}
    assert ends == {"one": ("failed", "lost"), "two": ("failed", "lost"), "next": ("completed", "")}
    assert sorted(each.key for each in here.of("run-events", "RunLost")) == runs
    assert executor.stop() is None

    assert "lost its beginning" not in doctor("--accept-loss")[1]
    here.read()
    assert len(here.of("run-events", "RunLost")) == 2


def test_a_loss_may_be_accepted_while_no_executor_runs(here: Installation, doctor: Doctor) -> None:
    """And twice: the second time there is nothing left to accept."""
    lose_beginnings(here, ["one"])
    assert "run one: RunLost was written" in doctor("--accept-loss")[1]
    assert "run one" not in doctor("--accept-loss")[1]
    here.executor()
    here.until(lambda: len(here.of("task-completions")) == 1, "its completion")
    assert here.of("task-completions")[0].body.kind == "lost"
