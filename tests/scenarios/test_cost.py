"""What a model does for nothing is noticed: attempts that broke off are paid for, repetition is answered."""

import pytest

from tests.scenarios.replies import DONE, call, calls
from tests.scenarios.world import World

pytestmark = [pytest.mark.kafka]


@pytest.mark.scenario("S27")
@pytest.mark.requirement("R31")
def test_an_attempt_that_broke_off_is_counted(here: World) -> None:
    """Its text was paid for; where the provider did not come to say how much, it is an estimate, and says so."""
    whole = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}
    run = here.run([{"text": "x" * 640, "fault": {"cut_after_chunks": 15}, "usage": whole}])
    totals = run.over().totals
    assert totals.model_calls == 2
    assert totals.tokens > 20
    assert totals.tokens_estimated


@pytest.mark.scenario("S11")
@pytest.mark.requirement("R30")
def test_a_model_that_repeats_itself_is_told_so(here: World) -> None:
    """After five turns that are all the same, and again after ten; its calls go on until the limit."""
    run = here.run([calls(call("note", text="again"))] * 11 + [DONE], limits={"tool_calls": 10})
    run.over()
    said = [message["content"] for message in run.messages(-2)[2:] if message["role"] == "user"]
    assert [text for text in said if "made the same calls 5 times" in text]
