"""The rules of the house as functions from a source to what breaks them. Tables first, code after.

Every finding reads `file:line: rule: what to do`. A new exception to a rule goes into its table, with its reason.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

# What may be imported of ours, by the longest prefix of the path: main → shells → ports → core → events.
LAYERS = {
    "events/": ("events",),
    "core/": ("core", "events"),
    "ports.py": ("ports", "core", "events"),
    "settings.py": ("settings", "ports"),
    "installation.py": ("settings", "adapters", "ports", "events"),  # what the mains share
    "adapters/": ("adapters", "ports", "core", "events"),
    "adapters/kafka_intake.py": ("adapters", "ports", "events", "intake.ports"),  # intake's own port is beside it
    "executor/": ("executor", "ports", "core", "events"),
    "intake/": ("intake", "ports", "core.limits", "events"),
    "adapters/kafka_gateway.py": ("adapters", "ports", "events", "gateway.ports"),
    "gateway/": ("gateway", "intake.requests", "ports", "core", "events"),  # a task is checked as intake checks it
    "projector/": ("projector", "ports", "core", "events"),
    "watcher/": ("watcher", "ports", "core", "events"),
    "adapters/process": ("adapters", "ports", "core", "events", "runner"),  # what the executor and the runner agree on
    "adapters/tool_files.py": ("adapters", "ports", "core", "events", "runner"),
    "runner/": ("runner",),
    "client/": ("client", "core.live_text", "events"),  # what a reader shows: the same rule for whoever shows it
    "dev/": ("dev", "adapters", "ports", "core", "events", "executor.main", "settings"),
    "cli/": ("",),
}
MAIN = ("executor/main.py", "intake/main.py", "gateway/main.py", "projector/main.py", "watcher/main.py")
NEVER = {  # stricter than the layer: these read, they do not decide
    "projector/": ("core.decide", "core.decide_model", "core.decide_tools"),
    "gateway/": ("core.decide", "core.decide_model", "core.decide_tools"),
}
# Which file may use which library. A library in a second place needs a reason to stand here.
LIBRARIES = {
    "events/codec.py": {"fastavro"},
    "settings.py": {"pydantic"},
    "gateway/app.py": {"starlette"},
    "gateway/bodies.py": {"pydantic", "starlette"},  # checks what came
    "gateway/handlers.py": {"pydantic", "starlette"},
    "gateway/main.py": {"uvicorn"},
    "gateway/models.py": {"pydantic"},  # the types of bodies and answers
    "gateway/openapi.py": {"pydantic"},  # their JSON Schema
    "gateway/routes.py": {"pydantic"},
    "adapters/agents.py": {"pydantic"},  # checks agent files
    "adapters/arguments.py": {"fastjsonschema"},
    "adapters/chat_clients.py": {"openai", "httpx2"},  # httpx2 is openai's own transport: time limits are set there
    "adapters/chat_errors.py": {"openai"},
    "adapters/inline_tools.py": {"pydantic"},  # arguments of Python tools, by their type hints
    "adapters/kafka.py": {"confluent_kafka"},
    "adapters/kafka_client.py": {"confluent_kafka"},
    "adapters/kafka_gateway.py": {"confluent_kafka"},
    "adapters/kafka_intake.py": {"confluent_kafka"},
    "adapters/openai_chat.py": {"openai", "httpx2"},
    "adapters/tool_files.py": {"pydantic"},  # checks tool files
    "adapters/toolbox.py": {"pydantic"},  # JSON Schema of Python tools
    "adapters/topics.py": {"confluent_kafka"},
    "cli/doctor.py": {"confluent_kafka"},  # looks at the cluster, not at runs
    "dev/bench.py": {"workload"},  # a program that a benchmark is given
    "dev/bench_client.py": {"confluent_kafka"},  # a client as a user would write it
    "dev/bench_executor.py": {"workload"},
    "dev/bench_log.py": {"confluent_kafka"},
    "dev/demo.py": {"confluent_kafka"},
    "dev/model_server.py": {"uvicorn"},
    "dev/script.py": {"pydantic"},
}
PURE = ("core/", "events/")
# What a pure file may use of the standard library: whatever is not here has a clock, a die, a disk or a thread in it.
PURE_LIBRARY = frozenset({
    "ast", "bisect", "collections", "copy", "dataclasses", "enum", "functools", "hashlib", "io", "itertools", "json", "math",
    "operator", "re", "struct", "types", "typing", "zlib",
})  # fmt: skip
PURE_EXCEPTIONS = {
    "events/envelope.py": {
        "os.urandom": "new event ids are random bits: the one die of the contract",
        "os.register_at_fork": "a forked process must not draw the same ids",
        "datetime.UTC": "formats a time that it is given",
        "datetime.datetime": "formats a time that it is given",
    },
    "events/codec.py": {
        "importlib.resources.files": "schemas are read once, when a codec is made",
        "importlib.resources.abc.Traversable": "the same",
        "pathlib.Path": "the same, in a source tree",
    },
}
IMPURE_CALLS = frozenset({"open", "print", "input", "breakpoint"})
IMPURE_NAMES = frozenset({"now", "utcnow", "today", "environ", "getenv"})
# File and function sizes at which to stop; above, split by idea.
CORE_LINES, PRODUCT_LINES, TEST_LINES, FUNCTION_LINES, PARAMETERS = 250, 400, 600, 60, 6
SIZE_EXCEPTIONS = {
    "services/runfold/events/types.py": "a list of records: one file is what a reader of the topic wants",
    "services/runfold/executor/loop.py": "one loop, read from top to bottom; its parts are in files of their own",
    "envelope.py:decision": "one parameter for each header",
    "envelope.py:read_envelope": "one parameter for each field of a Kafka record",
    "build.py:build_executor": "the composition root: one parameter for each port",
    "main.py:kafka_executor": "the composition root of the service: one parameter for each thing that is handed in",
}
# Where anything at all may be caught, and what becomes of it.
WIDE_EXCEPT = {
    "adapters/blobs.py": "removes the half-written file, then raises on",
    "adapters/inline_tools.py": "whatever a user's tool raises is its outcome",
    "adapters/openai_chat.py": "whatever a model call raises is its outcome",
    "adapters/process_watch.py": "what one call meets must not stop the threads that serve all calls",
    "core/restore.py": "one run that cannot be rebuilt must not stop its partition",
    "dev/embedded_kafka.py": "stops the broker that did not start, then raises on",
    "events/codec.py": "fastavro raises whatever a bad byte leads to",
    "gateway/reading.py": "a bug that one run meets must not stop the reader of all",
    "executor/loop.py": "a bug that one run meets must not stop its partition",
    "runner/files.py": "removes the half-written file, then raises on",
    "runner/function.py": "whatever a user's function raises is its outcome",
    "runner/launch.py": "a forked child says what happened and ends, or it would go on as a second runner",
}
MAY_PRINT = ("cli/", "dev/")


@dataclass(frozen=True)
class Source:
    """One Python file."""

    path: str  # from the top of the tree
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def inside(self) -> str:
        """The path in the package; empty for a test."""
        return self.path.removeprefix("services/runfold/") if self.is_product else ""

    @property
    def is_product(self) -> bool:
        return self.path.startswith("services/runfold/")

    def finding(self, line: int, rule: str, advice: str) -> str:
        return f"{self.path}:{line}: {rule}: {advice}"

    def imports(self) -> Iterator[tuple[int, str]]:
        """Every imported name in full: `from a.b import c` is `a.b.c`."""
        for node in ast.walk(self.tree):
            match node:
                case ast.Import(names=names):
                    yield from ((node.lineno, alias.name) for alias in names)
                case ast.ImportFrom(module=str(module), names=names):
                    yield from ((node.lineno, f"{module}.{alias.name}") for alias in names)


def is_under(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(prefix == "" or name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def broken_layers(source: Source) -> Iterator[str]:
    """Imports that point the wrong way."""
    where = max((key for key in LAYERS if source.inside.startswith(key)), key=len, default=None)
    allowed = ("",) if source.inside in MAIN else LAYERS[where] if where is not None else ()
    never = NEVER.get(f"{source.inside.partition('/')[0]}/", ())
    for line, name in source.imports():
        module = name.removeprefix("runfold.")
        if name.startswith("runfold.") and (not is_under(module, allowed) or is_under(module, never)):
            yield source.finding(
                line, "imports point one way", f"{source.inside} may not import {name}; ask a port for it"
            )


def broken_libraries(source: Source) -> Iterator[str]:
    """Outside libraries in a file that does not own them."""
    for line, name in source.imports():
        library = name.partition(".")[0]
        if library in sys.stdlib_module_names or library in ("runfold", *LIBRARIES.get(source.inside, ())):
            continue
        yield source.finding(line, "an adapter owns its library", f"{library} is not for this file; see LIBRARIES")


def impure(source: Source) -> Iterator[str]:
    """A clock, randomness, the environment, logging, threads or I/O in the core or the contract."""
    if not source.inside.startswith(PURE):
        return
    named = PURE_EXCEPTIONS.get(source.inside, {})
    for line, name in source.imports():
        library = name.partition(".")[0]
        if library in sys.stdlib_module_names and library not in PURE_LIBRARY and name not in named:
            yield source.finding(line, "pure files do no I/O", f"{name}: hand the value in from a shell")
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            yield source.finding(
                node.lineno, "pure files do no I/O", f"{node.func.id}(): hand the value in from a shell"
            )
        if isinstance(node, ast.Attribute) and node.attr in IMPURE_NAMES:
            yield source.finding(node.lineno, "pure files do no I/O", f".{node.attr}: hand the value in from a shell")


def oversized(source: Source) -> Iterator[str]:
    """Files and functions beyond the size at which to stop, parameters beyond what a reader keeps in mind."""
    lines_max = CORE_LINES if source.inside.startswith("core/") else PRODUCT_LINES if source.is_product else TEST_LINES
    lines = source.text.count("\n")
    if lines > lines_max and source.path not in SIZE_EXCEPTIONS:
        yield source.finding(1, f"files stop at {lines_max} lines", f"{lines}: split by idea")
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > FUNCTION_LINES:
            yield source.finding(node.lineno, f"functions stop at {FUNCTION_LINES} lines", f"{node.name} has {length}")
        in_order = [arg for arg in node.args.posonlyargs + node.args.args if arg.arg not in ("self", "cls")]
        count = len(in_order) + len(node.args.kwonlyargs)
        named = f"{source.path.rpartition('/')[2]}:{node.name}"
        if source.is_product and count > PARAMETERS and named not in SIZE_EXCEPTIONS:
            yield source.finding(
                node.lineno, f"at most {PARAMETERS} parameters", f"{node.name} has {count}: make a value"
            )


def wide_excepts(source: Source) -> Iterator[str]:
    """Handlers that catch anything, and handlers that say nothing."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ExceptHandler) or not source.is_product:
            continue
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        wide = any(n is None or (isinstance(n, ast.Name) and n.id in ("Exception", "BaseException")) for n in caught)
        if wide and source.inside not in WIDE_EXCEPT:
            yield source.finding(node.lineno, "no wide except", "name what can happen, or give WIDE_EXCEPT a reason")
        if wide and all(isinstance(statement, ast.Pass) for statement in node.body):
            yield source.finding(node.lineno, "no silent except", "say what becomes of it")


TYPE_COMMENT = re.compile(r"#\s*type:\s*ignore(?P<code>\[[^\]]+\])?(?P<rest>.*)")
NOQA_COMMENT = re.compile(r"#\s*noqa(?P<code>:\s*[A-Z]+\d+(?:\s*,\s*[A-Z]+\d+)*)?(?P<rest>.*)")
TODO = re.compile(r"\b(TODO|FIXME|XXX)\b(?!.*#\d+)")
CODE = re.compile(r"^#\s*(?:\w[\w.\[\]]* [-+*/|&]?= \S.*|(?:def|class|if|for|while|with|elif|try|else)\b.*:|import \w+|from [\w.]+ import .*|return\b.*[\w)\]]|\w[\w.]*\([^)]*\))$")  # fmt: skip


def comments(source: Source) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def broken_comments(source: Source) -> Iterator[str]:
    """Checks switched off without a code and a reason, promises without a number, code that is switched off."""
    for line, text in comments(source):
        for pattern, rule in ((TYPE_COMMENT, "no bare type: ignore"), (NOQA_COMMENT, "no bare noqa")):
            found = pattern.search(text)
            if found is not None and not found["code"]:
                yield source.finding(line, rule, "name the code that is meant")
            elif found is not None and source.is_product and not found["rest"].strip(" #()"):
                yield source.finding(line, rule, "say the reason behind it")
        if TODO.search(text):
            yield source.finding(line, "no promise without a number", "write `TODO #123`, or do it")
        if CODE.match(text) and _is_code(text.removeprefix("#").strip()):
            yield source.finding(line, "no commented-out code", "delete it: git remembers")


def _is_code(text: str) -> bool:
    try:
        ast.parse(text if not text.endswith(":") else f"{text} pass")
    except SyntaxError:
        return False
    return True


def forbidden_statements(source: Source) -> Iterator[str]:
    """Output that nobody asked for, and checks that vanish under `python -O`."""
    for node in ast.walk(source.tree):
        if not source.is_product:
            return
        prints = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        if isinstance(node, ast.Call) and prints and not source.inside.startswith(MAY_PRINT):
            yield source.finding(node.lineno, "no print in product code", "hand in a `tell`, or raise")
        if isinstance(node, ast.Assert):
            yield source.finding(node.lineno, "no assert in product code", "raise InvariantViolation")


def missing_docstrings(source: Source) -> Iterator[str]:
    """Every file says what it is for, every test what it promises."""
    if source.text.strip() and ast.get_docstring(source.tree) is None:
        yield source.finding(1, "a file says what it is for", "begin with a docstring")
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and ast.get_docstring(node) is None:
            yield source.finding(node.lineno, "a test says what it promises", f"give {node.name} one line of docstring")


RULES: tuple[Callable[[Source], Iterator[str]], ...] = (
    broken_layers,
    broken_libraries,
    impure,
    oversized,
    wide_excepts,
    broken_comments,
    forbidden_statements,
    missing_docstrings,
)
PRODUCT_ONLY = frozenset({broken_layers, broken_libraries})
