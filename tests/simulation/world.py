"""A world of executors on one simulated Kafka, where one integer seed decides everything that happens.

The executors are the real ones. Time, Kafka, models, tools and people are simulated, and so is misfortune: crashes in
the middle of a step, appends that are lost or land after they were given up, partitions with two owners, a broker's
clock that steps back. `Watch` looks on after every step. When misfortune ends, every run must end soon.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from runfold.adapters.memory import MemoryKafka, MemoryOutbox, MemoryRunLog
from runfold.core.waits import open_calls
from runfold.events.codec import Codec
from runfold.events.envelope import HeaderWriter
from runfold.events.types import (
    ApprovalDecided,
    CancelRequested,
    CloseRequested,
    Fact,
    MessageReceived,
    PauseRequested,
    QuestionAnswered,
    ResumeRequested,
    RunRequested,
    TaskCancelled,
    TaskRequested,
    UnparkRequested,
)
from runfold.executor.build import build_executor
from runfold.executor.settings import ExecutorSettings
from tests.simulation.actors import (
    Host,
    Killed,
    SimulatedCatalog,
    SimulatedClock,
    SimulatedModel,
    SimulatedProcesses,
    SimulatedTools,
)
from tests.simulation.checkers import Broken, Watch

CHAOS_STEPS = 200
CALM_STEPS_MAX = 300
FINISHED_MEMORY_MS = 20_000
INTAKE_DELAY_MS = 8_000  # how long after a completion a repeated request may still arrive: less than the memory
LONG_JUMP_MS = 10_000
IDS_MAX = 3_000  # a seed has some hundred
SESSION_MS = 1_500  # two of them pass before a tool's time limit does: orphaned calls are met
CODEC = Codec()


@dataclass(eq=False)
class Process:
    """One executor process, from its start to its death."""

    world: "World"
    name: str
    log: MemoryRunLog = field(init=False)

    def __post_init__(self) -> None:
        world = self.world
        self.log = MemoryRunLog(world.kafka, self.name, held=True)
        self.outbox = MemoryOutbox(self.log, held=True)
        self.model = SimulatedModel(world.rng, self, world.watch, world.is_calm)
        self.tools = SimulatedTools(world.rng, self, world.watch, world.is_calm)
        host = world.hosts[int(self.name[1:]) % 2]
        self.processes = SimulatedProcesses(world.rng, self, world.watch, world.is_calm, host=host)
        self.executor = build_executor(
            log=self.log,
            outbox=self.outbox,
            clock=world.clock,
            codec=CODEC,
            catalog=SimulatedCatalog(),
            model=self.model,
            tools={"inline": self.tools},
            claimed={"process": self.processes},
            settings=world.settings(self.name),
            topic="run-events",
            tell=world.watch.told,
        )
        self.executor.writer.new_id = world.new_id
        self.executor.open()


@dataclass
class Totals:
    """What a seed, or all of them, met: a simulation that never meets a fault proves nothing about it."""

    records: int = 0
    runs: int = 0
    voids: int = 0
    without_effect: int = 0
    late_reports: int = 0
    takeovers: int = 0
    checkpoints: int = 0
    adopted: int = 0
    parked: int = 0
    unparked: int = 0
    crashes: int = 0
    zombies: int = 0
    unknown_appends: int = 0
    lost_appends: int = 0
    truncations: int = 0
    early_cancels: int = 0
    children: int = 0
    approvals: int = 0
    claims: int = 0
    pauses: int = 0
    lost_disks: int = 0
    replays: int = 0

    def add(self, other: "Totals") -> None:
        for name in vars(self):
            setattr(self, name, getattr(self, name) + getattr(other, name))


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.calm = False
        self.totals = Totals()
        self.clock = SimulatedClock()
        self.kafka = MemoryKafka(self.rng.choice((1, 1, 2)), self.clock.broker_ms)
        self.watch = Watch(self)
        self.people = HeaderWriter("/simulation/people")
        self.next_id = 0
        self.hosts = (Host("a"), Host("b"))
        self.requests_read = 0  # of those that runs made
        self.checkpoint_records = self.rng.choice((3, 6, 15, 100_000))
        self.runs = [f"run-{number}" for number in range(self.rng.choice((3, 3, 4)))]
        self.unasked = list(self.runs)
        self.closed: set[str] = set()
        self.wires: list[MemoryRunLog] = []  # of dead processes: what was on the wire may still land
        self.zombies: list[tuple[int, MemoryRunLog]] = []
        self.names = [f"e{number}" for number in range(self.rng.choice((2, 2, 3)))]
        self.processes = [Process(self, name) for name in self.names]
        for number in range(len(self.kafka.partitions)):
            self.kafka.assign(number, self.rng.choice(self.processes).log)

    def settings(self, name: str) -> ExecutorSettings:
        return ExecutorSettings(
            name=name,
            session_timeout_ms=SESSION_MS,
            commit_interval_ms=300,
            checkpoint_records=self.checkpoint_records,
            finished_memory_ms=FINISHED_MEMORY_MS,
        )

    def new_id(self) -> str:
        self.next_id += 1
        if self.next_id > IDS_MAX:
            raise Broken("endless", f"{IDS_MAX} events, and no end")
        return f"i{self.next_id}"

    def is_calm(self) -> bool:
        return self.calm

    # ---- the whole of it

    def run(self) -> Totals:
        """From the first record to the last completion. Raises Broken."""
        for _ in range(CHAOS_STEPS):
            self.chaos()
            self.watch.after_step()
        self.become_calm()
        for number in range(CALM_STEPS_MAX):
            self.calm_step(number)
            self.watch.after_step()
            if self.watch.all_ended() and self.is_quiet():
                break
        else:
            raise Broken("stuck", "; ".join(self.watch.unended()))
        self.watch.at_the_end()
        self.count()
        return self.totals

    def chaos(self) -> None:
        """One thing happens."""
        self.adopt_orphans()
        dice = self.rng.random()
        if dice < 0.45:
            self.step(self.rng.choice(self.processes))
        elif dice < 0.62:
            self.land_some()
        elif dice < 0.70:
            self.pass_time()
        elif dice < 0.72:
            self.take_requests()
        elif dice < 0.80:
            self.answer_model()
        elif dice < 0.89:
            self.report_tool()
        elif dice < 0.95:
            self.somebody_speaks()
        else:
            self.misfortune()

    def step(self, process: Process) -> None:
        process.log.batch_max = None if self.calm else self.rng.choice((None, None, 1, 2, 5))
        try:
            process.executor.step(0)
        except Killed:
            self.crash(process)
        else:
            self.watch.executor_stepped(process)

    # ---- Kafka

    def land_some(self) -> None:
        if self.wires and self.rng.random() < 0.3:
            wire = self.rng.choice(self.wires)
            wire.land(self.rng.choice((1, None)))
            if not wire.queue:
                self.wires.remove(wire)
        process = self.rng.choice(self.processes)
        process.log.land(self.rng.choice((1, 2, 4, None, None, None)))
        if process.outbox.waiting:
            dice = self.rng.random()
            process.outbox.settle(landed=dice < 0.92, ok=dice < 0.85)

    def pass_time(self) -> None:
        jump_ms = self.rng.choice((1, 20, 100, 300, 700, 1_500, 3_100, 5_100, 13_000))
        if self.rng.random() < 0.03:
            jump_ms = 40_000
        if jump_ms > LONG_JUMP_MS:  # a producer gives up sooner than this: nothing stays unsent for so long
            for process in self.processes:
                process.log.land()
            for wire in self.wires:
                wire.land()
            self.wires.clear()
        self.clock.now_ms += jump_ms
        if self.rng.random() < 0.04:
            self.watch.stepped_back = True
            self.clock.broker_behind_ms = self.rng.choice((500, 4_000))
        elif self.rng.random() < 0.3:
            self.clock.broker_behind_ms = 0

    # ---- models and tools

    def answer_model(self) -> None:
        process = self.rng.choice(self.processes)
        if process.model.waiting and self.rng.random() < 0.9:
            process.model.answer(self.rng.choice(list(process.model.waiting)))

    def report_tool(self) -> None:
        process = self.rng.choice(self.processes)
        tools = self.rng.choice((process.tools, process.processes))
        if tools.waiting and self.rng.random() < 0.9:
            dispatch = self.rng.choice(list(tools.waiting))
            tools.report(dispatch, again=self.rng.random() < 0.15)

    # ---- people

    def say(self, run_id: str, event: Fact) -> None:
        name = type(event).__name__
        headers = self.people.fact(name, self.new_id(), self.clock.wall_ms())
        self.kafka.produce(run_id, CODEC.encode(event), headers)

    def somebody_speaks(self) -> None:
        rng = self.rng
        run_id = rng.choice(self.runs)
        dice = rng.random()
        if self.unasked and (dice < 0.5 or self.next_id > 20):
            self.ask(self.unasked.pop(rng.randrange(len(self.unasked))))
        elif dice < 0.68:
            self.totals.early_cancels += run_id in self.unasked
            self.say(run_id, CancelRequested(command_id=f"cancel-{rng.randrange(3)}", reason="changed my mind"))
        elif dice < 0.82:
            number = rng.randrange(6)
            self.say(run_id, MessageReceived(command_id=f"m{number}", text=f"message {number} to {run_id}"))
        elif dice < 0.85:
            self.close(run_id)
        elif dice < 0.87:
            command: Fact = self.rng.choice((PauseRequested, ResumeRequested))(command_id=self.new_id())
            self.say(run_id, command)
        elif dice < 0.93:
            self.answer_people(self.rng.choice(self.processes))
        elif run_id not in self.unasked and self.watch.may_ask_again(run_id, INTAKE_DELAY_MS):
            self.ask(run_id)

    def answer_people(self, process: Process) -> None:
        """Somebody looks at the runs of a process, and says what they wait for; sometimes about what was never shown."""
        for partition in process.executor.ownership.partitions.values():
            for run in list(partition.runs.values()):
                for call in open_calls(run.state):
                    if call.waits_for == "approval":
                        shown = "other" if not self.calm and self.rng.random() < 0.2 else call.arguments_sha256
                        approved = self.rng.random() < 0.7
                        self.say(
                            run.state.run_id,
                            ApprovalDecided(
                                command_id=self.new_id(),
                                approval=call.approval,
                                arguments_sha256=shown,
                                approved=approved,
                            ),
                        )
                    elif call.waits_for == "person" and run.state.reply is not None:
                        self.say(
                            run.state.run_id,
                            QuestionAnswered(
                                command_id=self.new_id(),
                                model_call=run.state.reply.model_call,
                                position=call.position,
                                text=f"answer {self.next_id}",
                            ),
                        )

    def take_requests(self) -> None:
        """The intake: what runs asked for becomes facts, in order; a task that has ended is not begun again."""
        for task_id, value, _ in self.kafka.requests[self.requests_read :]:
            event = CODEC.decode(value)
            if isinstance(event, TaskCancelled):
                self.say(task_id, CancelRequested(command_id=f"stop-{task_id}", reason=event.reason))
            elif isinstance(event, TaskRequested) and self.watch.may_ask_again(task_id, INTAKE_DELAY_MS):
                if task_id not in self.runs:
                    self.runs.append(task_id)
                    self.totals.children += 1
                given = {name: getattr(event, name) for name in ("agent", "input", "limits", "parent", "depth")}
                self.say(task_id, RunRequested(task_id=task_id, **given))
        self.requests_read = len(self.kafka.requests)

    def close(self, run_id: str) -> None:
        self.closed.add(run_id)
        self.say(run_id, CloseRequested(command_id="close"))

    def ask(self, run_id: str) -> None:
        rng = Random(f"{self.seed}/{run_id}")  # a repeated request is the same request
        dice = rng.random()
        request = RunRequested(
            task_id=run_id,
            agent="nobody" if dice < 0.04 else "agent",
            input=f"do {run_id}",
            interactive=rng.random() < 0.3,
            problem="malformed" if dice > 0.97 else None,
            not_before_ms=1_003_000 if rng.random() < 0.1 else None,
            expires_at_ms=1_000_000 + rng.choice((5_000, 60_000)) if rng.random() < 0.1 else None,
            limits={"tool_calls": 2} if rng.random() < 0.1 else {},
        )
        self.say(run_id, request)

    # ---- misfortune

    def misfortune(self) -> None:
        happens: Callable[[], None] = self.rng.choice(
            (
                self.crash_one,
                self.crash_one,
                self.rebalance,
                self.make_zombie,
                self.make_zombie,
                self.wake_zombie,
                self.fail_append,
                self.fail_append,
                self.fail_append,
                self.garble,
                self.speak_another_version,
                self.unpark_one,
                self.truncate,
                self.lose_disk,
            )
        )
        happens()

    def crash_one(self) -> None:
        self.crash(self.rng.choice(self.processes))

    def crash(self, process: Process) -> None:
        self.totals.crashes += 1
        self.collect(process)
        owned = [p.number for p in self.kafka.partitions if p.owner is process.log]
        for completion in list(process.outbox.waiting):
            if self.rng.random() < 0.5:
                process.outbox.settle(landed=True, ok=False)
            else:
                process.outbox.waiting.remove(completion)
        process.log.crash(keep=self.rng.randrange(len(process.log.queue) + 1))
        if process.log.queue:
            self.wires.append(process.log)
        self.zombies = [(number, log) for number, log in self.zombies if log is not process.log]
        self.processes[self.processes.index(process)] = Process(self, process.name)
        for number in owned:
            self.give(number, self.rng.choice(self.processes).log)

    def give(self, number: int, log: MemoryRunLog) -> None:
        """Assign a partition; a zombie of it hears first that it lost it."""
        self.end_zombies(lambda one, other: one == number and other is log)
        if self.kafka.partitions[number].owner is None:
            self.kafka.assign(number, log)

    def adopt_orphans(self) -> None:
        """A partition whose next owner died before it got it."""
        for partition in self.kafka.partitions:
            if partition.owner is None:
                self.give(partition.number, self.rng.choice(self.processes).log)

    def end_zombies(self, wanted: Callable[[int, MemoryRunLog], bool]) -> None:
        for number, log in list(self.zombies):
            if wanted(number, log):
                self.zombies.remove((number, log))
                log.notify_revoked(number, lost=True)

    def rebalance(self) -> None:
        number = self.rng.randrange(len(self.kafka.partitions))
        log = self.rng.choice(self.processes).log
        self.end_zombies(lambda one, other: one == number and other is log)
        self.kafka.move(number, log)

    def make_zombie(self) -> None:
        number = self.rng.randrange(len(self.kafka.partitions))
        log = self.rng.choice(self.processes).log
        if self.kafka.partitions[number].next_owner is not None:
            return  # its owner is letting go already
        self.end_zombies(lambda one, other: one == number and other is log)
        before = self.kafka.take_over(number, log)
        if before is not None:
            self.totals.zombies += 1
            self.zombies.append((number, before))

    def wake_zombie(self) -> None:
        self.end_zombies(lambda number, log: self.rng.random() < 0.7)

    def fail_append(self) -> None:
        process = self.rng.choice(self.processes)
        if not process.log.queue:
            return
        index = self.rng.randrange(len(process.log.queue))
        if self.rng.random() < 0.5:
            self.totals.lost_appends += 1
            process.log.lose(index)
        else:
            self.totals.unknown_appends += 1
            process.log.report_failed(index)

    def garble(self) -> None:
        """A record that is no event, one whose body is none, one whose body is another's."""
        run_id = self.rng.choice(self.runs)
        headers = self.people.fact("ToolReported", self.new_id(), self.clock.wall_ms())
        value, given = self.rng.choice(
            (
                (b"junk", None),
                (b"\xc3\x01junk", headers),
                (CODEC.encode(CloseRequested(command_id="x")), headers),
                (None, headers),
            )
        )
        self.kafka.produce(run_id, value, given)

    def speak_another_version(self) -> None:
        """An executor of a newer version decided something that this one does not know."""
        run_id = self.rng.choice(self.runs)
        run = self.watch.view(run_id)
        if run is None or not run.last or run.is_reported or self.rng.random() < 0.5:
            return
        headers = self.people.decision(
            "RunTeleported",
            self.new_id(),
            self.clock.wall_ms(),
            follows=run.last,
            revision=run.revision + 1,
            phase=run.phase or "calling_model",
        )
        self.kafka.produce(run_id, b"\xc3\x0112345678where", headers)

    def unpark_one(self) -> None:
        for run_id in self.watch.parked():
            mode = self.rng.choice(("retry", "skip"))
            self.say(run_id, UnparkRequested(command_id=self.new_id(), mode=mode))
            return

    def lose_disk(self) -> None:
        """A machine loses what was on it: files and processes."""
        host = self.rng.choice(self.hosts)
        self.totals.lost_disks += bool(host.disks)
        host.disks.clear()
        host.running.clear()

    def truncate(self) -> None:
        """Retention takes what nothing depends on."""
        for partition in self.kafka.partitions:
            keep = self.watch.needed_from(partition.number)
            if keep > partition.start and not self.zombies:
                self.totals.truncations += 1
                self.kafka.truncate(partition.number, keep)

    # ---- calm

    def become_calm(self) -> None:
        self.calm = True
        self.clock.broker_behind_ms = 0
        self.end_zombies(lambda number, log: True)
        for wire in self.wires:
            wire.land()
        while self.unasked:
            self.ask(self.unasked.pop())
        for run_id in self.runs:
            self.close(run_id)
            self.say(run_id, ResumeRequested(command_id=self.new_id()))

    def calm_step(self, number: int) -> None:
        """Everything works: what waits is answered, what is owed is paid."""
        before = self.next_id
        self.adopt_orphans()
        for process in self.processes:
            for call in list(process.model.waiting):
                process.model.answer(call)
            for tools in (process.tools, process.processes):
                for dispatch in list(tools.waiting):
                    tools.report(dispatch)
            self.take_requests()
            if number % 5 == 0:
                self.answer_people(process)
            process.log.land()
            while process.outbox.waiting:
                process.outbox.settle()
            self.step(process)
        if number % 10 == 9:
            for run_id in self.watch.parked():
                self.say(run_id, UnparkRequested(command_id=self.new_id(), mode="skip"))
        self.clock.now_ms += 10 if self.next_id > before else 2_000

    def is_quiet(self) -> bool:
        return not any(p.log.queue or p.outbox.waiting for p in self.processes) and self.watch.is_caught_up()

    # ---- counting

    def collect(self, process: Process) -> None:
        counts, totals = process.executor.counts, self.totals
        totals.voids += counts.voids
        totals.without_effect += counts.without_effect
        totals.late_reports += counts.late_reports
        totals.checkpoints += counts.checkpoints
        totals.parked += counts.parked
        totals.takeovers += process.executor.ownership.takeovers

    def count(self) -> None:
        for process in self.processes:
            self.collect(process)
        self.totals.runs += len(self.runs)
        self.totals.records += sum(partition.end for partition in self.kafka.partitions)
        self.totals.adopted += self.watch.adopted
        self.totals.unparked += self.watch.unparked
        records = [record for records in self.watch.log.records for record in records if record is not None]
        self.totals.approvals += sum(record.type == "ApprovalDecided" for record in records)
        self.totals.claims += sum(record.type == "ToolClaimed" for record in records)
        self.totals.replays += sum(record.type == "ReplayStarted" for record in records)
        self.totals.pauses += sum(record.type == "PauseRequested" for record in records)
