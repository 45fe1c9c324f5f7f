"""The runner: carries out the call whose folder is named, or says what isolation this host offers (`--probe`)."""

import json
import os
import sys
from functools import partial

from runfold.runner import contract
from runfold.runner.contract import Plan
from runfold.runner.supervise import StopSignal, carry_out


def main(arguments: list[str]) -> int:
    """Answers the exit status."""
    if arguments[0] == "--probe":
        from runfold.runner.probe import probe

        os.write(1, json.dumps(probe(int(arguments[1]), arguments[2])).encode())
        return contract.ENDED
    (folder,) = arguments
    stop = StopSignal()
    plan = Plan.read(folder)
    reserved = contract.reserve(folder)
    if not _takes(plan, folder):
        os.unlink(reserved)
        return contract.TAKEN
    carry_out(plan, folder, stop, partial(contract.write_result, folder, reserved))
    return contract.ENDED


def _takes(plan: Plan, folder: str) -> bool:
    """Whether this runner is the one that may start the tool: the first that says who it is."""
    me = {
        "pid": os.getpid(),
        "start_time": contract.start_time(os.getpid()),
        "boot_id": contract.boot_id(),
        "nonce": plan.nonce,
    }
    return me["boot_id"] == plan.boot_id and contract.write_once(os.path.join(folder, contract.RUNNER), me)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
