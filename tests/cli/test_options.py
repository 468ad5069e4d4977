"""Dataclasses whose fields are the options of commands."""

from dataclasses import dataclass
from inspect import signature
from typing import Annotated

import pytest
import typer

from vidspec.cli.app import app
from vidspec.cli.ask import SHARED
from vidspec.cli.options import flatten_options


@dataclass(frozen=True)
class Group:
    width: Annotated[int, typer.Option(help="A width.")] = 1
    form: Annotated[str, typer.Option("--format")] = "text"


def test_fields_become_options():
    @flatten_options()
    def command(path: str, *, group: Group, last: bool = False) -> tuple[str, Group, bool]:
        return path, group, last

    assert list(signature(command).parameters) == ["path", "width", "form", "last"]
    assert command(path="x", width=3, form="json", last=True) == ("x", Group(3, "json"), True)


def test_a_field_that_is_left_out_keeps_its_default_beside_an_option_of_its_name():
    @flatten_options("width")
    def command(group: Group, form: int = 0) -> tuple[Group, int]:
        return group, form

    assert list(signature(command).parameters) == ["width", "form"]
    assert command(width=2, form=7) == (Group(2, "text"), 7)


def test_what_ask_and_caption_share_is_called_alike():
    commands = typer.main.get_command(app).commands
    names = [
        {one.name: (one.opts, one.secondary_opts) for one in commands[name].params if one.name in SHARED}
        for name in ("caption", "ask")
    ]
    assert names[0] == names[1] and set(names[0]) == set(SHARED)


@pytest.mark.parametrize("command", [("caption", "x"), ("profile", "x.mp4")])
def test_a_key_is_set_once(vidspec, command):
    ran = vidspec(*command, "--set", "video.frames=4", "--set", "video.frames=8")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "error: --set video.frames=8: video.frames is set twice on this command line\n"
