"""When a call waits for a person: the small language of approval rules."""

import pytest

from runfold.core.approval import approval_problem, needs_approval


@pytest.mark.requirement("R25")
@pytest.mark.parametrize(
    ("rule", "arguments", "wanted"),
    [
        ("", {"a": 1}, False),
        ("always", {}, True),
        ("amount > 100", {"amount": 101}, True),
        ("amount > 100", {"amount": 100}, False),
        ("amount >= 10 and currency != 'EUR'", {"amount": 10, "currency": "USD"}, True),
        ("amount >= 10 and currency != 'EUR'", {"amount": 10, "currency": "EUR"}, False),
        ("to not in ['a@x', 'b@x']", {"to": "c@x"}, True),
        ("to not in ['a@x', 'b@x']", {"to": "a@x"}, False),
        ("not startswith(path, '/tmp/')", {"path": "/etc/passwd"}, True),
        ("not startswith(path, '/tmp/')", {"path": "/tmp/x"}, False),
        ("len(files) > 2", {"files": [1, 2]}, False),
        ("order.total > 5", {"order": {"total": 6}}, True),
        ("order.total == null", {}, True),
        ("1 < n < 3", {"n": 2}, True),
        ("1 < n < 3", {"n": 3}, False),
        ("'rm' in lower(command)", {"command": "RM -rf"}, True),
        ("n < -1", {"n": -2}, True),
        ("a or b", {"a": 0, "b": ""}, False),
        ("force == true", {"force": True}, True),
    ],
)
def test_a_rule_says_who_is_asked(rule: str, arguments: dict[str, object], wanted: bool) -> None:
    """Over the arguments as the tool would get them."""
    assert approval_problem(rule) is None
    assert needs_approval(rule, arguments) is wanted


@pytest.mark.requirement("R25")
@pytest.mark.parametrize(
    ("rule", "arguments"),
    [("amount > 100", {"amount": "many"}), ("amount > 100", {}), ("len(x) > 1", {"x": 3}), ("a.b > 1", {"a": 3})],
)
def test_what_cannot_be_evaluated_asks_the_person(rule: str, arguments: dict[str, object]) -> None:
    """The safe default: an odd argument must not be a way around the gate."""
    assert needs_approval(rule, arguments)


@pytest.mark.parametrize(
    "rule",
    [
        "__import__('os')", "a.__class__()", "[x for x in y]", "lambda: 1", "f'{a}'", "a if b else c", "a[0]", "2 ** 99",
        "'a' * 10", "open('x')", "len(x, key=1)", "a :=", "", "x" * 2_000, "(" * 900, "a is b", "b'x'",
    ],
)  # fmt: skip
def test_anything_else_is_refused_where_the_tool_is_declared(rule: str) -> None:
    """Nothing loops, nothing calls, nothing reaches out; and if it got through, the person is asked."""
    if rule:
        assert approval_problem(rule) is not None
        assert needs_approval(rule, {"a": 1, "x": 1})
