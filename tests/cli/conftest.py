import json
import re
import sys
from types import ModuleType

import pytest

from tests.fake_captioner import FakeCaptioner, FakeReader
from vidspec import registry
from vidspec.cli import main

NAMES = {
    "pruning": ("attention", "none", "random", "uniform"),
    "drafting": ("model", "none"),
    "acceptance": ("exact",),
    "schedules": ("autoregressive", "parallel", "sequential"),
}


#: Messages count with ``counted``.
ONE_OF_MANY = re.compile(
    r"(?<![\w.,:/-])1 (\w+ )?(clip|file|input|frame|GPU|line|question|record|segment|shard|thread|token|video)s\b"
)


@pytest.fixture(autouse=True)
def isolated(monkeypatch, tmp_path):
    """Run without the user's folder, VIDSPEC_* variables and models, in a folder of the test's own."""
    import os

    for name in list(os.environ):
        if name.startswith("VIDSPEC_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "200")
    all_names = registry.Registry.names
    monkeypatch.setattr(registry.Registry, "names", lambda self: NAMES.get(self.part) or all_names(self))
    for name in ("vidspec.captioner",):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["vidspec.captioner"], "Captioner", FakeCaptioner, raising=False)
    monkeypatch.setattr("vidspec.events.trace.to_chrome", lambda trace: trace)
    monkeypatch.setattr("vidspec.runs.executors.local.ClipReader", FakeReader)
    monkeypatch.setattr("vidspec.models.hub.unreachable_reason", lambda: "")
    monkeypatch.setattr("vidspec.runs.inputs.drop_missing", lambda found, named: None)
    monkeypatch.setattr(FakeCaptioner, "made", [])
    monkeypatch.setattr(FakeCaptioner, "load_error", None)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)


class Ran:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def records(self):
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def options():
    """Further options of every ``vidspec caption`` of a test."""
    return ()


@pytest.fixture
def vidspec(capsys, options):
    """Runs a command line in this process: exit code, stdout, stderr."""

    def run(*args):
        code = main([args[0], *options, *args[1:]] if args[:1] == ("caption",) else args)
        captured = capsys.readouterr()
        if args[:1] not in (("merge",), ("report",)):
            assert not ONE_OF_MANY.search(captured.err), "a plural of one thing"
        return Ran(code, captured.out, captured.err)

    return run


@pytest.fixture
def real(monkeypatch, tmp_path):
    """The true captioner and registries in place of those that the other tests of commands use."""
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
