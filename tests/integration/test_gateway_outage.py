"""Kafka goes away under the gateway, and comes back: nobody waits for ever, and nothing is done twice."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runfold.dev.embedded_kafka import EmbeddedKafka
from tests.integration.gateway_place import Client, Place, place

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
SCRIPT: dict[str, Any] = {"talks": [{"text": "first"}, {"text": "second"}]}


@pytest.fixture
def broker() -> Iterator[EmbeddedKafka]:
    """One of its own: it is stopped while others need theirs."""
    with EmbeddedKafka() as kafka:
        yield kafka


def broker_pid(kafka: EmbeddedKafka) -> int:
    assert kafka._broker is not None
    return kafka._broker.pid


def talking(client: Client, here: Place) -> str:
    run_id = client.submit("talks", interactive=True)
    client.until(run_id, lambda view: view["status"] == "waiting_message", "the first answer")
    return run_id


@pytest.mark.requirement("R26")
def test_while_kafka_is_away_the_gateway_says_so(broker: EmbeddedKafka, tmp_path: Path) -> None:
    """What is known is shown; what must be written or looked up is refused in time; asked again, it counts once."""
    with place(broker.bootstrap_servers, tmp_path, SCRIPT, "intake", "executor") as here:
        client = here.gateway()
        run_id = talking(client, here)
        os.kill(broker_pid(broker), signal.SIGSTOP)
        began = time.monotonic()
        try:
            assert client.run(run_id)["status"] == "waiting_message"
            body = {"text": "more", "command_id": "m1"}
            refused = client.post(f"/runs/{run_id}/message", body)
            assert (refused.status, refused.body["command_id"]) == (503, "m1")
            assert "same command_id" in refused.detail
            assert client.get("/runs/nobody").status == 503
            assert client.get("/healthz").status == 200
            task = {"task_id": "late", "agent": "talks", "input": "go"}
            assert client.post("/tasks", task).status == 503
        finally:
            os.kill(broker_pid(broker), signal.SIGCONT)
        assert time.monotonic() - began < 60
        assert client.post(f"/runs/{run_id}/message", body).status == 200
        client.until(
            run_id, lambda view: view["turn"] == 2 and view["status"] == "waiting_message", "the second answer"
        )
        assert client.post("/tasks?wait=60", task).body["completion"]["result"] == "first"
        assert client.post(f"/runs/{run_id}/close").status == 200
        client.ends(run_id)
        entries = client.get(f"/runs/{run_id}/transcript").body["entries"]
        assert [entry["text"] for entry in entries] == ["go", "first", "more", "second"]
