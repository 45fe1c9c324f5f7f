"""The services of a development stack, as separate processes on one machine."""

import os
import subprocess
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Self

STOP_S = 15.0


class Stack:
    """Starts `runfold` services; leaving the block stops those it started, by their process ids."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {**os.environ, **environment}
        self._started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._started):
            process.terminate()
        for process in reversed(self._started):
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def start(
        self, *command: str, environment: Mapping[str, str] | None = None, quiet: bool = True
    ) -> subprocess.Popen[str]:
        """One service, such as "intake"."""
        process = subprocess.Popen(
            [sys.executable, "-m", "runfold.cli.main", *command],
            env={**self._environment, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if quiet else None,
            text=True,
        )
        self._started.append(process)
        return process

    def failed(self) -> str | None:
        """What ended without being asked to, if anything did."""
        for process in self._started:
            if process.poll() is not None:
                return f"{process.args!r} ended with status {process.returncode}"
        return None
