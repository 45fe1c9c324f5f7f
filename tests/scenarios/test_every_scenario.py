"""Every scenario has a test. They come from public reports about other agent loops; the numbers have gaps."""

import re
from pathlib import Path

SCENARIOS = {
    "S01": "a call of a tool that is not there, beside a valid one",
    "S02": "ids of calls that repeat: in a reply, in a later turn, in another run",
    "S03": "the same tool twice in one reply, with the same arguments or others",
    "S04": "ids that are missing, null or empty, streamed or not",
    "S06": "arguments that are empty, null, an object, double-encoded, a list",
    "S07": "arguments that are no JSON, and a server that refuses to see them again",
    "S08": "replies cut at their length limit inside the arguments",
    "S10": "replies with neither text nor call, once or always",
    "S11": "one call again and again",
    "S12": "one call left and three wanted",
    "S13": "bytes that are no text",
    "S15": "ten megabytes in one line",
    "S16": "a cancel while a tool runs, and its result afterwards",
    "S17": "a tool that takes longer than its limit",
    "S18": "an executor that dies between the results of a batch",
    "S19": "an approval decided twice, also over a restart",
    "S20": "an approval that comes too late, or is for something else",
    "S22": "a free call and a rejected one in one reply",
    "S23": "messages while tools run",
    "S24": "a message during the last reply, or after the end",
    "S26": "cancelled parents and children, made early and late",
    "S27": "a stream that breaks in the middle, or ends without a finish reason",
    "S29": "servers that are busy for seconds, for hours, or out of money",
    "S30": "a history that is too long, in five dialects",
    "S32": "a tool that returns nothing",
    "S33": "a slow first call and fast others",
    "S35": "an answer beside calls",
    "S36": "filters and refusals",
    "S38": "clocks that are wrong, and local times that do not exist",
}
MARK = re.compile(r'scenario\("(S\d+)"\)')


def test_every_scenario_has_a_test() -> None:
    """And no test names a number that is not in the list."""
    sources = [path.read_text() for path in Path(__file__).parent.glob("test_*.py")]
    named = {number for source in sources for number in MARK.findall(source)}
    assert sorted(SCENARIOS.keys() - named) == []
    assert sorted(named - SCENARIOS.keys()) == []
