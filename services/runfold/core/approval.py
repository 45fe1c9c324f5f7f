"""When a call needs a person's yes: never, always, or by an expression over its arguments.

An expression is a small part of Python's: names of arguments (`null` where an argument is missing), constants, lists,
`and or not`, comparisons, `in`, a dot into an object, and the functions below. It is evaluated here, never by Python: it
can neither loop nor reach anything. What cannot be evaluated asks the person.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any

ALWAYS = "always"
EXPRESSION_CHARS_MAX = 1_000

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "len": len,
    "lower": str.lower,
    "startswith": str.startswith,
    "endswith": str.endswith,
}
COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, container: item in container,
    ast.NotIn: lambda item, container: item not in container,
}
CONSTANTS = {"true": True, "false": False, "null": None}


def approval_problem(rule: str) -> str | None:
    """What is wrong with a tool's approval rule, or None."""
    if rule in ("", ALWAYS):
        return None
    try:
        _parsed(rule)
    except ValueError as error:
        return f"approval {rule!r}: {error}"
    return None


def needs_approval(rule: str, arguments: Mapping[str, Any]) -> bool:
    """Does a call with these arguments wait for a person?"""
    if not rule:
        return False
    if rule == ALWAYS:
        return True
    try:
        return bool(_value(_parsed(rule), arguments))
    except (ValueError, TypeError, AttributeError, RecursionError):  # other types than the rule's author thought of
        return True


@lru_cache(maxsize=256)
def _parsed(rule: str) -> ast.expr:
    """The expression, only of the nodes we know. Raises ValueError."""
    if len(rule) > EXPRESSION_CHARS_MAX:
        raise ValueError(f"longer than {EXPRESSION_CHARS_MAX} characters")
    try:
        expression = ast.parse(rule, mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError("no expression") from error
    _check(expression)
    return expression


def _check(node: ast.expr) -> None:
    match node:
        case ast.Constant(value=str() | int() | float() | None):
            parts: list[ast.expr] = []
        case ast.Name():
            parts = []
        case ast.BoolOp(values=parts) | ast.List(elts=parts) | ast.Tuple(elts=parts):
            pass
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            parts = [operand]
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in COMPARISONS for op in ops):
            parts = [left, *others]
        case ast.Attribute(value=value):
            parts = [value]
        case ast.Call(func=ast.Name(id=name), args=parts, keywords=[]) if name in FUNCTIONS:
            pass
        case _:
            raise ValueError(f"{ast.unparse(node)!r} is not allowed; see the documentation for what is")
    for part in parts:
        _check(part)


def _value(node: ast.expr, arguments: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return CONSTANTS[name] if name in CONSTANTS else arguments.get(name)
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_value(part, arguments) for part in parts]
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_value(part, arguments) for part in parts)
        case ast.BoolOp(values=parts):
            return any(_value(part, arguments) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, arguments)
        case ast.UnaryOp(operand=operand):
            return -_value(operand, arguments)
        case ast.Compare(left=left, ops=ops, comparators=others):
            values = [_value(part, arguments) for part in (left, *others)]
            pairs = pairwise(values)
            return all(COMPARISONS[type(op)](*pair) for op, pair in zip(ops, pairs, strict=True))
        case ast.Attribute(value=value, attr=name):
            inside = _value(value, arguments)
            return None if inside is None else inside.get(name)
        case ast.Call(func=ast.Name(id=name), args=parts):
            return FUNCTIONS[name](*[_value(part, arguments) for part in parts])
    raise ValueError(f"{type(node).__name__} is not allowed")
