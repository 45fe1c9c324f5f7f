"""The rules of the house, kept by a test; and each rule broken once on purpose, so that it is known to bite."""

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from runfold.core.fold_decisions import DECISION_RULES
from runfold.core.fold_facts import FACT_RULES
from runfold.events import types
from runfold.events.codec import released_schemas
from tests.house_rules import rules
from tests.house_rules.rules import Source

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "histories" / "golden"
Rule = Callable[[Source], Iterator[str]]


@cache
def sources() -> list[Source]:
    found = [*sorted((ROOT / "services" / "runfold").rglob("*.py")), *sorted((ROOT / "tests").rglob("*.py"))]
    return [Source(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")) for path in found]


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_the_house_keeps_its_rule(rule: Rule) -> None:
    """No file breaks it, or the exception stands in a table with its reason."""
    findings = [
        finding
        for source in sources()
        if source.is_product or rule not in rules.PRODUCT_ONLY
        for finding in rule(source)
    ]
    assert not findings, "\n" + "\n".join(findings)


LONG_FUNCTION = "def long() -> None:\n" + "    x = 1\n" * 60
BAD = [
    (rules.broken_layers, "core/fold.py", "from runfold.ports import Clock", "may not import runfold.ports.Clock"),
    (rules.broken_layers, "events/codec.py", "import runfold.core.fold", "may not import"),
    (rules.broken_layers, "executor/loop.py", "from runfold.adapters.kafka import KafkaLog", "may not import"),
    (rules.broken_layers, "adapters/kafka.py", "from runfold.executor.loop import Executor", "may not import"),
    (rules.broken_layers, "projector/rows.py", "from runfold.core.decide import decide", "may not import"),
    (rules.broken_layers, "gateway/app.py", "from runfold.core import decide", "may not import"),
    (rules.broken_layers, "runner/main.py", "from runfold.events.types import Item", "may not import"),
    (rules.broken_layers, "nowhere/else.py", "from runfold.core.fold import fold", "may not import"),
    (rules.broken_libraries, "core/fold.py", "import fastavro", "fastavro is not for this file"),
    (rules.broken_libraries, "executor/loop.py", "from confluent_kafka import Consumer", "confluent_kafka"),
    (rules.broken_libraries, "runner/main.py", "import pydantic", "pydantic"),
    (rules.impure, "core/decide.py", "import time", "time: hand the value in"),
    (rules.impure, "core/decide.py", "from random import Random", "random.Random"),
    (rules.impure, "core/decide.py", "import logging", "logging"),
    (rules.impure, "core/decide.py", "from threading import Lock", "threading.Lock"),
    (rules.impure, "core/decide.py", "text = open('file').read()", "open()"),
    (rules.impure, "events/types.py", "from os import urandom", "os.urandom"),
    (rules.impure, "events/envelope.py", "from datetime import datetime\nnow = datetime.now()", ".now"),
    (rules.oversized, "core/fold.py", "x = 1\n" * 251, "split by idea"),
    (rules.oversized, "cli/main.py", "x = 1\n" * 401, "split by idea"),
    (rules.oversized, "cli/main.py", LONG_FUNCTION, "long has 61"),
    (rules.oversized, "cli/main.py", "def f(a, b, c, d, *, e, f, g): ...", "f has 7"),
    (rules.wide_excepts, "cli/main.py", "try:\n    f()\nexcept Exception:\n    g()", "name what can happen"),
    (rules.wide_excepts, "cli/main.py", "try:\n    f()\nexcept:\n    g()", "name what can happen"),
    (rules.wide_excepts, "cli/main.py", "try:\n    f()\nexcept (OSError, BaseException):\n    g()", "name what"),
    (rules.wide_excepts, "core/restore.py", "try:\n    f()\nexcept Exception:\n    pass", "say what becomes of it"),
    (rules.broken_comments, "cli/main.py", "x = f()  # type: ignore", "name the code"),
    (rules.broken_comments, "cli/main.py", "x = f()  # type: ignore[attr-defined]", "say the reason"),
    (rules.broken_comments, "cli/main.py", "x = f()  # noqa", "name the code"),
    (rules.broken_comments, "cli/main.py", "x = f()  # noqa: BLE001", "say the reason"),
    (rules.broken_comments, "cli/main.py", "x = f()  # TODO: later", "or do it"),
    (rules.broken_comments, "cli/main.py", "# x = f(1)", "git remembers"),
    (rules.broken_comments, "cli/main.py", "# if x is None:", "git remembers"),
    (rules.forbidden_statements, "executor/loop.py", "print('here')", "hand in a `tell`"),
    (rules.forbidden_statements, "executor/loop.py", "assert x", "raise InvariantViolation"),
    (rules.missing_docstrings, "cli/main.py", "x = 1", "begin with a docstring"),
    (rules.missing_docstrings, "test_x.py", '"""Tests."""\ndef test_y() -> None: ...', "give test_y one line"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "path", "text", "advice"), BAD)
def test_a_broken_rule_is_noticed(rule: Rule, path: str, text: str, advice: str) -> None:
    """The finding names file and line, and says what to do."""
    found = list(rule(Source(f"services/runfold/{path}", text)))
    assert len(found) == 1, found
    assert found[0].startswith(f"services/runfold/{path}:")
    assert advice in found[0]


GOOD = [
    (rules.impure, "events/envelope.py", "from os import urandom"),
    (rules.broken_layers, "executor/main.py", "from runfold.adapters.kafka import KafkaLog"),
    (rules.broken_libraries, "events/codec.py", "import fastavro"),
    (rules.broken_comments, "cli/main.py", "# if a run is parked: it waits\n# a sentence (with this)\n# x = 1 of 3"),
    (rules.broken_comments, "cli/main.py", "x = f()  # noqa: BLE001  whatever it raises is its outcome"),
    (rules.wide_excepts, "core/restore.py", "try:\n    f()\nexcept Exception as error:\n    g(error)"),
    (rules.forbidden_statements, "dev/demo.py", "print('hello')"),
]


@pytest.mark.parametrize(("rule", "path", "text"), GOOD)
def test_what_is_allowed_is_left_alone(rule: Rule, path: str, text: str) -> None:
    """A rule that cries wolf is switched off by the first who meets it."""
    assert not list(rule(Source(f"services/runfold/{path}", text)))


def test_every_named_exception_is_still_needed() -> None:
    """A table that lists what is gone hides what comes back."""
    there = {source.inside for source in sources()}
    tables = (rules.LIBRARIES, rules.PURE_EXCEPTIONS, rules.WIDE_EXCEPT)
    gone = [name for table in tables for name in table if name not in there]
    assert not gone, f"delete from the tables of rules.py: {gone}"


def test_every_event_has_a_schema_and_a_rule_in_the_fold() -> None:
    """A type that is written can be read, and a type that is read means something."""
    schemas = released_schemas()
    for event in (*types.FACTS, *types.DECISIONS, *types.OTHERS):
        assert event.__name__ in schemas, f"{event.__name__}: write schemas/{event.__name__}.v1.avsc"
    assert set(FACT_RULES) == set(types.FACTS), "give each fact a rule in core/fold_facts.py"
    assert set(DECISION_RULES) == set(types.DECISIONS), "give each decision a rule in core/fold_decisions.py"


def test_every_schema_file_belongs_to_an_event() -> None:
    """The name of the file, of the record and of the class are one."""
    known = {event.__name__ for event in (*types.FACTS, *types.DECISIONS, *types.OTHERS)}
    for path in sorted((ROOT / "schemas").glob("*.avsc")):
        name = json.loads(path.read_text(encoding="utf-8"))["name"]
        assert path.name.startswith(f"{name}.v"), f"{path.name}: the record in it is called {name}"
        assert name in known, f"{path.name}: no event of that name in events/types.py"


def test_every_event_has_golden_bytes() -> None:
    """What was written once is read for ever: bytes of every released version are kept; the codec's tests compare."""
    missing = [path.stem for path in (ROOT / "schemas").glob("*.avsc") if not (GOLDEN / f"{path.stem}.hex").exists()]
    assert not missing, f"record bytes in {GOLDEN.relative_to(ROOT)} for {missing}"
