"""A command of research in this process, with what it prints."""

import importlib
from dataclasses import dataclass

import pytest


@dataclass
class Ran:
    code: int
    out: str
    err: str


@pytest.fixture
def command(capsys, monkeypatch, tmp_path):
    """Runs ``python -m research.NAME`` as often as asked, in a folder of the test's own."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)

    def run(name, *args):
        module = importlib.import_module(f"research.{name}")
        if hasattr(module, "__path__"):
            module = importlib.import_module(f"research.{name}.__main__")
        code = module.main(list(args))
        return Ran(code, *capsys.readouterr())

    return run
