"""The README and the pages in docs/ name what exists, and all of it."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
import typer
import yaml
from packaging.requirements import Requirement

from research.commands import application
from research.peers.__main__ import command as peers_command
from research.peers.outside import OUTSIDE
from tests.test_rooms import ORDER
from vidspec.cli.app import app
from vidspec.config.profiles import available, load
from vidspec.embedded.samples import shipped
from vidspec.events.record import OPTIONAL_KEYS, RECORD_KEYS
from vidspec.models.recommended import TABLE

ROOT = Path(__file__).resolve().parents[1]
#: Folders of pages: for users, authors of parts, researchers and developers.
FOLDERS = ("docs", "docs/use", "docs/extend", "docs/research", "docs/internals")
FILES = {page.stem: page for name in ("README", *(f"{one}/*" for one in FOLDERS)) for page in ROOT.glob(f"{name}.md")}
PAGES = {name: path.read_text(encoding="utf-8") for name, path in FILES.items()}
COMMANDS = typer.main.get_command(app).commands


def section(page, title):
    return re.split(r"^## ", PAGES[page].split(f"\n## {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def options(command):
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("page", ["caption", "damage", "lora", "own-models", "profiles", "reference", "shards"])
def test_options_that_a_page_names_exist(page):
    text = re.sub(r"```.*?```", "", PAGES[page], flags=re.DOTALL)
    named = set(re.findall(r"`(?:vidspec [\w ]+)?(--[a-z][\w-]*)", text))
    commands = [
        *COMMANDS.values(),
        *(one for group in COMMANDS.values() for one in getattr(group, "commands", {}).values()),
    ]
    assert named and named <= set().union(*map(options, commands))


#: Names in commands that stand for files of the reader's own.
PLACEHOLDER = re.compile(r"(\./)?my-|[^a-z]*[A-Z]{2}")
#: Files and folders as arguments.
INPUT = re.compile(r"\./\S+|[\w./-]+\.(mp4|mkv|ts|tar|json|jsonl|yaml|txt|csv|parquet)")
READ_OPTIONS = {"--prompt-file", "--manifest", "--from-file", "--json-schema", "--profile"}


@pytest.mark.parametrize("page", [page for page, path in FILES.items() if path.parent in (ROOT, ROOT / "docs/use")])
def test_what_no_command_of_a_page_makes_is_visibly_a_placeholder(page):
    """Also of commands that no test runs; a checkout has ``docs`` and ``vidspec``."""
    made = set()
    for _, line in console_lines(page):
        words = shlex.split(line, comments=True)
        for before, word in pairwise(["", *words]):
            if INPUT.fullmatch(word) and before != ">" and (not before.startswith("-") or before in READ_OPTIONS):
                there = word in made or (ROOT / word).exists() or PLACEHOLDER.match(word)
                assert there or re.match("cp |tar ", line), f"{line}: {word}"
        made |= set(words)
        for out in re.findall(r"vidspec sample --out (\S+)", line):
            made |= {f"{out}/{clip.name}" for clip in shipped()}


def real_language(batch):
    """Return the gain of lookup on a real language model's text."""
    rows = json.loads((ROOT / "docs/research/measured/real-language.json").read_text(encoding="utf-8"))["rows"]
    rates = {row["name"]: row["tokens_per_s"] for row in rows if (row["ground"], row["batch"]) == ("real", batch)}
    return f"{rates['suffix'] / rates['ar']:.2f}"


def test_the_first_screen_has_the_least_of_the_figures_measured_and_the_span_of_those_predicted():
    stated = re.search(r"\*\*How much faster:\*\*(.*?)\n- ", PAGES["README"], re.DOTALL)[1]
    measured = list[str]()
    for name in ("sparrow", "vanilla-sd-auto"):
        (row,) = re.findall(rf"^\| `{name}`.*", PAGES["README"], re.MULTILINE)
        cells = [re.findall(r"[\d.]+(?=x)", cell) for cell in row.split("|")]
        measured += [cells[2][0], cells[6][0]]
    lines = re.findall(r"^\|.* 7B.* drafts \| (.*?) \|  \| predicted \|", PAGES["measured"], re.MULTILINE)
    gains = [float(gain) for line in lines for gain in re.findall(r"[\d.]+(?=x)", line)]
    trained = json.loads((ROOT / "docs/research/measured/own-head.json").read_text(encoding="utf-8"))["rows"][-1]
    learned = [f"{trained[key]:.2f}" for key in ("decode", "end_to_end")]
    predicted = [f"{min(gains):.2f}", f"{max(gains):.2f}"]
    assert re.findall(r"[\d.]+(?=x)", stated) == [*measured, real_language(1), *predicted, *learned]
    assert f"last token {real_language(1)}x as fast, {real_language(8)}x eight at once" in PAGES["README"]
    assert trained["equal"] == trained["measured"] and f"{trained['clips']} of a built-in model" in stated


def test_the_front_page_is_short_and_its_gains_are_of_the_table():
    assert len(PAGES["README"].splitlines()) <= 110
    with TABLE.open(encoding="utf-8") as file:
        table = yaml.safe_load(file)
    cards = {card["name"]: (place, card["memory"]) for place, card in enumerate(table["cards"].values())}
    stated = re.findall(r"--target (\S+) +# ([\w ]+), (\d+) GB: predicted ([\d.]+)x$", PAGES["README"], re.MULTILINE)
    assert len(stated) == 3
    for target, card, memory, gain in stated:
        place, size = cards[card]
        assert (f"{size / 1e9:.0f}", f"{table['targets'][target]['gains'][place]:.1f}") == (memory, gain)


def test_keys_of_the_record():
    named = re.findall(r"^- `(\w+)`: ", section("reference", "The JSON record"), re.MULTILINE)
    assert named == [*RECORD_KEYS, *OPTIONAL_KEYS]


def test_profiles_to_choose_from_exist():
    named = set(
        re.findall("`([a-z0-9-]+)`", section("profiles", "Which profile should I use?").partition("\n\nProfiles")[0])
    )
    assert named <= {info.name for info in available() if info.source == "packaged"} | {"--batch"} and len(named) > 10


def test_profile_of_ones_own_is_valid(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(re.search(r"```yaml\n(.*?)```", PAGES["profiles"], re.DOTALL)[1])
    assert load(str(path), env={}).prune.alpha == 0.8


def console_lines(page):
    """Every command in the console blocks of a page, with the section it stands in."""
    title = ""
    for heading, block in re.findall(r"^## ([^\n]*)$|^```console\n(.*?)^```", PAGES[page], re.DOTALL | re.MULTILINE):
        title = heading or title
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                yield title, re.sub(r"  +#.*| {2,}", lambda gap: "" if "#" in gap[0] else " ", line[2:]).strip()


def command_lines(*program):
    """Yield the words after ``vidspec``, or another program, in console blocks of any page."""
    program = list(program or ("vidspec",))
    for page in sorted(PAGES):
        for _, line in console_lines(page):
            for part in re.split(r"[|&;]", line):
                words = shlex.split(part.partition(">")[0].strip())
                if words[: len(program)] == program:
                    yield page, tuple(words[len(program) :])


def test_a_file_is_written_in_one_format_on_all_pages():
    """A command that is tried after another's would be refused, or set its file aside."""
    forms = {}
    for page, words in command_lines():
        if words[:1] == ("caption",) and (file := option(words, "-o", "--output")):
            forms.setdefault(file, {}).setdefault(option(words, "--format"), page)
    assert len(forms) > 5
    assert not {file: found for file, found in forms.items() if len(found) > 1}


def option(words, *names):
    return next((words[at + 1] for at, word in enumerate(words[:-1]) if word in names), None)


@pytest.mark.parametrize(("page", "words"), sorted(set(command_lines())))
def test_commands_and_their_options_exist(page, words):
    command = COMMANDS[words[0]]
    rest = words[1:]
    if hasattr(command, "commands"):
        named = bool(rest) and rest[0] in command.commands
        assert named or "run" in command.commands, f"{words[0]} has no command of its own"
        command, rest = (command.commands[rest[0]], rest[1:]) if named else (command.commands["run"], rest)
    command.make_context("vidspec", list(rest))
    for flag, value in pairwise(rest):
        if flag == "--profile" and not value.endswith(".yaml"):
            load(value, env={})
        if flag == "--set":
            load("parallelvlm", dict([value.split("=", 1)]), env={})


@pytest.mark.parametrize(("page", "words"), sorted(set(command_lines("python", "-m"))))
def test_commands_of_research_and_their_options_exist(page, words, capsys):
    module, *rest = words
    assert importlib.util.find_spec(module), module
    if not module.startswith("research.") or module == "research.lmms_eval":
        return  # their own options
    found = importlib.import_module(module)
    if module.startswith("research.studies."):
        with pytest.raises(SystemExit):
            found.main(["--help"])
        assert {word for word in rest if word[:2] == "--"} <= set(re.findall(r"--[\w-]+", capsys.readouterr().out))
        return
    found = importlib.import_module(f"{module}.__main__") if hasattr(found, "__path__") else found
    typer.main.get_command(application(found.command)).make_context(module, rest)


@pytest.mark.parametrize("page", PAGES)
def test_modules_that_a_page_runs_exist(page):
    for module in re.findall(r"python -m (research(?:\.\w+)+)", PAGES[page]):
        assert importlib.util.find_spec(module), module


def anchors(page):
    """Return the anchors of a page, as GitHub makes them of the headings."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", PAGES[page], flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    folder = FILES[page].parent
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", PAGES[page]):
        assert target.startswith("https://") or (folder / target).exists(), target
        if anchor:
            assert anchor in anchors(Path(target).stem or page), f"{target}#{anchor}"


def test_documents_that_the_code_refers_to_exist():
    files = [path for room in ("vidspec", "research", "tests") for path in (ROOT / room).rglob("*.py")]
    for path in [*files, ROOT / "vidspec/runs/record_schema.json"]:
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"\bdocs/[\w/-]+\.(?:md|json)\b", text):
            assert (ROOT / name).exists(), f"{path}: {name}"
        assert not re.search(
            r"\((?:see )?(?:METHODS|METRICS|FACTS|DESIGN)\b|\b(?:METHODS|METRICS|FACTS|DESIGN) \d", text
        ), path


def test_map_names_every_package_in_the_order_of_imports():
    heads = re.findall(r"^- (.+?): ", section("architecture", "Packages"), re.MULTILINE)
    named = [tuple(re.findall(r"`([\w.]+)/?`", head)) for head in heads]
    wanted = [
        sorted(f"{room}.py" if (ROOT / f"vidspec/{room}.py").exists() else room for room in rooms) for rooms in ORDER
    ]
    hidden = {"_version.py", "__init__.py", "__main__.py"}
    wanted = [[room for room in rooms if room not in hidden] for rooms in wanted]
    assert [sorted(rooms) for rooms in named] == [rooms for rooms in wanted if rooms]


def test_map_names_what_exists():
    """Files by the paths there, or below a folder that the row names; classes and functions of the package."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "vidspec").rglob("*.py"))
    defined = set(re.findall(r"(?:def|class) (\w+)", text))
    files = {path.name for room in ("vidspec", "research") for path in (ROOT / room).rglob("*.*")}
    named = re.findall("`([^` ]+)`", re.sub("`vidspec[. ][^`]*`", "", PAGES["architecture"]))
    missing = [name for name in named if re.fullmatch(r"[\w.]+\.(py|yaml)", name) and name not in files]
    missing += [
        name for name in named if re.fullmatch(r"\w*[A-Z]\w*(\.\w+)*", name) and not {*name.split(".")} <= defined
    ]
    assert len(named) > 100 and not missing


def test_extras_are_installed_from_a_checkout_or_by_their_packages():
    """No package index has vidspec; the reference lists the packages, and hints name some of these."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {extra: {Requirement(one).name for one in some} for extra, some in project["optional-dependencies"].items()}
    listed = re.findall(r"^- `([\w-]+)` \((.*?)\): ", section("reference", "Extras"), re.MULTILINE)
    assert {extra: set(packages.split(", ")) for extra, packages in listed} == {
        extra: some for extra, some in named.items() if extra != "test"
    }
    known = set().union({Requirement(one).name for one in project["dependencies"]}, {"triton-windows"}, *named.values())
    files = [path for room in ("vidspec", "research") for path in (ROOT / room).rglob("*.py")]
    hints = [(path, path.read_text(encoding="utf-8")) for path in files]
    for place, text in [*hints, *PAGES.items()]:
        assert not re.search(r"vidspec\[[a-z]|pip install '?vidspec\b", text), place
    for path, text in hints:
        for words in re.findall(r"pip install (?:--[\w-]+ )*([a-z][a-z0-9 -]*)", text):
            assert set(words.removesuffix(" if ").split()) <= known, path


@pytest.mark.parametrize("page", PAGES)
def test_named_files_exist(page):
    for name in re.findall(r"`((?:vidspec|research|tests|docs|profiles|constraints)/[\w./-]*)`", PAGES[page]):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"(?<![\w/])(?:tests|docs)/[\w/]+\.py", PAGES[page]):
        assert (ROOT / name).exists(), name


def test_index_names_every_page():
    listed = re.findall(r"^- \[[^]]+\]\((\S+)\.md\): ", PAGES["index"], re.MULTILINE)
    wanted = {path.relative_to(ROOT / "docs").with_suffix("") for name, path in FILES.items() if name != "README"}
    assert sorted(map(Path, listed)) == sorted(wanted - {Path("index")})


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
        timeout=300,
    )
    assert (ran.returncode, ran.stdout) == (0, "captioned\n"), ran.stderr
    assert ("source .venv/bin/activate" in ran.stderr) is not activated
    if not activated:
        assert "pipx install" in ran.stderr.splitlines()[-1] and "uv tool install" in ran.stderr.splitlines()[-1]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(("gpu", "configured"), [(False, ""), (False, "global.extra-index-url='there'"), (True, "")])
def test_make_asks_for_the_cpu_build_where_pip_would_not_find_it(checkout, gpu, configured):
    (checkout / ".venv/installed").unlink()
    python = checkout / ".venv/bin/python"
    python.write_text(f'#!/bin/sh\n[ "$4" = list ] && echo "{configured}"\n[ "$3" = install ] && echo "$@"\nexit 0\n')
    (checkout / ".venv/bin/nvidia-smi").write_text(f"#!/bin/sh\nexit {int(not gpu)}\n")
    (checkout / ".venv/bin/nvidia-smi").chmod(0o755)
    path = os.pathsep.join([str(checkout / ".venv/bin"), "/usr/bin", "/bin"])
    ran = subprocess.run(
        ["make", "caption"], cwd=checkout, env={"PATH": path}, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    assert ("--extra-index-url https://download.pytorch.org/whl/cpu" in ran.stdout) is (not gpu and not configured)
    assert ("-c constraints/cpu.txt" in ran.stdout) is not gpu


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_peers_ends_with_the_command_that_measures_them(checkout):
    peers = ["openvino", "vllm"]
    made = ["constraints/peers/sitecustomize.py", *(f"constraints/peers/{name}.txt" for name in peers)]
    for name in (*made, *(f".venv/peers/{name}/installed" for name in peers)):
        assert name.endswith("installed") or (ROOT / name).is_file()
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).touch()
    ran = subprocess.run(["make", "--silent", "peers"], cwd=checkout, capture_output=True, text=True, timeout=300)
    assert (ran.returncode, ran.stderr) == (0, "")  # nothing is installed again
    words = shlex.split(ran.stdout)
    assert words[:3] == ["python", "-m", "research.peers"]
    typer.main.get_command(application(peers_command)).make_context("peers", words[3:])
    assert words[4::2] == [f"{name}=.venv/peers/{name}/bin/python" for name in peers] and set(peers) < set(OUTSIDE)
