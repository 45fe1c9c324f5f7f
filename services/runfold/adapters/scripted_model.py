"""A model in this process: a function from request to outcome. For tests, and for measuring everything but a model.

No thread, no delay, no text deltas: the outcome is there when `start` returns.
"""

from collections.abc import Callable

from runfold.ports import ModelOutcome, ModelRequest


class FunctionModel:
    """Answers every call at once. The function must be fast, and raise nothing: a raise is a bug of the test."""

    __slots__ = ("_reply",)

    def __init__(self, reply: Callable[[ModelRequest], ModelOutcome]) -> None:
        self._reply = reply

    def start(
        self,
        request: ModelRequest,
        done: Callable[[ModelOutcome], None],
        delta: Callable[[int, str], None],
    ) -> ModelOutcome:
        return self._reply(request)

    def stop(self, call: str) -> None:
        """Nothing to stop: every call has its outcome."""
