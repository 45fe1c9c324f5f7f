"""`scripts/setup` names what the machine lacks, in one line, before anything is made."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOBODY = "#!/bin/sh\necho 1000\n"  # of `id`: without it the script would install packages here


def setup(folder: Path, java: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it as somebody who is not root, on a machine whose java says this."""
    programs = {"id": NOBODY, "mvn": "#!/bin/sh\n", "java": f"#!/bin/sh\necho '{java}' >&2\n"}
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    given = {name: value for name, value in os.environ.items() if name not in ("KAFKA_BOOTSTRAP_SERVERS", "JAVA_HOME")}
    return subprocess.run(
        [ROOT / "scripts" / "setup"],
        env={**given, "PATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "version",
    ['openjdk version "11.0.20" 2023-07-18', 'java version "1.8.0_392"', 'openjdk version "16.0.2"', "who knows"],
)
def test_a_java_that_is_too_old_is_said(tmp_path: Path, version: str) -> None:
    """Kafka's own error would be about a class file version, a minute later."""
    done = setup(tmp_path, version)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        "setup: java 17 or newer is missing: install openjdk-17-jdk-headless"
        " (Debian, Ubuntu: sudo apt-get install openjdk-17-jdk-headless)\n"
    )


@pytest.mark.parametrize(
    "version",
    [
        'openjdk version "17.0.9" 2023-10-17',
        'java version "21" 2023-09-19 LTS',
        'Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "17"\nOpenJDK Runtime Environment (build 17)',
    ],
)
def test_a_java_that_is_new_enough_is_taken(tmp_path: Path, version: str) -> None:
    """The answer is the environment's folder."""
    done = setup(tmp_path, version)
    assert (done.returncode, done.stderr) == (0, "")
    assert Path(done.stdout.strip(), "bin", "python").exists()


def test_somebody_elses_kafka_needs_no_java(tmp_path: Path) -> None:
    """KAFKA_BOOTSTRAP_SERVERS points at it."""
    assert setup(tmp_path, "who knows", KAFKA_BOOTSTRAP_SERVERS="kafka:9092").returncode == 0
