"""What an executor may be told. Parsed once, in `main`; every bound has its unit and its reason."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSettings:
    name: str = "executor"  # static member of the group, owner in PartitionOpened, source of its events
    session_timeout_ms: int = 6_000  # Kafka expels a silent member after this; orphaned calls wait twice as long
    poll_ms_max: int = 500  # longest wait for records when no timer is due
    commit_interval_ms: int = 2_000  # how far a restart reads back at most, beside the low-water mark
    checkpoint_records: int = 50_000  # distance of the mark at which the runs that hold it are checkpointed
    checkpoint_bytes: int = 64 * 1024 * 1024  # the same in bytes: two seconds of reading; see checkpoints.py
    checkpoint_age_ms: int = 24 * 3_600_000  # the same in time: a quarter of the shortest retention in use
    finished_memory_ms: int = 60_000  # ids that ended in this time are known: covers intake's 30 s delivery time-out
    early_facts_max: int = 1_000  # runs of a partition that have nothing but early facts
    early_fact_age_ms: int = 600_000  # a fact without its run is dropped after this
    unread_fact_age_ms: int = 120_000  # an own fact of a partition that went away is remembered this long
    completion_retry_ms: int = 1_000
