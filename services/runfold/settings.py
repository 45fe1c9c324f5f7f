"""What a deployment says about itself, read from the environment once, by the `main` of each service.

Names start with RUNFOLD_, except those that other tools share: KAFKA_BOOTSTRAP_SERVERS, SCHEMA_REGISTRY_URL,
OPENAI_BASE_URL, OPENAI_API_KEY.
"""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from runfold.ports import Permanent

SHARED = {
    "KAFKA_BOOTSTRAP_SERVERS": "bootstrap_servers",
    "SCHEMA_REGISTRY_URL": "schema_registry_url",
    "OPENAI_BASE_URL": "model_base_url",
    "OPENAI_API_KEY": "model_api_key",
}
PREFIX = "RUNFOLD_"


def _comma_separated(text: object) -> object:
    return tuple(part.strip() for part in text.split(",") if part.strip()) if isinstance(text, str) else text


def _assignments(text: object) -> object:
    if not isinstance(text, str):
        return text
    return dict(part.strip().split("=", 1) for part in text.split(",") if "=" in part)


class Settings(BaseModel, frozen=True, extra="forbid"):
    """Defaults are safe for one machine; a cluster sets at least the brokers and a shared blob folder."""

    bootstrap_servers: str = "127.0.0.1:9092"
    kafka_client: Annotated[dict[str, str], BeforeValidator(_assignments)] = {}  # further librdkafka settings, a=b,c=d
    schema_registry_url: str = ""
    topic_prefix: str = Field(default="runfold", pattern=r"^[a-zA-Z0-9._-]{1,200}$")
    executor_name: str = Field(default_factory=socket.gethostname, pattern=r"^[a-zA-Z0-9._-]{1,200}$")
    intake_name: str | None = None
    agents: Path | None = None  # folder of agent files
    tools: Annotated[tuple[str, ...], BeforeValidator(_comma_separated)] = ()  # package.module:attribute
    spool: Path = Path.home() / ".local" / "share" / "runfold" / "spool"  # of process tools, on this host; outlives us
    isolation: str = "auto"  # of process tools: what the host offers; required: refuse to start without; none
    blobs: Path = Path.home() / ".local" / "share" / "runfold" / "blobs"  # must be shared by all services
    model_base_url: str = "https://api.openai.com/v1"
    model_api_key: str = ""
    model_stream: bool = True
    gateway_host: str = "127.0.0.1"
    gateway_port: int = Field(default=8080, ge=0, le=65_535)  # 0 takes a free one
    gateway_token: str = ""  # of whoever asks the gateway; without one it listens on loopback only
    gateway_url: str = "http://127.0.0.1:8080"  # where the commands find it
    gateway_heartbeat_s: float = Field(default=10.0, gt=0)  # of silent event streams
    dispatch_secret: str = ""  # signs the tokens with which external tools report; the same for every gateway
    run_partitions: int = Field(default=16, ge=1)
    replication: int = Field(default=1, ge=1)

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Self:
        """Settings from the environment. Raises Permanent, naming the variable and what is wrong with it."""
        names = {variable: SHARED[variable] for variable in SHARED if variable in environ}
        names |= {v: v.removeprefix(PREFIX).lower() for v in environ if v.startswith(PREFIX)}
        try:
            return cls.model_validate({field: environ[variable] for variable, field in names.items()})
        except ValidationError as error:
            by_field = {field: variable for variable, field in names.items()}
            places = [
                f"{by_field.get(str(e['loc'][0]), e['loc'])}: {e['msg']}" for e in error.errors(include_url=False)
            ]
            raise Permanent("settings: " + "; ".join(places)) from error
