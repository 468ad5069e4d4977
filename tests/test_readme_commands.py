"""The commands of the README and of every page, run in their order as they stand there.

Each page has a folder of its own, which begins as a checkout without clips. ``vidspec`` runs in this process, with the
built-in models on few frames and tokens, in :data:`FAKED` sections with a captioner that has none; what needs a shell
gets one.
"""

import csv
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
import srt
import webvtt

from tests.fake_captioner import PROGRAM
from tests.runs.shards import CLIP, tar_of
from tests.test_readme import PAGES, ROOT, console_lines
from vidspec import cli
from vidspec.embedded.samples import shipped

pytestmark = pytest.mark.full


class Ran(NamedTuple):
    """A command that ended, and what it printed."""

    line: str
    out: str
    err: str


#: Commands that are not run here, and why; ``test_readme.py`` parses those of ``vidspec``.
ELSEWHERE = {
    r"(pip|pipx|uv) ": "installs; from where is everybody's own",
    r"vidspec serve": "runs until it is ended: tests/serve/test_command.py",
    r"vidspec review (?!.*-o )": "runs until it is ended: tests/serve/test_command.py",
    r"make caption": "tests/test_readme.py, over an installation that does nothing",
    r"make (test|test-all|test-research|lint|gpu)": "is what runs this, a part of it, and what needs a GPU",
    r"make docs": "packages of its own: tests/test_site.py",
    r"python -m research\.lmms_eval": "another package, and models of the hub: tests/research/harness",
    r".* --target ": "models of the hub",
    r"vidspec caption '?(s3|hf)://": "a store: tests/runs/test_object_store.py",
    r"ray start": "daemons that every user of a machine shares: test_a_ray_cluster, tests/test_readme_commands.py",
    r"vidspec train": "wants fifty captions: tests/training/test_command.py",
    r"vidspec models (?!use )[\w./]": "models of the hub, and one's own: tests/models/test_checkpoint.py",
    r".*\binner\.yaml": "wants the files above it: tests/test_readme_example.py",
    r"vidspec caption BROKEN.ts": "a damaged file: tests/video/test_damage.py",
    r"vidspec bench --profiles all": "an hour: tests/bench/test_measure.py",
    r"make peers|python -m research\.peers": "gigabytes from a registry: tests/research/peers/test_outside.py",
    r"make real-text": "downloads a model: tests/research/test_realtext.py",
    r"python -m research\.studies\.real_language": "half an hour: tests/research/studies/test_real_language.py",
    r"python -m research\.throughput": "processes with models of their own: tests/research/peers/test_throughput.py",
    r"python -m research\.suites": "hours: tests/research/suites/test_command.py",
    r"python -m research\.pareto": "hours: tests/research/pareto/test_pareto_run.py",
    r"python -m research\.compare": "results of two benches: tests/research/test_compare.py",
    r"python -m research\.results": "results of a bench: tests/research/results/test_command.py",
}
#: Makes a command cheaper than it stands there.
MORE = {"profile": ("--profiles", "ar,specvlm", "--repeats", "1", "--no-passes")}
#: What a command of a page has done, beyond files of the named form: told by its output and the files around it.
EFFECTS: dict[str, Callable[[Ran], object]] = {
    r"vidspec caption \S+( --profile parallelvlm)? --baseline --verify": lambda ran: (
        "verified: plain decoding's tokens" in ran.err and "against plain decoding: decode" in ran.err
    ),
    r"vidspec caption \S+ --profile \S+ --verify": lambda ran: "verified: plain decoding's tokens" in ran.err,
    r".*--rewrite @query\.txt": lambda ran: json.loads(ran.out)["original"]["text"],
    r".*--segment 3s --summary": lambda ran: list(srt.parse(Path("film/clip.srt").read_text()))[1:],
    r".*--include-images --format txt --template": lambda ran: len(triggered("clips/*.txt")) == len(shipped()) + 1,
    r".*--cut training --template": lambda ran: triggered("training/*.txt").keys() == stems("training/*.mp4"),
    r".*--cut training --format huggingface": lambda ran: (
        triggered("training/*.txt").keys() == stems("training/*.mp4") == listed("training/metadata.jsonl", "file_name")
    ),
    r".*--existing use --prompt": lambda ran: (
        "keeping these tags: ohwx, red circle" in Path("tagged/.vidspec.jsonl").read_text()
    ),
    r".*(--existing use|tags\.csv --format txt) --template": lambda ran: (
        Path("tagged/one-object.txt").read_text().removeprefix("[demo] ").startswith("ohwx, red circle, ")
    ),
    r".*--format kohya": lambda ran: all(
        trigger(one["caption"]) and Path(name).exists()
        for name, one in json.loads(Path("meta.json").read_text()).items()
    ),
    r".*--format musubi.* -o videos": lambda ran: listed("videos.jsonl", "video_path") == stems("clips/*.mp4"),
    r".*--format musubi.* -o images": lambda ran: listed("images.jsonl", "image_path") == {"photo"},
    r".*--format ltx": lambda ran: listed("clips/ltx.jsonl", "video") >= stems("clips/*.mp4"),
    r".*--format diffsynth": lambda ran: listed("clips/diffsynth.jsonl", "video") >= stems("clips/*.mp4"),
    r".*--format huggingface --template": lambda ran: (
        listed("clips/metadata.jsonl", "file_name") == stems("clips/*.mp4")
    ),
    r".*\.tar' --output-dir captions$": lambda ran: stems("captions/*.parquet") == {"00000", "00001"},
    r".*--format webdataset": lambda ran: stems("texts/*.tar") == {"00000", "00001"},
    r".*--format openai-batch": lambda ran: [one["custom_id"] for one in records(Path("answers.jsonl"))] == ["one"],
    r"vidspec caption clip\.mp4 --template": lambda ran: trigger(ran.out),
    r".*--stop ' By the end'": lambda ran: "By the end" not in ran.out,
    r"vidspec caption clip\.mp4 --json-schema": lambda ran: json.loads(ran.out.partition("] ")[2] or ran.out),
    r"vidspec (report|compare|review) ": lambda ran: re.search(
        r"(one-object|clip)\.mp4", Path(ran.line.split(" -o ")[1]).read_text()
    ),
    r"vidspec models --card": lambda ran: ran.out.count("vidspec caption clip.mp4 --target ") == 3,
    r"vidspec models use Q": lambda ran: (
        "Qwen/Qwen2.5-VL-7B-Instruct" in Path("config/vidspec/config.yaml").read_text()
    ),
    r"vidspec models use --none": lambda ran: "Qwen" not in Path("config/vidspec/config.yaml").read_text(),
}
#: Sections about files, not captions.
FAKED = {"Caption many clips"}
#: Syntax that only a shell understands; Ray's daemons too are better in a process that ends.
SHELL = re.compile(r"[|<>$;(]|^(?!vidspec )|--engine ray")


def trigger(text):
    return text.removeprefix("[demo] ").startswith("ohwx, ")


def stems(pattern):
    return {path.stem for path in Path().glob(pattern)}


def triggered(pattern):
    """Captions of files by stem; each of them has the trigger word and one line."""
    texts = {path.stem: path.read_text() for path in Path().glob(pattern)}
    assert all(trigger(text) and text.strip().count("\n") == 0 for text in texts.values()), texts
    return texts


def listed(name, key):
    """Stems of the files that a trainer's list names; they are there, and their captions have the trigger word."""
    rows, folder = records(Path(name)), Path(name).parent
    assert rows and all(any(trigger(value) for value in row.values() if isinstance(value, str)) for row in rows), rows
    assert all((folder / row[key]).exists() or Path(row[key]).exists() for row in rows), rows
    return {Path(row[key]).stem for row in rows}


def check_files(line):
    """The files that a command names are there, of the form that they are called by, without failures."""
    for option, word in pairwise(shlex.split(line)):
        path = Path(word)
        if option == "--output-dir":
            assert [one for one in path.iterdir() if one.name[0] != "."], line
        if option in ("-o", "--report", "--trace", "--output"):
            text = path.read_text() if path.suffix != ".parquet" else "bytes"
            if path.suffix == ".jsonl":
                assert not [one for one in records(path) if one.get("error")], line
            elif path.suffix == ".json":
                assert [json.loads(one) for one in (text.splitlines() if text.startswith('{"') else [text])], line
            elif path.suffix == ".csv":
                assert len(list(csv.DictReader(io.StringIO(text)))) > 0, line
            elif path.suffix == ".html":
                assert text.lower().startswith("<!doctype html") and text.rstrip().endswith("</html>"), line
            assert text, line


def sections():
    found = defaultdict(list)
    for page in sorted(PAGES):
        for title, line in console_lines(page):
            found[page, title].append(line)
    return dict(found)


def elsewhere(line):
    return any(re.match(pattern, line) for pattern in ELSEWHERE)


def pages():
    """The commands of each page that are run here, with their sections, in order."""
    found = defaultdict(list)
    for (page, title), lines in sections().items():
        found[page] += [(title, line) for line in lines if not elsewhere(line)]
    return {page: lines for page, lines in found.items() if lines}


#: Commands that make the inputs of a page's commands.
MAKES = re.compile(r"cp |echo |mkdir |printf |tar |vidspec sample ")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in list(os.environ):
        if name.startswith(("VIDSPEC_", "SLURM_", "RAY_")):
            monkeypatch.delenv(name)
    (tmp_path / "vidspec").symlink_to(ROOT / "vidspec")
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    program = tmp_path / "bin" / "vidspec"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("VIDSPEC_VIDEO__FRAMES", "4")
    monkeypatch.setenv("VIDSPEC_GENERATE__MAX_NEW_TOKENS", "20")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(line, capfd):
    """Run a line, which must succeed."""
    if SHELL.search(line):
        line = re.sub(r"^python ", f"{shlex.quote(sys.executable)} ", line)
        ran = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, timeout=300, check=False
        )
        assert ran.returncode == 0, f"{line}\n{ran.stderr}"
        return Ran(line, ran.stdout, ran.stderr)
    words = shlex.split(line)[1:]
    code = cli.main([*words, *MORE.get(words[0], ())])
    out, err = capfd.readouterr()
    assert code == 0, f"{line}\n{err}"
    return Ran(line, out, err)


@pytest.mark.parametrize("page", pages())
def test_the_commands_of_a_page(page, folder, capfd):
    for title, line in pages()[page]:
        if title not in FAKED:
            ran = run(line, capfd)
            assert ran.out or re.search(" -o |--output-dir|--cut |--format txt|^cp |^mkdir |^tar |> ", line), (
                f"{line}: printed nothing"
            )
            check_files(line)
            for pattern, effect in EFFECTS.items():
                assert not re.match(pattern, line) or effect(ran), f"{line}\n{ran.out}{ran.err}"


def test_the_commands_on_many_clips(folder, fake_models, capfd):
    pytest.importorskip("ray")
    pytest.importorskip("scenedetect")
    if shutil.which("jq") is None:
        pytest.skip("needs jq")
    lines = [line for title, line in pages()["caption"] if title in FAKED or MAKES.match(line)]
    out = {line: run(line, capfd).out for line in lines}
    for line in lines:
        check_files(line.partition(" 2>")[0])
    piped = next(text for line, text in out.items() if "jq" in line)
    names = [clip.name for clip in shipped()]
    assert piped.splitlines() == ["A red circle", "moves left."] * (len(names) + 1)
    again = records(folder / "captions.jsonl")
    assert [Path(one["path"]).name for one in again] == sorted(names)
    whole = (folder / "captions.jsonl").read_bytes()
    assert (folder / "merged.jsonl").read_bytes() == whole
    for other in ("replicas.jsonl", "ray.jsonl"):
        assert (folder / other).read_bytes() == whole, other
    assert [one["start"] for one in records(folder / "jobs.jsonl")] == [0.0] * len(names)
    assert len(list(srt.parse((folder / "clips/three-objects.srt").read_text()))) == 1
    assert len(webvtt.read(str(folder / "subtitles/three-objects.vtt"))) == 3  # of 9.3 s
    assert (folder / "scenes/three-objects.en.srt").is_file()


@pytest.mark.parametrize("page", ["README", "python"])
def test_the_library_as_it_is_shown(page, folder, capfd):
    for _, line in pages().get(page, ()):
        if MAKES.match(line):
            run(line, capfd)
    if page == "README":
        shutil.copy(shipped()[0], "clip.mp4")
    text = PAGES[page].replace("Qwen/Qwen2.5-VL-7B-Instruct", "vidspec/embedded/pair_qwen/target")  # no download
    for code in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        exec(compile(code, page, "exec"), {})
        out = capfd.readouterr().out
        assert out.strip() and "no such file" not in out
    if page == "python":
        assert all(clip.with_suffix(".txt").read_text() for clip in folder.glob("clips/**/*.mp4"))


@pytest.fixture
def shards(folder, fake_models):
    pytest.importorskip("pyarrow")
    Path("shards").mkdir()
    for number in range(2):
        Path(f"shards/{number:05d}.tar").write_bytes(tar_of({f"{number}{n}/good.mp4": CLIP for n in range(2)}))


def test_the_job_array(shards, monkeypatch):
    """The script as it stands on the page, each task by bash with the variables that SLURM sets; then one again."""
    (script,) = re.findall(r"```bash\n(#!/bin/bash\n#SBATCH.*?)```", PAGES["shards"], re.DOTALL)
    Path("captions.sbatch").write_text(script)
    outputs = []
    for task in [1, 2, 3, 1]:
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", str(task))
        monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "3")
        monkeypatch.setenv("SLURM_ARRAY_TASK_MIN", "1")
        ran = subprocess.run(["bash", "captions.sbatch"], capture_output=True, text=True, timeout=300, check=False)
        assert ran.returncode == 0, ran.stderr
        outputs.append(ran.stderr)
    assert sorted(os.listdir("captions.slurm")) == [".vidspec.array", "00000.parquet", "00001.parquet"]
    ends = [json.loads(line) for text in outputs for line in text.splitlines() if line.startswith('{"event": "end"')]
    assert sum(one["captioned"] for one in ends) == 4, "each clip by one task, once"


def test_a_ray_cluster(shards, monkeypatch):
    """The command of the page at the address of a cluster, which another process runs."""
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    (line,) = [
        line for line in sections()["shards", "Use several machines"] if "--address FIRST" in line and "caption" in line
    ]
    code = (
        "import ray; ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)\n"
        "print(ray.get_runtime_context().gcs_address, flush=True); input()"
    )
    words = {"s3://bucket/videos/{00000..09999}.tar": "shards/{00000..00001}.tar", "s3://bucket/captions": "captions"}
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as cluster:
        try:
            address = cluster.stdout.readline().strip()
            for old, new in {**words, "FIRST:6379": address}.items():
                line = line.replace(old, new)
            ran = subprocess.run(
                ["bash", "-c", f"{line} --device cpu"], capture_output=True, text=True, timeout=300, check=False
            )
        finally:
            cluster.communicate("\n")
    assert ran.returncode == 0, ran.stderr
    assert sorted(os.listdir("captions")) == ["00000.parquet", "00001.parquet"]


def test_each_effect_is_of_a_command():
    lines = [line for lines in pages().values() for _, line in lines]
    assert not [pattern for pattern in EFFECTS if not any(re.match(pattern, line) for line in lines)]


def test_what_is_not_run_says_where_it_is():
    lines = [line for lines in sections().values() for line in lines]
    for pattern, why in ELSEWHERE.items():
        assert any(re.match(pattern, line) for line in lines), f"{pattern}: no page has it"
        assert all((ROOT / name).exists() for name in re.findall(r"tests/\S+\.py", why)), why


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]
