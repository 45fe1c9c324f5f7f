"""The computer's clocks."""

import time


class SystemClock:
    """Monotonic time for durations, wall time for people."""

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
