"""Tokens: who may ask, and for what."""

import pytest

from runfold.gateway.main import check_exposure
from runfold.gateway.tokens import bearer, dispatch_token, is_same
from runfold.ports import Permanent
from runfold.settings import Settings


def test_a_token_is_of_one_dispatch_of_one_run_and_one_secret() -> None:
    """Nothing of it can be moved into the part beside it."""
    token = dispatch_token("secret", "run", "dispatch")
    others = [
        ("secret", "run", "other"),
        ("secret", "other", "dispatch"),
        ("other", "run", "dispatch"),
        ("secret", "rundis", "patch"),
    ]
    assert len({token, *(dispatch_token(*other) for other in others)}) == 5
    assert dispatch_token("secret", "run", "dispatch") == token
    assert is_same(token, token)
    assert not is_same("", token)
    assert not is_same("ü\ud800", token)


@pytest.mark.parametrize(
    ("header", "token"),
    [(None, ""), ("", ""), ("Bearer x", "x"), ("bearer  x ", "x"), ("Basic x", ""), ("Bearer", ""), ("x", "")],
)
def test_only_a_bearer_token_counts(header: str | None, token: str) -> None:
    """Whatever else the header says is none."""
    assert bearer(header) == token


@pytest.mark.parametrize(
    ("host", "may"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("example.org", False),
    ],
)
def test_without_a_token_only_this_machine_may_be_reached(host: str, *, may: bool) -> None:
    """With one, every address."""
    check_exposure(Settings(gateway_host=host, gateway_token="t"))
    if may:
        check_exposure(Settings(gateway_host=host))
    else:
        with pytest.raises(Permanent, match="RUNFOLD_GATEWAY_TOKEN"):
            check_exposure(Settings(gateway_host=host))
