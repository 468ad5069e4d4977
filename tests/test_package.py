"""Names of the package: loaded on first use, typed for those who import them."""

import subprocess
import sys
from importlib.resources import files

import pytest

import vidspec
from vidspec import errors


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
    assert {name for name in vidspec.__all__ if name.endswith("Error")} == set(errors.__all__)
    assert vidspec.VideoError is errors.VideoError
    with pytest.raises(AttributeError, match="no attribute 'Caption_'"):
        vidspec.Caption_  # noqa: B018


def test_it_has_type_hints():
    assert files("vidspec").joinpath("py.typed").is_file()
