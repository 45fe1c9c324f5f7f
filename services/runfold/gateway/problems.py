"""What goes wrong, as an answer: RFC 9457, in words that say what to do."""

from collections.abc import Mapping
from http import HTTPStatus

from runfold.gateway.models import Problem

MEDIA = "application/problem+json"


class Refused(Exception):
    """The request is answered with a problem."""

    def __init__(
        self, status: int, detail: str, *, command_id: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.headers = dict(headers or {})
        self.problem = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail, command_id=command_id)


def unknown_run(run_id: str) -> Refused:
    return Refused(404, f"there is no run {run_id!r}; a task that was submitted just now may need a moment to begin")


def busy(detail: str) -> Refused:
    return Refused(503, detail, headers={"Retry-After": "1"})
