"""Dataclasses whose fields are the options of commands."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Annotated, Literal

import pytest
import typer

from vidspec.cli import keys
from vidspec.cli.app import app
from vidspec.cli.ask import SHARED
from vidspec.cli.options import flatten_options
from vidspec.config.schema import Profile
from vidspec.config.sections import Flag, Section
from vidspec.registry import key


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


class Made(Section):
    loud: Annotated[bool, key("Sound is loud"), Flag()] = True
    tone: Annotated[Literal["low", "high"], key("Pitch"), Flag()] = "low"
    notes: Annotated[tuple[str, ...], key("Names of notes"), Flag(metavar="NOTE")] = ()
    bars: Annotated[int | None, key("Number of bars", ge=1), Flag()] = None
    share: Annotated[float | None, key("Not an option")] = None


def test_a_key_is_declared_in_the_schema_alone(monkeypatch):
    monkeypatch.setitem(keys.KEY_SECTIONS, "video", (Made, "Music"))

    @dataclass(frozen=True)
    class Options:
        video: Mapping[str, object] = field(default_factory=dict)
        late: Annotated[bool, typer.Option("--late")] = False

    def command(options: Options) -> None:
        given.append(options)

    given, app = [], typer.Typer()
    app.command()(flatten_options()(command))
    run = partial(app, standalone_mode=False)
    run(["--no-loud", "--notes", "c", "--notes", "e", "--bars", "3", "--late"])
    run([])
    assert given == [
        Options({"video.loud": False, "video.notes": ["c", "e"], "video.bars": 3}, late=True),
        Options(),
    ]
    options = {one.opts[0]: one for one in typer.main.get_command(app).params}
    assert [name for name in options if "complet" not in name] == ["--loud", "--tone", "--notes", "--bars", "--late"]
    assert options["--tone"].help == "Pitch: low or high." and options["--tone"].rich_help_panel == "Music"
    assert options["--notes"].metavar == "NOTE" and options["--bars"].help == "Number of bars."


def test_every_key_is_described():
    for section in (one.annotation for one in Profile.model_fields.values()):
        if isinstance(section, type) and issubclass(section, Section):
            assert all(one.description for one in section.model_fields.values()), section


def test_threads_are_limited_by_the_schema(vidspec):
    ran = vidspec("caption", "x.mp4", "--threads", "0")
    assert (ran.code, ran.err) == (2, "error: --threads: must be greater than or equal to 1, not 0\n")


@pytest.mark.parametrize("command", [("caption", "x"), ("profile", "x.mp4")])
def test_a_key_is_set_once(vidspec, command):
    ran = vidspec(*command, "--set", "video.frames=4", "--set", "video.frames=8")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "error: --set video.frames=8: video.frames is set twice on this command line\n"


@pytest.mark.sample(quick=3)
@pytest.mark.parametrize(
    ("name", "form", "noted"),
    [("x.vtt", "srt", True), ("x.srt", "srt", False), ("x.log", "jsonl", False), ("x.srt", "srt,vtt", False)],
)
def test_a_file_that_is_called_like_another_format_is_noted(vidspec, name, form, noted):
    ran = vidspec("caption", "good.mp4", "-o", name, "--format", form)
    assert ran.code == 0 and (f"note: --output {name}: is written as {form}, as --format says" in ran.err) == noted
    ran = vidspec("caption", "good.mp4", "-o", name, "--format", form, "--quiet", "--overwrite")
    assert "is written as" not in ran.err


def test_one_thing_is_counted_in_the_singular(vidspec):
    command = ("caption", "good.mp4", "--format", "jsonl", "-o", "out.jsonl")
    vidspec(*command)
    assert "1 of 1 clip done before" in vidspec(*command).err
    assert "1 earlier record made with other settings" in vidspec(*command, "--seed", "3", "--temperature", "1").err
    assert "\n1 clip: 0 to caption" in "\n" + vidspec(*command, "--dry-run").err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            ("--draft", "x/y"),
            "--target: is needed with --draft; nearest valid choice: name a target, or --pair embedded",
        ),
        (
            ("--pair", "embedded", "--target", "x/y"),
            "excludes --target and --draft; nearest valid choice: --pair embedded ",
        ),
        (
            ("--set", "models.draft=x/y"),
            "--target: is needed with models.draft; nearest valid choice: name a target, ",
        ),
    ],
)
def test_who_typed_flags_is_answered_in_flags(vidspec, args, said):
    ran = vidspec("caption", "good.mp4", *args)
    assert ran.code == 2 and said in ran.err and not re.search(r"choice: .*models\.pair: ", ran.err)


def test_an_error_about_a_file_keeps_its_keys(vidspec):
    Path("mine.yaml").write_text("models: {draft: x/y}\n")
    ran = vidspec("caption", "good.mp4", "--profile", "./mine.yaml", "--frames", "4")
    assert ran.code == 2 and "--target: is needed with models.draft; nearest valid choice: " in ran.err


LATIN = os.fsdecode(b"caf\xe9")


@pytest.mark.parametrize("option", ["--template", "--prompt", "--system", "--stop", "--name", "--rewrite", "--turn"])
@pytest.mark.parametrize("join", [lambda option, value: (option, value), lambda *both: ("=".join(both),)])
def test_text_that_is_not_utf8_is_refused(vidspec, option, join):
    """As from a shell script saved as Latin-1."""
    ran = vidspec("caption", "good.mp4", *join(option, LATIN))
    assert (ran.code, ran.err) == (2, f"error: {option}: holds bytes that are not UTF-8 (save the script as UTF-8)\n")


def test_names_of_files_may_have_any_bytes(vidspec):
    for args in (("--quiet", f"{LATIN}/good.mp4"), ("good.mp4", "--format", "jsonl", "-o", LATIN)):
        assert vidspec("caption", *args).code == 0
    assert os.path.exists(LATIN)
    assert vidspec("caption", "--", "good.mp4", f"--template={LATIN}").code != 2
