"""The OpenAPI document and the table of routes it is made of."""

import json
import re
from typing import Any

import pytest

from runfold.gateway.handlers import HANDLERS
from runfold.gateway.openapi import document
from runfold.gateway.routes import OPEN, ROUTES

DOCUMENT = json.loads(json.dumps(document("1.2.3")))


def references(tree: Any) -> set[str]:
    if isinstance(tree, dict):
        own = {tree["$ref"]} if isinstance(tree.get("$ref"), str) else set()
        return own.union(*map(references, tree.values()))
    return set().union(*map(references, tree)) if isinstance(tree, list) else set()


def test_every_route_is_served_and_described() -> None:
    """No handler without a route, no route without a handler, and all of them in the document."""
    assert {route.name for route in ROUTES} == set(HANDLERS)
    assert len({route.name for route in ROUTES}) == len(ROUTES)
    described = {(method.upper(), path) for path, operations in DOCUMENT["paths"].items() for method in operations}
    assert described == {(route.method, route.path) for route in ROUTES}
    assert DOCUMENT["openapi"] == "3.1.0"
    assert DOCUMENT["info"]["version"] == "1.2.3"


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_a_route_is_described_whole(route: Any) -> None:
    """Parameters of its path, its body, its answers, its refusals as problems, and who may ask."""
    operation = DOCUMENT["paths"][route.path][route.method.lower()]
    assert operation["summary"]
    in_path = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
    assert in_path == set(re.findall(r"{(\w+)}", route.path))
    assert ("requestBody" in operation) == (route.method == "POST")
    assert {str(status) for status in route.answers} <= set(operation["responses"])
    for status in set(route.refusals) - set(route.answers):
        assert "application/problem+json" in operation["responses"][str(status)]["content"]
    assert bool(operation["security"]) == (route.auth != OPEN)
    for scheme in operation["security"]:
        assert set(scheme) <= set(DOCUMENT["components"]["securitySchemes"])


def test_every_reference_leads_somewhere() -> None:
    """And the schemas forbid what nobody reads."""
    schemas = DOCUMENT["components"]["schemas"]
    assert all(reference.rpartition("/")[2] in schemas for reference in references(DOCUMENT))
    assert schemas["Task"]["additionalProperties"] is False
    assert schemas["ApprovalBody"]["required"] == ["approval", "arguments_sha256"]
