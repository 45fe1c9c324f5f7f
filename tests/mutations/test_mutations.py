"""A test is worth what it notices: each promise is broken on purpose, and the tests that name it must fail.

Every mutation is made in a copy of the product, and pytest runs on that copy in a process of its own: on the tests of
this one requirement, the fast ones where there are any. Two at a time, all in one fixture; `-k R12` makes only those.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from compileall import compile_dir
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import cache_from_source
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.mutations.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]
FAST = ("unit", "laws", "simulation")  # in the order in which they are tried
AT_ONCE = 2
PATIENCE_S = 120
FAILED = re.compile(r"^FAILED ", re.MULTILINE)
NAMED = re.compile(r'requirement\("(R\d+)"')
# What a careless edit leads to: a test that fails for it says nothing about the promise.
CARELESS = re.compile(r"^E +(NameError|UnboundLocalError|ImportError|SyntaxError)", re.MULTILINE)


class Outcome(NamedTuple):
    status: int
    said: str


def _files() -> dict[str, list[Path]]:
    """The files with tests of each requirement: only fast ones, if there are any; those that need a broker last."""
    found: dict[str, list[Path]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for requirement in set(NAMED.findall(path.read_text(encoding="utf-8"))):
            found.setdefault(requirement, []).append(path)
    for requirement, paths in found.items():
        fast = [path for path in paths if path.parent.name in FAST]
        found[requirement] = sorted(fast, key=_place) if fast else sorted(paths, key=_needs_kafka)
    return found


def _place(path: Path) -> int:
    return FAST.index(path.parent.name)


def _needs_kafka(path: Path) -> bool:
    return "kafka_bootstrap" in path.read_text(encoding="utf-8")


FILES = _files()


def copied(product: Path, to: Path) -> Path:
    """The product once more, and the schemas where it looks for them."""
    for part in ("services", "schemas"):
        shutil.copytree(product / part, to / part)
    return to


def broken(product: Path, mutation: Mutation) -> Path:
    """The same product with the edit made, or an error that says why it cannot be made."""
    path = product / "services" / "runfold" / mutation.file
    text = path.read_text(encoding="utf-8")
    times = text.count(mutation.old)
    assert times == 1, f"{mutation.file} has {mutation.old!r} {times} times, not once: choose another text"
    path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
    Path(cache_from_source(path)).unlink(missing_ok=True)
    return product


def tried(product: Path, *options: str, kafka: str | None = None) -> Outcome:
    """What pytest says of this copy of the product. The project's own `pythonpath` would hide the copy."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(product / "services"), str(ROOT)])}
    if kafka is not None:
        environment["KAFKA_BOOTSTRAP_SERVERS"] = kafka
    command = [
        sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-o", "pythonpath=",
        "--basetemp", str(product / "tmp"), *options,
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    return Outcome(done.returncode, done.stdout + done.stderr)


@pytest.fixture(scope="session")
def product(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What all copies are made of, compiled: once, since somebody may be editing the tree meanwhile."""
    made = copied(ROOT, tmp_path_factory.mktemp("product"))
    compile_dir(made, quiet=1)
    return made


@pytest.fixture(scope="session")
def outcomes(
    request: pytest.FixtureRequest, product: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Mutation, Future[Outcome]]]:
    """What becomes of every mutation that is asked for; those that need a broker come last."""

    def outcome(mutation: Mutation, kafka: str | None) -> Outcome:
        copy = copied(product, tmp_path_factory.mktemp(mutation.requirement))
        files = map(str, FILES[mutation.requirement])
        try:
            return tried(broken(copy, mutation), "--requirement", mutation.requirement, *files, kafka=kafka)
        finally:
            shutil.rmtree(copy)

    wanted = [item.callspec.params["mutation"] for item in request.session.items if hasattr(item, "callspec")]
    slow = [mutation for mutation in wanted if any(map(_needs_kafka, FILES.get(mutation.requirement, ())))]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = {mutation: pool.submit(outcome, mutation, None) for mutation in wanted if mutation not in slow}
        if slow:
            kafka: str = request.getfixturevalue("kafka_bootstrap")
            found |= {mutation: pool.submit(outcome, mutation, kafka) for mutation in slow}
        yield found
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: f"{mutation.requirement}-{mutation.broken}")
def test_a_broken_promise_is_noticed(mutation: Mutation, outcomes: dict[Mutation, Future[Outcome]]) -> None:
    """At least one test of the requirement fails, and nothing else goes wrong."""
    status, said = outcomes[mutation].result()
    assert status != pytest.ExitCode.OK, f"no test of {mutation.requirement} noticed: {mutation.broken}"
    assert status == pytest.ExitCode.TESTS_FAILED, f"pytest ended with {status}:\n{said}"
    assert FAILED.search(said), f"an error, and no failed test:\n{said}"
    assert not CARELESS.search(said), f"the edit does not leave a program that runs:\n{said}"


def test_the_product_as_it_is_keeps_its_promises(product: Path, tmp_path: Path) -> None:
    """A copy without an edit passes the same tests: it is the edits that they notice, neither copying nor a fault."""
    files = {path for paths in FILES.values() for path in paths if not _needs_kafka(path)}
    options = [f"--requirement={requirement}" for requirement in FILES]
    status, said = tried(copied(product, tmp_path / "copy"), *options, *map(str, sorted(files)))
    assert status == pytest.ExitCode.OK, said


def test_every_requirement_with_a_test_is_broken_once() -> None:
    """A new test of a requirement brings its mutation; a mutation names a requirement that has a test."""
    named = {mutation.requirement for mutation in MUTATIONS}
    assert not FILES.keys() - named, "add a mutation to tests/mutations/mutations.py for each of these"
    assert not named - FILES.keys(), "no test names these"
