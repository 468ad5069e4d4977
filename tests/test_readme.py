"""What the README names exists, and what exists is named there."""

import re
from pathlib import Path

import typer

from vidspec.cli.app import app
from vidspec.profiles import load, packaged_folder
from vidspec.record import RECORD_KEYS

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def section(title):
    return re.split(r"^## ", README.split(f"\n## {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def first_cells(text):
    return [row.split("|")[1] for row in text.splitlines() if row.startswith("| `")]


def test_options_of_caption():
    command = typer.main.get_command(app).commands["caption"]
    options = {name for parameter in command.params for name in parameter.opts if name.startswith("-")}
    named = {name for cell in first_cells(section("Command line")) for name in re.findall(r"`(-[\w-]+)", cell)}
    assert named == options - {"--help", "-h"}


def test_keys_of_the_record():
    assert [cell.strip(" `") for cell in first_cells(section("The JSON record"))] == list(RECORD_KEYS)


def test_packaged_profiles():
    named = {cell.strip(" `") for cell in first_cells(section("Profiles"))}
    assert named == {path.stem for path in packaged_folder().glob("*.yaml")}


def test_profile_in_the_readme_is_valid(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(re.search(r"```yaml\n(.*?)```", section("Profiles"), re.DOTALL)[1])
    assert load(str(path), env={}).prune.alpha == 0.8


def test_map_names_every_room():
    rooms = {f"{folder.name}/" for folder in (ROOT / "vidspec").iterdir() if (folder / "__init__.py").is_file()}
    named = {name for cell in first_cells(section("Map"))[1:] for name in re.findall(r"`([^`]+)`", cell)}
    assert rooms <= named
    assert [name for name in named if not (ROOT / "vidspec" / name).exists()] == []
