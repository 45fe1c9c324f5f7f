"""Asks for one task, the way any program can: a Kafka client, an Avro library, and a schema file of this project.

    python examples/submit.py AGENT TEXT [TASK_ID]

KAFKA_BOOTSTRAP_SERVERS says where Kafka is, RUNFOLD_TOPIC_PREFIX how the topics begin. Prints the task id. Sending the
same id again is safe: it starts nothing new. No headers are needed.
"""

import io
import json
import os
import sys
import uuid
from pathlib import Path

import fastavro
from confluent_kafka import Producer

SCHEMA = json.loads((Path(__file__).parents[1] / "schemas" / "TaskRequested.v1.avsc").read_text(encoding="utf-8"))

agent, text = sys.argv[1:3]
task_id = sys.argv[3] if len(sys.argv) > 3 else f"task-{uuid.uuid4()}"
body = io.BytesIO()
# Avro single-object encoding: two magic bytes, the fingerprint of the schema, the record.
body.write(
    b"\xc3\x01"
    + bytes.fromhex(fastavro.schema.fingerprint(fastavro.schema.to_parsing_canonical_form(SCHEMA), "CRC-64-AVRO"))
)
fastavro.schemaless_writer(body, SCHEMA, {"task_id": task_id, "agent": agent, "input": text})

failures = []
producer = Producer({
    "bootstrap.servers": os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:9092"),
    "partitioner": "murmur2_random",  # as in Java; with another one the request takes one hop more
    "message.max.bytes": 4 * 1024 * 1024,  # what task-requests takes; the client's default is 1 MB
    "acks": "all",
})  # fmt: skip
topic = os.environ.get("RUNFOLD_TOPIC_PREFIX", "runfold") + ".task-requests"
producer.produce(
    topic, body.getvalue(), task_id, on_delivery=lambda error, _: failures.append(error) if error else None
)
if producer.flush(30) or failures:
    sys.exit(f"not submitted: {failures or 'Kafka does not answer'}")
print(task_id)
