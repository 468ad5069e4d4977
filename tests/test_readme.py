"""What the README and the pages in docs/ name exists, and what exists is named there."""

import os
import re
import shlex
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import typer

from vidspec.cli.app import app
from vidspec.profile.profiles import available, load
from vidspec.telling.record import RECORD_KEYS

ROOT = Path(__file__).resolve().parents[1]
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]}
COMMANDS = typer.main.get_command(app).commands


def section(page, title):
    return re.split(r"^## ", PAGES[page].split(f"\n## {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def first_cells(text):
    return [row.split("|")[1] for row in text.splitlines() if row.startswith("| `")]


def options(command):
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def test_options_of_caption():
    named = {
        name
        for cell in first_cells(section("usage", "Options of `vidspec caption`"))
        for name in re.findall(r"`(-[\w-]+)", cell)
    }
    real = {name for name in options(COMMANDS["caption"]) if name.startswith("-")}
    assert named == real - {"--help", "-h"}


def test_keys_of_the_record():
    assert [cell.strip(" `") for cell in first_cells(section("usage", "The JSON record"))] == list(RECORD_KEYS)


def test_packaged_profiles():
    named = [cell.strip(" `") for cell in first_cells(PAGES["profiles"])]
    assert sorted(named) == sorted(info.name for info in available() if info.source == "packaged")


def test_profile_of_ones_own_is_valid(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(re.search(r"```yaml\n(.*?)```", PAGES["profiles"], re.DOTALL)[1])
    assert load(str(path), env={}).prune.alpha == 0.8


def command_lines():
    """Every ``vidspec`` command in a console block of any page."""
    for page, text in sorted(PAGES.items()):
        for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                for part in re.split(r"[|&;]", line.partition("#")[0]):
                    words = shlex.split(part.strip().removeprefix("$ "))
                    if words[:1] == ["vidspec"]:
                        yield page, tuple(words[1:])


@pytest.mark.parametrize(("page", "words"), sorted(set(command_lines())))
def test_commands_and_their_options_exist(page, words):
    command = COMMANDS[words[0]]
    rest = words[1:]
    if hasattr(command, "commands"):
        named = bool(rest) and rest[0] in command.commands
        assert named or "run" in command.commands, f"{words[0]} has no command of its own"
        command, rest = (command.commands[rest[0]], rest[1:]) if named else (command.commands["run"], rest)
    given = {word.partition("=")[0] for word in rest if word.startswith("-") and word != "-"}
    assert given <= options(command) | {"--help"}
    for flag, value in pairwise(rest):
        if flag == "--profile" and not value.endswith(".yaml"):
            load(value, env={})
        if flag == "--set":
            load("parallelvlm", dict([value.split("=", 1)]), env={})


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    folder = ROOT if page == "README" else ROOT / "docs"
    for target in re.findall(r"\]\(([^)#\s]+)\)", PAGES[page]):
        assert target.startswith("https://") or (folder / target).exists(), target


def test_map_names_every_room():
    rooms = {f"{folder.name}/" for folder in (ROOT / "vidspec").iterdir() if (folder / "__init__.py").is_file()}
    named = {name for cell in first_cells(section("README", "Map"))[1:] for name in re.findall(r"`([^`]+)`", cell)}
    assert rooms <= named
    assert [name for name in named if not (ROOT / "vidspec" / name).exists()] == []


FILE = re.compile(r"[\w./-]+\.(mp4|csv|jsonl|json|txt|png|svg|yaml|log)|clips/?|\.venv\S*|vidspec/\S*")
#: The word behind these, and behind a redirection, is written.
WRITES = {"-o", "--out", "--output", "--output-dir", "--heatmap", "--json", "--svg", "--log-file", "--save", ">"}


def console_words(text):
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            yield line, re.sub(r"[();|]", " ", line.partition(" #")[0]).removeprefix("$ ").split()


def test_commands_of_the_readme_name_files_that_exist():
    """From the first to the last: what a command reads is in the repository, or an earlier one wrote it."""
    there = {name for name in re.findall(r"`(\w+\.yaml)`, names the file", PAGES["README"])}
    for line, words in console_words(PAGES["README"]):
        if words[:2] == ["make", "caption"]:
            there.add(".venv/bin/activate")
        written = {word for before, word in pairwise(words) if before in WRITES}
        if words[0] == "cp":
            written.add(words[-1])
        for word in words:
            if FILE.fullmatch(word) and word not in written:
                assert word.rstrip("/") in there or (ROOT / word).exists(), f"{line}: there is no {word}"
        there |= {word.rstrip("/") for word in written}


def test_how_to_do_without_cuda_comes_before_the_commands():
    readme = PAGES["README"]
    assert readme.index("Without an NVIDIA GPU") < min(readme.index("make caption"), readme.index("pip install ."))


@pytest.fixture
def checkout(tmp_path):
    """The Makefile over an installation that does nothing."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "vidspec/_version.py", "constraints/cpu.txt", ".venv/installed"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for name in ("python", "vidspec"):
        (tmp_path / ".venv/bin").mkdir(exist_ok=True)
        (tmp_path / ".venv/bin" / name).write_text("#!/bin/sh\necho captioned\n")
        (tmp_path / ".venv/bin" / name).chmod(0o755)
    return tmp_path


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("activated", [False, True])
def test_make_caption_ends_with_how_to_get_the_command(checkout, activated):
    path = [str(checkout / ".venv/bin")] * activated + ["/usr/bin", "/bin"]
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # of a make above
    ran = subprocess.run(
        ["make", "caption"],
        cwd=checkout,
        env={**outside, "PATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ran.returncode, ran.stdout) == (0, "captioned\n"), ran.stderr
    assert ("source .venv/bin/activate" in ran.stderr) is not activated
    if not activated:
        assert "pipx install" in ran.stderr.splitlines()[-1] and "uv tool install" in ran.stderr.splitlines()[-1]
