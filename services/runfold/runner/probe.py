"""What isolation this host offers: found out by making one, since permissions, kernels and containers all have a say."""

import os
import shutil
import tempfile
from typing import Any

from runfold.runner.contract import Bounds, Cage
from runfold.runner.launch import Launch, launch
from runfold.runner.users import may_become


def probe(uid: int, folder: str) -> dict[str, Any]:
    """`namespaces` and `uid` as a cage takes them, and why there is no more where there is not all."""
    own = uid if may_become(uid) else None
    reasons = []
    if own is None and os.geteuid() == 0:
        reasons.append(f"this process cannot run programs under user id {uid}")
    for namespaces in ("root", "user") if own is not None else ("user",):
        problem = _tried(Cage(namespaces=namespaces, uid=own, sandbox=True), folder)
        if not problem:
            return {"namespaces": namespaces, "uid": own, "reasons": reasons}
        reasons.append(problem)
    return {"namespaces": "", "uid": own, "reasons": reasons}


def _tried(cage: Cage, folder: str) -> str:
    """Run a program that does nothing in this cage. Answers what went wrong."""
    place = tempfile.mkdtemp(prefix="probe-", dir=folder)
    os.chmod(place, 0o711)  # noqa: S103  a tool goes through, and sees nothing
    reading, status = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    moved = [os.dup2(each, 64 + number, inheritable=False) for number, each in enumerate((null, null, null, status))]
    try:
        pid = launch(
            Launch(
                program=lambda: 0,
                environment={},
                cage=cage,
                bounds=Bounds(),
                workspace="",
                scratch=place,
                base=place,
                needed=(),
                descriptors=tuple(moved[:-1]),
                status=moved[-1],
            )
        )
        for each in (*moved, status, null):
            os.close(each)
        os.waitpid(pid, 0)
        with open(reading, "rb") as file:
            told = file.read().decode()
        return "" if '"status": 0' in told else f"{cage.namespaces} namespaces: {told.strip() or 'no answer'}"
    finally:
        shutil.rmtree(place, ignore_errors=True)
