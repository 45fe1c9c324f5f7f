"""The gateway service: `runfold gateway`."""

import ipaddress
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.metadata import PackageNotFoundError, version

import uvicorn

from runfold.adapters.blobs import DirectoryBlobs
from runfold.adapters.clock import SystemClock
from runfold.adapters.kafka_gateway import KafkaFeed, KafkaHistory, KafkaSender
from runfold.adapters.truncation import head_and_tail
from runfold.gateway.app import App
from runfold.gateway.gateway import Gateway
from runfold.gateway.reading import Reading
from runfold.installation import codec_of, topics_of
from runfold.ports import Permanent
from runfold.settings import Settings

log = logging.getLogger("runfold.gateway")
STOP_S = 5  # for requests under way, then their connections are closed
BACKLOG = 1_024


def run(settings: Settings, stop: threading.Event) -> None:
    """Serve until asked to stop. Raises Permanent when that cannot work, Transient where a restart may help."""
    check_exposure(settings)
    names = topics_of(settings)
    codec = codec_of(settings, names)
    bootstrap, client = settings.bootstrap_servers, settings.kafka_client
    with (
        closing(KafkaFeed(bootstrap, names, client=client)) as feed,
        closing(KafkaHistory(bootstrap, names, client=client)) as history,
        KafkaSender(bootstrap, names, client=client) as sender,
    ):
        reading = Reading(feed=feed, history=history, codec=codec, tell=log.warning)
        gateway = Gateway(
            reading=reading,
            sender=sender,
            codec=codec,
            blobs=DirectoryBlobs(settings.blobs),
            clock=SystemClock(),
            partitions=feed.partitions,
            shorten=head_and_tail,
            token=settings.gateway_token,
            secret=settings.dispatch_secret,
            heartbeat_s=settings.gateway_heartbeat_s,
            version=_version(),
        )
        with _served(gateway, settings):
            try:
                while not stop.is_set():
                    reading.step()
            finally:
                gateway.is_stopping = True
                reading.wake_all()


def check_exposure(settings: Settings) -> None:
    """Whoever reaches a gateway without a token may do everything: then nobody from outside may reach it."""
    if not settings.gateway_token and not _is_loopback(settings.gateway_host):
        raise Permanent(
            f"RUNFOLD_GATEWAY_HOST is {settings.gateway_host}: set RUNFOLD_GATEWAY_TOKEN, or listen on 127.0.0.1"
        )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def _served(gateway: Gateway, settings: Settings) -> Iterator[None]:
    """Answers requests from a thread of its own; this one goes on reading."""
    host, port = settings.gateway_host, settings.gateway_port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise Permanent(f"cannot listen on {host}, port {port}: {error.strerror}") from error
    config = uvicorn.Config(
        App(gateway), log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=STOP_S
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), name="http")
    thread.start()
    log.info("gateway at http://%s:%s, topics %s.*", host, listener.getsockname()[1], settings.topic_prefix)
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def _version() -> str:
    try:
        return version("runfold")
    except PackageNotFoundError:  # a checkout that is not installed
        return "0"
