"""Prints every task that ended, the way any program can: a Kafka client, an Avro library, schema files of this project.

    python examples/print_completions.py [HOW_MANY]

One JSON object a line, from the oldest that is kept. A completion may be delivered more than once: its key is the task.
KAFKA_BOOTSTRAP_SERVERS says where Kafka is, RUNFOLD_TOPIC_PREFIX how the topics begin. Ends after HOW_MANY, if given.
"""

import io
import json
import os
import sys
import uuid
from pathlib import Path

import fastavro
from confluent_kafka import Consumer


def fingerprint(schema: dict) -> bytes:
    return bytes.fromhex(fastavro.schema.fingerprint(fastavro.schema.to_parsing_canonical_form(schema), "CRC-64-AVRO"))


FILES = (Path(__file__).parents[1] / "schemas").glob("TaskCompleted.v*.avsc")  # every version ever written
SCHEMAS = {fingerprint(schema): schema for schema in (json.loads(file.read_text(encoding="utf-8")) for file in FILES)}

consumer = Consumer({
    "bootstrap.servers": os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:9092"),
    "group.id": f"print-completions-{uuid.uuid4()}",  # a program that must see each once keeps its group and commits
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
})  # fmt: skip
consumer.subscribe([os.environ.get("RUNFOLD_TOPIC_PREFIX", "runfold") + ".task-completions"])
left = int(sys.argv[1]) if len(sys.argv) > 1 else -1
while left:
    message = consumer.poll(1.0)
    if message is None:
        continue
    if message.error():
        sys.exit(f"cannot read completions: {message.error()}")
    if message.value() is None:  # deleted by an operator
        continue
    # Avro single-object encoding: two magic bytes, the fingerprint of the schema it was written with, the record.
    schema = SCHEMAS[message.value()[2:10]]
    print(json.dumps(fastavro.schemaless_reader(io.BytesIO(message.value()[10:]), schema, None)), flush=True)
    left -= 1
consumer.close()
