"""Tools declared in a file: what becomes of each kind, and what is refused where it is declared."""

from pathlib import Path

import pytest

from runfold.adapters.tool_files import load_tool_file
from runfold.adapters.toolbox import Toolbox
from runfold.ports import Permanent

HEAD = '[[tool]]\nname = "t"\nparameters = { type = "object" }\n'


def loaded(folder: Path, text: str) -> Toolbox:
    path = folder / "tools.toml"
    path.write_text(HEAD + text)
    return Toolbox(load_tool_file(path))


@pytest.mark.requirement("R18")
def test_an_external_tool_is_somebody_elses(tmp_path: Path) -> None:
    """Nothing of ours runs for it; whoever carries it out reports."""
    (spec,) = loaded(tmp_path, "external = true\ntime_limit_s = 90").specs()
    assert (spec.tool_class, spec.time_limit_ms) == ("external", 90_000)


def test_a_command_is_found_beside_its_file(tmp_path: Path) -> None:
    """Wherever the executor was started."""
    toolbox = loaded(tmp_path, 'command = ["./run.sh"]')
    process = toolbox.tools["t"].process
    assert process is not None and process.command == (str(tmp_path / "run.sh"),)


@pytest.mark.requirement("R25")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('external = true\ncommand = ["x"]', "leave out command"),
        ('command = ["x"]\napproval = "price >"', "approval 'price >'"),
        ('command = ["x"]\napproval = "open(path)"', "is not allowed"),
        ("", "one of: a command, a function"),
        ('command = ["x"]\nfunction = "a:b"', "one of: a command, a function"),
        ('command = ["x"]\ncolour = "red"', "tool.0.colour"),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(tmp_path: Path, text: str, said: str) -> None:
    """With the file's name and what to change, not at the first call."""
    with pytest.raises(Permanent, match=said):
        loaded(tmp_path, text)
