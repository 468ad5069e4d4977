import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import typer

from vidspec.cli.app import app
from vidspec.cli.options import COMMON
from vidspec.embedded.samples import shipped
from vidspec.engine.device import default_device_type

ROOT = Path(__file__).resolve().parents[2]
# Typer itself takes pydantic for the page of a command, so what is ours to keep out is the schema built with it.
HEAVY = ("torch", "transformers", "av", "decord", "numpy", "yaml", "vidspec.config.schema")


def python(code):
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("args", [["--help"], ["--version"], ["caption", "--help"]])
def test_help_imports_nothing_heavy(args):
    ran = python(
        f"import sys; from vidspec.cli import main; code = main({args!r});"
        f"print('LOADED', [name for name in {HEAVY!r} if name in sys.modules]); sys.exit(code)"
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "LOADED []"


def test_profiles_needs_no_torch():
    ran = python(
        "import sys; from vidspec.cli import main; main(['profiles']);"
        "print('LOADED', [name for name in ('torch', 'transformers', 'av', 'numpy') if name in sys.modules])"
    )
    assert ran.stdout.splitlines()[-1] == "LOADED []", ran.stderr


def test_python_m_vidspec():
    ran = subprocess.run(
        [sys.executable, "-m", "vidspec", "caption", "x", "--nope"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 2 and ran.stdout == "" and ran.stderr.startswith("error: No such option: --nope")


def test_help_lists_the_commands(vidspec):
    ran = vidspec("--help")
    assert ran.code == 0
    for name in ("caption", "profiles", "doctor", "sample", "--version", "--install-completion"):
        assert name in ran.out


@pytest.mark.parametrize("name", ["caption", "models", "bench"])
def test_paragraphs_of_help_are_wrapped_once(vidspec, monkeypatch, name):
    """No line ends where the next word would have fitted."""
    monkeypatch.setenv("COLUMNS", "80")
    page = vidspec(*name.split(), "--help").out.partition("Usage:")[2].partition("\u256d")[0]
    lines = [line.strip() for line in page.splitlines()[1:]]
    assert sum(map(bool, lines)) > 2
    for line, following in pairwise(lines):
        if line and following:
            assert len(line) + 1 + len(following.split()[0]) > 78, (line, following)


def test_caption_help_lists_the_options(vidspec):
    out = vidspec("caption", "--help-all").out
    options = (
        "--profile -p --set --pair --target --draft --frames --fps --start --end --max-pixels --prompt "
        "--max-new-tokens --temperature --top-p --seed --device --dtype --decoder --format --output "
        "-o --quiet --no-live --baseline --trace --verify --debug"
    )
    words = set(out.replace(",", " ").split())
    assert [option for option in options.split() if option not in words] == []


def test_caption_help_shows_the_common_options_and_help_all_every_one(vidspec):
    command = typer.main.get_command(app).commands["caption"]
    options = {one.name: one.opts[0] for one in command.params if one.opts[0].startswith("-")}
    shown = {page: set(vidspec("caption", page).out.replace(",", " ").split()) for page in ("--help", "--help-all")}
    assert set(options) - {"help"} >= COMMON - {"paths", "help"}
    assert {name for name, option in options.items() if option in shown["--help"]} == COMMON & set(options)
    assert set(options.values()) <= shown["--help-all"] and len(COMMON) < len(options) / 2
    assert {"Models", "Video", "Output"} <= shown["--help"] & shown["--help-all"]
    assert vidspec("caption", "--help-all").code == 0 and not any(one.hidden for one in command.params)


def test_commands_stand_in_groups_with_an_example_each(vidspec):
    """Examples are of commands that there are, with options that they have."""
    commands, out = typer.main.get_command(app).commands, vidspec("--help").out
    panels = re.findall("\u256d\u2500 (\\w+) ", out)
    assert panels == ["Options", "Caption", "Look", "Models", "Measure"]
    told = " ".join(out.partition("Examples:")[2].split())  # Typer before 0.27 makes one paragraph of them
    examples = [example.split() for example in told.split("vidspec ")[1:]]
    assert sorted(one[0] for one in examples) == sorted(commands)
    for name, *words in examples:
        options = {option for one in commands[name].params for option in one.opts}
        assert {word for word in words if word.startswith("-")} <= options


@pytest.mark.parametrize("name", sorted(typer.main.get_command(app).commands))
def test_flags_have_no_type_on_help_pages(vidspec, name):
    out = vidspec(name, "--help").out
    assert "<bool>" not in out and "--help" in out


@pytest.mark.parametrize("name", ["bench", "serve", "review"])
def test_help_pages_have_at_most_25_options(vidspec, name):
    shown = {
        page: re.findall(r"^\u2502 (--[\w-]+)", vidspec(name, page).out, re.MULTILINE)
        for page in ("--help", "--help-all")
    }
    assert 10 < len(shown["--help"]) <= 25
    assert name == "bench" or len(shown["--help-all"]) > 25


def test_shells_complete_the_rarer_options_too(vidspec, monkeypatch):
    monkeypatch.setenv("_VIDSPEC_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "vidspec caption --sha")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert "--shard" in vidspec().out.split()


def test_no_arguments_show_the_help(vidspec):
    ran = vidspec()
    assert ran.code == 2 and "Usage: vidspec" in ran.out


def test_version(vidspec):
    assert vidspec("--version").out.startswith("vidspec ")


def test_unknown_command(vidspec):
    ran = vidspec("nope")
    assert (ran.code, ran.err) == (2, "error: No such command 'nope'. (see `vidspec --help`)\n")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("captoin my.mp4", "caption"), ("model", "models"), ("profle", "profile"), ("config key", "keys")],
)
def test_a_mistyped_command(vidspec, typed, meant):
    word = typed.removeprefix("config ").split()[0]
    ran = vidspec(*typed.split())
    assert (ran.code, ran.err) == (2, f"error: {word} is not a command; did you mean {meant}?\n")


def test_profiles_lists_names_and_abouts(vidspec):
    ran = vidspec("profiles", "--all")
    assert ran.code == 0
    files = {path.stem for path in (ROOT / "profiles").glob("*.yaml")}
    lines = [line.split("\t") for line in ran.out.splitlines()]
    names = {line[0] for line in lines}
    assert {"ar", "vanilla-sd"} <= files < names and len(lines) == len(names) and {len(line) for line in lines} == {3}
    groups = [line[2] for line in lines]
    assert list(dict.fromkeys(groups)) == ["recommended", "exact", "parallel", "loose", "lossy", "ablations"]
    assert groups == sorted(groups, key=list(dict.fromkeys(groups)).index) and lines[0][0] == "sparrow"
    assert {"hybrid", "vanilla-sd"} <= {name for name, _, group in lines if group == "recommended"}
    found = json.loads(vidspec("profiles", "--all", "--format", "json").out)
    assert all(set(one) == {"name", "about", "path", "source", "group", "chosen"} and one["about"] for one in found)


def test_profiles_on_a_terminal_have_headings(vidspec, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    out = vidspec("profiles", "--all").out
    assert (
        out.index("recommended")
        < out.index("hybrid")
        < out.index("exact")
        < out.index("sd-tree")
        < out.index("ablations")
    )


def test_profiles_shows_those_to_choose_from(vidspec, tmp_path):
    folder = tmp_path / "config" / "vidspec" / "profiles"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("{base: ar, about: Mine., group: ablations}")
    lines = [line.split("\t") for line in vidspec("profiles").out.splitlines()]
    assert [line[0] for line in lines if line[2] == "recommended"] == [
        "sparrow",
        "vanilla-sd-auto",
        "sd-adaptive-tree",
        "hybrid",
        "vanilla-sd",
    ]
    assert [line[0] for line in lines if line[2] != "recommended"] == [
        *("ar", "specvlm", "tabed-mt", "suffix", "dflash", "eagle3", "mtp", "parallelvlm", "hippo", "lvspec", "mine")
    ]
    assert len(json.loads(vidspec("profiles", "--format", "json").out)) == len(lines)
    named = vidspec("profiles", "hippo-frame", "ar").out.splitlines()
    assert [line.split("\t")[0] for line in named] == ["ar", "hippo-frame"]
    ran = vidspec("profiles", "vanila-sd")
    assert ran.err.startswith("error: there is no profile vanila-sd; did you mean vanilla-sd? (")
    ran = vidspec("profiles", "nope")
    assert (ran.code, ran.err) == (2, "error: there is no profile nope (vidspec profiles --all lists them)\n")


def test_groups_of_the_packaged_profiles():
    from vidspec.config import profiles

    groups = {info.name: info.group for info in profiles.available()}
    recommended = [name for name, group in groups.items() if group == "recommended"]
    assert recommended == ["sparrow", "vanilla-sd-auto", "sd-adaptive-tree", "hybrid", "vanilla-sd"]
    assert {groups[name] for name in ("sd-rand", "sd-uniform", "lvspec-0.2", "hippo-frame")} == {"ablations"}
    assert (groups["lvspec"], groups["fastv"], groups["hippo"], groups["sd-tree"]) == (
        "loose",
        "lossy",
        "parallel",
        "exact",
    )


def test_profiles_that_work_at_the_same_time_say_what_that_wants():
    from vidspec.config import profiles

    told = {info.name: "per model" in info.about for info in profiles.available()}
    papers = ("parallelvlm", "self-parallelvlm", "hippo", "pearl-video", "pearl-syn-prefill", "pearl-specvlm")
    assert all(told[name] for name in papers) and not told["hippo-sequential"] and not told["vanilla-sd"]


def test_a_profile_of_ones_own_is_grouped_by_what_it_does(vidspec, tmp_path):
    folder = tmp_path / "config" / "vidspec" / "profiles"
    folder.mkdir(parents=True)
    (folder / "hybrid.yaml").write_text("accept: {rule: fly}")  # hides the packaged one, and its recommendation
    (folder / "bad.yaml").write_text("[")
    groups = {one["name"]: one["group"] for one in json.loads(vidspec("profiles", "--format", "json").out)}
    assert (groups["hybrid"], groups["bad"]) == ("loose", "exact")


def test_sample_copies_and_prints_the_paths(vidspec):
    ran = vidspec("sample", "--out", "d")
    assert ran.code == 0 and ran.out == "".join(f"d/{clip.name}\n" for clip in shipped())
    assert vidspec("sample", "--out", "d").err.startswith("error: d/coming-and-going.mp4: exists already")
    Path("file").write_text("")
    ran = vidspec("sample", "--out", "file")
    assert (ran.code, ran.err) == (2, "error: --out file: is not a folder\n")


def test_doctor(vidspec, monkeypatch):
    monkeypatch.setenv("HF_HOME", "/models")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    ran = vidspec("doctor", "--format", "json")
    found = json.loads(ran.out)
    assert ran.code == 0 and found["model_cache"] == "/models/hub" and found["offline"] is True
    assert found["packages"]["torch"] and any(device.startswith("cpu") for device in found["devices"])
    monkeypatch.setattr("vidspec.video.decode_hardware.refusal_reason", lambda *_: None)
    decoders = json.loads(vidspec("doctor", "--format", "json").out)["decoders"]
    assert decoders[-4:] == ["av", "nvdec", "vaapi", "videotoolbox"]
    text = vidspec("doctor").out
    for label in ("python", "torch", "devices", "video", "model cache", "built-in pair"):
        assert label in text


def test_doctor_lists_the_extras_whose_packages_are_all_installed(vidspec, monkeypatch):
    from vidspec.cli import doctor

    there = {"aiohttp", "pyarrow", "fsspec", "llguidance", "starlette"}  # of "serve" not all

    def version(name):
        if name not in there:
            raise doctor.PackageNotFoundError
        return "1.0"

    monkeypatch.setattr(doctor, "version", version)
    extras = json.loads(vidspec("doctor", "--format", "json").out)["extras"]
    assert extras == ["data", "json"] and "data, json" in vidspec("doctor").out


def test_doctor_names_the_device_of_models(vidspec, monkeypatch):
    def placement():
        return json.loads(vidspec("doctor", "--format", "json").out)["placement"]

    assert placement() == default_device_type()
    monkeypatch.setattr("vidspec.models.placement.driver_problem", lambda: "torch cannot use the L4")
    assert placement().startswith("none: torch cannot use the L4 (update the driver")


@pytest.mark.parametrize(("devices", "named"), [(["cuda:0 RTX 4090 24 GiB"], True), (["cpu 8 threads"], False)])
def test_doctor_names_triton_where_a_gpu_lacks_it(vidspec, monkeypatch, devices, named):
    monkeypatch.setattr("vidspec.cli.doctor._devices", lambda: devices)
    absence = "triton is not installed: pip install triton-windows"
    monkeypatch.setattr("vidspec.engine.block_kernels.triton_absence", lambda: absence)
    missing = "triton, without which GPUs decode kernel by kernel; pip install triton-windows"
    assert (missing in vidspec("doctor").out) == named


def test_doctor_survives_a_broken_torch(vidspec, monkeypatch):
    from vidspec.cli import doctor

    whole = doctor.importlib.import_module

    def broken(name):
        if name == "torch":
            raise OSError("libtorch.so:\nundefined symbol")
        return whole(name)

    monkeypatch.setattr(doctor.importlib, "import_module", broken)
    ran = vidspec("doctor")
    assert ran.code == 3
    assert "missing: torch is installed but broken (libtorch.so: undefined symbol); pip install" in ran.out


def test_doctor_names_what_is_missing(vidspec, monkeypatch):
    from vidspec.cli import doctor

    versions = doctor.version

    def version(name):
        if name in ("av", "decord"):
            raise doctor.PackageNotFoundError
        return versions(name)

    monkeypatch.setattr(doctor, "version", version)
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    ran = vidspec("doctor")
    assert ran.code == 3 and "missing: av; pip install av" in ran.out and "optional: decord" in ran.out


@pytest.mark.parametrize("word", ["clip.mp4", "a b.mov", "clips", "/no/such"])
def test_a_clip_in_the_place_of_a_command(vidspec, word):
    Path("clips").mkdir()
    ran = vidspec(word)
    shown = f"'{word}'" if " " in word else word
    assert (ran.code, ran.err) == (2, f"error: {word} is not a command; did you mean `vidspec caption {shown}`?\n")


@pytest.mark.parametrize(
    ("args", "env", "message"),
    [
        (("--frames", "0"), {}, "--frames: must be"),
        (("--frames=0",), {}, "--frames: must be"),
        (("--max-new-tokens", "0"), {}, "--max-new-tokens: must be"),
        (("--set", "video.frames=0"), {}, "video.frames: must be"),
        ((), {"VIDSPEC_VIDEO__FRAMES": "0"}, "VIDSPEC_VIDEO__FRAMES: must be"),
        (("--frames", "0"), {"VIDSPEC_VIDEO__FRAMES": "4"}, "--frames: must be"),
        (("--set", "video.frames=0"), {"VIDSPEC_VIDEO__FRAMES": "4"}, "video.frames: must be"),
        (("--profile", "own.yaml"), {}, "video.frames: must be"),
    ],
)
def test_an_error_names_what_was_typed(vidspec, monkeypatch, args, env, message):
    Path("own.yaml").write_text("video: {frames: 0}\n")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    ran = vidspec("caption", "x.mp4", *args)
    assert ran.code == 2 and ran.err.startswith(f"error: {message}"), ran.err
    assert ("set by" in ran.err) == ("own.yaml" in args)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.sample(quick=2)
@pytest.mark.parametrize("command", ["profiles", "models", "doctor", "config show", "--help"])
def test_a_full_disk_is_one_line(command):
    words = [sys.executable, "-m", "vidspec", *command.split()]
    with open("/dev/full", "w") as full:
        ran = subprocess.run(words, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
    *notes, error = ran.stderr.splitlines()  # a large buffer is written after the notes
    assert ran.returncode == 4 and error == "error: the output: cannot be written: No space left on device"
    assert len(notes) <= 1 and "Traceback" not in ran.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="closes a file descriptor in a shell")
@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("command", ["profiles", "--version", "caption --help", "profiles --format json"])
def test_a_closed_standard_output(command):
    words = ["sh", "-c", f'exec "$0" -m vidspec {command} >&-', sys.executable]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (ran.returncode, ran.stdout, ran.stderr) == (4, "", "error: standard output is closed\n")


@pytest.mark.skipif(sys.platform == "win32", reason="closes file descriptors in a shell")
@pytest.mark.sample(quick=2)
@pytest.mark.parametrize(
    ("closing", "args", "code"),
    [
        ("2>&-", "caption missing.mp4", 2),
        ("2>&- <&-", "profiles --format json", 0),
        ("2>/dev/full", "caption missing.mp4", 2),
        ("2>/dev/full", "caption missing.mp4 --progress json", 2),
        ("<&-", "caption -", 2),
    ],
)
def test_closed_or_full_streams_do_not_change_the_exit_code(closing, args, code):
    words = ["sh", "-c", f'exec "$0" -m vidspec {args} {closing}', sys.executable]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, "Traceback" in ran.stderr, "error:" in ran.stdout) == (code, False, False)


@pytest.mark.skipif(sys.platform != "linux", reason="deletes the folder it runs in")
def test_a_deleted_current_folder_is_one_line(tmp_path):
    (folder := tmp_path / "deleted").mkdir()
    words = ["sh", "-c", 'rmdir "$1" && exec "$0" -m vidspec caption a.mp4', sys.executable, str(folder)]
    ran = subprocess.run(
        words, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60
    )
    error = "error: the current folder: No such file or directory (change to one that exists)\n"
    assert (ran.returncode, ran.stderr) == (2, error)
