"""Where the embedded broker's program comes from: Kafka's jars, resolved once by Maven into the user's cache.

The folder's name holds the hash of the pom, so that another version of it is another folder; it appears whole or not
at all (a folder beside it, then a rename).
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from importlib.resources import files
from pathlib import Path

from runfold.ports import Permanent

KAFKA_VERSION = "4.1.1"
JAVA_MIN = 17
FORMAT_TIMEOUT_S = 120.0
MAVEN_TIMEOUT_S = 600.0  # about 130 MB over a slow line
INSTALL = "apt-get install openjdk-17-jdk-headless maven (or start Kafka yourself and set KAFKA_BOOTSTRAP_SERVERS)"


def java() -> str:
    """The path of a Java that is new enough."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else None
    program = found or shutil.which("java")
    if program is None:
        raise Permanent(f"the embedded Kafka needs Java {JAVA_MIN} or newer: {INSTALL}")
    answer = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=False)
    version = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
    if version is None or int(version[1]) < JAVA_MIN:
        said = version[1] if version else "unknown"
        raise Permanent(f"the embedded Kafka needs Java {JAVA_MIN} or newer, {program} is {said}: {INSTALL}")
    return program


def jars() -> Path:
    """The folder of Kafka's jars, resolved now if it is not there yet."""
    pom = files("runfold.dev").joinpath("pom.xml").read_bytes()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "runfold"
    folder = cache / f"kafka-{KAFKA_VERSION}-{hashlib.sha256(pom).hexdigest()[:12]}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        _resolve(pom, folder)
    return folder


def formatted(program: str, libs: Path, properties: str) -> bytes:
    """What Kafka's StorageTool puts into a new log folder: the same each time, so it is asked once for these jars.

    (Starting its JVM for every broker cost as much as a third of the start.) `properties` has `{logs}` for the folder.
    """
    kept = libs.with_name(f"{libs.name}.checkpoint")
    if not kept.exists():
        with tempfile.TemporaryDirectory(dir=libs.parent, prefix=f"{libs.name}.") as name:
            work = Path(name)
            (work / "server.properties").write_text(properties.format(logs=work / "logs"), encoding="utf-8")
            quick = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
            command = [program, *quick, "-cp", f"{libs}/*", "kafka.tools.StorageTool", "format"]
            command += ["-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", str(work / "server.properties")]
            done = subprocess.run(command, capture_output=True, text=True, timeout=FORMAT_TIMEOUT_S, check=False)
            if done.returncode:
                said = (done.stderr or done.stdout).strip().splitlines()
                raise Permanent(f"Kafka's StorageTool failed: {said[-1] if said else done.returncode}")
            (work / "logs" / "bootstrap.checkpoint").replace(kept)
    return kept.read_bytes()


def _resolve(pom: bytes, folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise Permanent(f"the embedded Kafka needs Maven to fetch its jars: {INSTALL}")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.") as name:
        work = Path(name)
        (work / "pom.xml").write_bytes(pom)
        command = [maven, "-B", "-q", "-f", str(work / "pom.xml"), "dependency:copy-dependencies"]
        command += [f"-DoutputDirectory={work / 'libs'}", "-DincludeScope=runtime"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=MAVEN_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
        )
        if done.returncode:
            lines = [line for line in done.stdout.splitlines() if line.startswith("[ERROR]")]
            reason = lines[0].removeprefix("[ERROR] ") if lines else f"exit status {done.returncode}"
            raise Permanent(f"Maven could not fetch Kafka's jars; is its repository reachable? {reason[:300]}")
        try:
            (work / "libs").rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster, with the same jars
                raise
