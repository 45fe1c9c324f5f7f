"""One installation as its settings describe it: its topics on Kafka, and the codec for the records on them.

For the `main`s and the commands, which otherwise would each say the same again.
"""

from runfold.adapters.registry import SchemaRegistry, topic_of
from runfold.adapters.topics import TopicNames, ensure_topics
from runfold.events.codec import Codec
from runfold.settings import Settings


def topics_of(settings: Settings) -> TopicNames:
    """The topics; missing ones are created. Raises Permanent if what is there does not fit."""
    return ensure_topics(
        settings.bootstrap_servers,
        settings.topic_prefix,
        run_partitions=settings.run_partitions,
        task_partitions=settings.run_partitions,
        replication=settings.replication,
        client=settings.kafka_client,
    )


def codec_of(settings: Settings, names: TopicNames) -> Codec:
    """The codec; with a schema registry every schema is registered now. Raises Permanent if one is refused."""
    if not settings.schema_registry_url:
        return Codec()
    return Codec(SchemaRegistry(settings.schema_registry_url, topic_of(names)))
