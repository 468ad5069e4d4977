"""Names of the package: loaded on first use, typed for those who import them."""

import pickle
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import get_args

import pytest

import vidspec
from vidspec import errors
from vidspec.events import events

ERRORS = {name: kind for name, kind in vars(errors).items() if name.endswith("Error")}


def test_importing_the_package_loads_nothing_heavy():
    code = (
        "import sys, vidspec; dir(vidspec); from vidspec import VideoError; "
        "print(sorted({'torch', 'transformers', 'numpy', 'pydantic', 'vidspec.captioner'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_every_name_can_be_imported():
    for name in vidspec.__all__:
        assert getattr(vidspec, name) is not None and name in dir(vidspec)
    assert {name for name in vidspec.__all__ if name.endswith("Error")} == set(ERRORS)
    assert vidspec.VideoError is errors.VideoError
    with pytest.raises(AttributeError, match="no attribute 'Caption_'"):
        vidspec.Caption_  # noqa: B018


def test_names_that_the_pages_import_are_listed():
    pages = [*(Path(__file__).parents[1] / "docs").rglob("*.md"), Path(__file__).parents[1] / "README.md"]
    lines = re.findall(r"^from vidspec import ([\w, ]+)$", "\n".join(page.read_text() for page in pages), re.MULTILINE)
    named = {name.strip() for line in lines for name in line.split(",")}
    modules = {path.stem for path in files("vidspec").iterdir()}
    assert "Captioner" in named and named <= {*vidspec.__all__, *modules}
    assert {kind.__name__ for kind in get_args(events.Event)} <= {*vidspec.__all__}


def test_it_has_type_hints():
    assert files("vidspec").joinpath("py.typed").is_file()


def test_every_error_can_be_pickled():
    for name, kind in ERRORS.items():
        error = errors.ClosedError() if name == "ClosedError" else kind("a", hint="b", stage="c")
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.stage) == (type(error), str(error), error.stage)
