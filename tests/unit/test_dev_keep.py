"""`runfold dev` without its processes: what it starts, and when it starts it again."""

from pathlib import Path

from runfold.dev.keep import PAUSE_S, PAUSE_S_MAX, SETTLED_S, Kept, wanted


class Ending(Kept):
    """A service whose process has always just ended."""

    def start(self, now_s: float) -> None:
        self.started_s, self.again_at_s = now_s, None
        self.process = self  # type: ignore[assignment]

    def poll(self) -> int:
        return 1


def test_what_keeps_ending_is_started_ever_more_slowly(tmp_path: Path) -> None:
    """Each end is told once; one that ran for a while begins with a short pause again."""
    service = Ending("intake", (), {}, tmp_path)
    service.start(0)
    now_s, pauses = 0.0, []
    for _ in range(9):
        assert "intake ended with status 1" in service.look(now_s)
        assert service.look(now_s) == ""
        assert service.again_at_s is not None
        pauses.append(service.again_at_s - now_s)
        now_s = service.again_at_s
        assert service.look(now_s) == ""
        assert service.started_s == now_s
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (PAUSE_S, PAUSE_S_MAX)
    assert f"again in {PAUSE_S:g} s" in service.look(now_s + SETTLED_S)


def test_the_scripted_model_stands_in_for_one_that_is_not_named(tmp_path: Path) -> None:
    """What the user has set stays."""
    services, environment = wanted({"PATH": "x"}, tmp_path, "127.0.0.1:1")
    assert [service.name for service in services] == ["model", "intake", "executor", "gateway"]
    assert environment["OPENAI_BASE_URL"].endswith(f":{services[0].command[-1]}/v1")
    given = {"OPENAI_BASE_URL": "https://api.example/v1", "RUNFOLD_TOOLS": "mine:TOOLS", "OPENAI_API_KEY": "key"}
    services, environment = wanted(given, tmp_path, "127.0.0.1:1")
    assert [service.name for service in services] == ["intake", "executor", "gateway"]
    assert given.items() <= environment.items()
    assert environment["KAFKA_BOOTSTRAP_SERVERS"] == "127.0.0.1:1"
