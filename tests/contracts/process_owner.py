"""An executor's side that the tests can kill: starts process tools on a spool, and writes their reports to a file.

`python process_owner.py SPOOL REPORTS TOOL DISPATCH ISOLATION`; it tells its process id by the reports file's name.
"""

import sys
import time
from pathlib import Path

from tests.contracts.adoption_tools import TOOLS
from tests.contracts.process_worlds import World


def main(spool: str, reports: str, isolation: str, *calls: str) -> None:
    world = World(Path(spool), TOOLS, isolation=isolation)
    for call in calls:
        tool, dispatch = call.split("=")
        start = world.asked(tool, dispatch=dispatch)
        world.tools.start(start, lambda report: Path(reports, report.dispatch).write_text(report.output))
    Path(reports, "started").write_text("")
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
