"""The intake service: `runfold intake`."""

import logging
import threading

from runfold.adapters.blobs import DirectoryBlobs
from runfold.adapters.clock import SystemClock
from runfold.adapters.kafka_intake import KafkaRequestLog
from runfold.installation import codec_of, topics_of
from runfold.intake.loop import Intake
from runfold.settings import Settings

log = logging.getLogger("runfold.intake")


def run(settings: Settings, stop: threading.Event) -> None:
    """Turn requests into runs until asked to stop. Raises Permanent when that cannot work."""
    names = topics_of(settings)
    codec = codec_of(settings, names)
    blobs = DirectoryBlobs(settings.blobs)
    blobs.sweep()
    intake = Intake(
        log=KafkaRequestLog(
            settings.bootstrap_servers,
            names,
            group=f"{settings.topic_prefix}.intake",
            name=settings.intake_name,
            client=settings.kafka_client,
        ),
        codec=codec,
        blobs=blobs,
        clock=SystemClock(),
        name=settings.intake_name or "intake",
        tell=log.warning,
    )
    log.info("intake on %s, topics %s.*", settings.bootstrap_servers, settings.topic_prefix)
    intake.open()
    try:
        while not stop.is_set():
            intake.step()
    finally:
        intake.close()
