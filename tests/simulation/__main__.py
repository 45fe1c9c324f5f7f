"""`scripts/simulate`: run seeds, say what they met, and how to repeat the one that failed."""

import argparse
import sys
import time

from tests.simulation.runner import run_seeds


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2_000, help="how many seeds, from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="one seed only")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    started_s = time.monotonic()
    first, count = (asked.first, asked.seeds) if asked.seed is None else (asked.seed, 1)

    def progress(done: int) -> None:
        print(f"\r{done} of {count} seeds, {time.monotonic() - started_s:.0f} s", end="", file=sys.stderr, flush=True)

    outcome = run_seeds(range(first, first + count), processes=min(asked.processes, count), progress=progress)
    print(file=sys.stderr)
    for failure in outcome.failures:
        print(failure)
    for name, value in vars(outcome.totals).items():
        print(f"{name.replace('_', ' '):>16} {value:,}")
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
