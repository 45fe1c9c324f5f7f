"""Who may ask: one bearer token for people and services, and one token for each dispatch of an external tool. Pure."""

import base64
import hashlib
import hmac

VERSION = "v1"


def is_same(given: str, wanted: str) -> bool:
    """In a time that tells nothing of how much of it is right."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode("utf-8", "replace"))


def bearer(header: str | None) -> str:
    """The token of an Authorization header; empty if it has none."""
    scheme, _, token = (header or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def dispatch_token(secret: str, run_id: str, dispatch: str) -> str:
    """Good for exactly this dispatch: whoever has it can make no other."""
    signed = hmac.digest(secret.encode(), f"{VERSION}\0{run_id}\0{dispatch}".encode(), hashlib.sha256)
    return f"{VERSION}.{base64.urlsafe_b64encode(signed).decode().rstrip('=')}"
