"""Methods in files that a profile names."""

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugins import forget_plugins
from vidspec import cli
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.config.schema import names
from vidspec.embedded.samples import shipped
from vidspec.errors import GenerationError, ProfileError
from vidspec.pruning.base import Pruner, pruners
from vidspec.registry import build_part

MINE = """
from typing import Annotated
from pydantic import Field
from vidspec.pruning.base import Pruner, pruners
@pruners.register("mine")
class Mine(Pruner):
    def __init__(self, depth=0, size: Annotated[int, Field(ge=1)] = 1):
        self.size = size
    def __call__(self, signals, alpha): ...
"""
PROFILE = "plugins: mine.py\ndraft: {kind: model}\nprune: {method: mine}\nschedule: {kind: sequential}\n"


@pytest.fixture(autouse=True)
def nothing_stays():
    yield
    forget_plugins()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.py").write_text(MINE)
    (tmp_path / "own" / "mine.yaml").write_text(PROFILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "own"


def test_a_profile_names_a_file_beside_it(folder):
    profile = profiles.load("own/mine.yaml", env={})
    assert profile.plugins == (str(folder / "mine.py"),) and profile.prune.method == "mine"
    assert pruners.get("mine").__name__ == "Mine" and "mine" in names("pruning")


def test_a_file_is_run_once(folder):
    profiles.load("own/mine.yaml", env={})
    method = pruners.get("mine")
    again = profiles.override(profiles.load("own/mine.yaml", env={}), {"prune.alpha": 0.5})
    assert pruners.get("mine") is method and again.plugins == (str(folder / "mine.py"),)


def test_a_setting_names_a_file_of_the_working_folder(folder):
    profile = profiles.load("sd-uniform", {"plugins": "own/mine.py", "prune.method": "mine"}, env={})
    assert profile.plugins == (str(folder / "mine.py"),)


def test_a_profile_brings_its_plugins_to_another_process(folder):
    data = pickle.dumps(profiles.load("own/mine.yaml", env={}))
    code = (
        "import pickle, sys; from vidspec.pruning.base import pruners; profile = pickle.loads(sys.stdin.buffer.read());"
        "print(profile.name, pruners.get('mine').__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)
    assert done.stdout.split() == [b"mine", b"Mine"]


def test_options_reach_the_constructor(folder):
    text = PROFILE.replace("method: mine", "method: mine, options: {size: 3}")
    (folder / "mine.yaml").write_text(text)
    profile = profiles.load("own/mine.yaml", env={})
    prune = profile.prune.model_dump(exclude_defaults=True)
    assert build_part(pruners.get("mine"), prune, depth=4).size == 3
    assert profiles.override(profile, {"prune.options.size": "4"}).prune.options == {"size": 4}
    assert profiles.override(profile, {"prune.method": "uniform"}).prune.options == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("{sise: 3}", "prune.options.sise: unknown key; did you mean size? mine takes size"),
        ("{depth: 3}", "prune.options.depth: unknown key; mine takes size"),
        ("{size: big}", "prune.options.size: must be a valid integer, unable to parse string as an integer, not 'big'"),
        ("{size: 0}", "prune.options.size: must be greater than or equal to 1, not 0"),
        ("3", "prune.options: must be a valid dictionary, not 3"),
    ],
)
def test_options_are_checked_with_the_profile(folder, options, message):
    (folder / "mine.yaml").write_text(PROFILE.replace("method: mine", f"method: mine, options: {options}"))
    with pytest.raises(ProfileError) as caught:
        profiles.load("own/mine.yaml", env={})
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no such file"),
        ("1 +", "SyntaxError"),
        ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        (MINE.replace('"mine"', '"uniform"'), "pruner 'uniform' is vidspec's own; take another name"),
        (MINE + "\nraise RuntimeError('late')", "RuntimeError: late"),
    ],
)
def test_a_file_that_does_not_work(folder, text, message):
    (folder / "mine.py").unlink()
    if text is not None:
        (folder / "mine.py").write_text(text)
    known = names("pruning")
    with pytest.raises(ProfileError) as caught:
        profiles.load("own/mine.yaml", env={})
    assert str(caught.value).startswith(f"plugins: {folder / 'mine.py'}: ") and message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert names("pruning") == known and not [name for name in sys.modules if "vidspec_plugin" in name]


def test_two_files_of_one_name_that_register_one_name(folder, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    profiles.load("own/mine.yaml", env={})
    with pytest.raises(ProfileError, match="pruner 'mine' is registered twice"):
        profiles.load("sd-uniform", {"plugins": "mine.py", "prune.method": "mine"}, env={})
    assert pruners.get("mine").__module__.startswith("vidspec_plugin_mine_")


@pytest.mark.parametrize("value", ["3", "[3]", "{a: b}"])
def test_what_is_no_list_of_files(folder, value):
    (folder / "mine.yaml").write_text(PROFILE.replace("mine.py", value))
    with pytest.raises(ProfileError, match="plugins"):
        profiles.load("own/mine.yaml", env={})


EXAMPLE = Path(__file__).resolve().parents[1] / "docs" / "examples" / "lookup.yaml"
FEW = {"video.frames": 4, "generate.max_new_tokens": 40}
CLIP = str(shipped()[1])


@pytest.fixture(scope="module")
def plain():
    """The built-in target, and its text of a clip in plain decoding."""
    with Captioner.from_profile("ar", overrides=FEW) as captioner:
        yield captioner.client.setup.target.model, captioner.caption(CLIP)


@pytest.fixture
def looked_up(plain):
    """The same target with the example's drafter, and that text."""
    model, text = plain
    return Captioner(profiles.load(str(EXAMPLE), FEW, env={}), model, None), text


@pytest.mark.full
def test_a_drafter_without_a_model_drafts_in_turns(looked_up):
    captioner, plain = looked_up
    found = captioner.caption(CLIP)
    assert found.token_ids == plain.token_ids and found.lossless
    counters = found.counters
    assert (
        captioner.client.setup.draft is None and counters["draft_forwards"] == 0 and counters["visual_tokens_kept"] == 0
    )
    assert counters["accepted"] > 0 and counters["target_forwards"] < len(found.token_ids)


def test_its_windows_follow_what_is_measured_and_what_is_drawn_stays_plain_decodings(looked_up):
    captioner, plain = looked_up
    auto = profiles.override(captioner.client.profile, {"draft.gamma": "auto"})
    assert Captioner(auto, captioner.client.setup.target.model, None).caption(CLIP).token_ids == plain.token_ids
    drawn = Captioner(
        profiles.override(captioner.client.profile, {"generate.temperature": 0.8}),
        captioner.client.setup.target.model,
        None,
    )
    assert drawn.caption(CLIP).token_ids == drawn.caption(CLIP, plain=True).token_ids


def test_each_clip_has_a_drafter_of_its_own(looked_up, monkeypatch):
    captioner, _ = looked_up
    kind = captioner.client.setup.drafter
    opened = []
    real = type(kind).opened
    monkeypatch.setattr(type(kind), "opened", lambda self, clip: opened.append(self) or real(self, clip))
    captioner.caption(CLIP)
    captioner.caption(CLIP)
    assert len({*map(id, opened), id(kind)}) == 3 and opened[0].text is not opened[1].text
    assert opened[0].text == opened[1].text and opened[0].seen[: len(opened[0].prompt)] == list(opened[0].prompt)


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("wrong", [-1, 10**6])
def test_an_id_beyond_the_vocabulary_names_the_plugin(looked_up, monkeypatch, wrong):
    captioner, plain = looked_up
    with monkeypatch.context() as patch:
        patch.setattr(
            type(captioner.client.setup.drafter), "guess", lambda self, gamma: [plain.token_ids[1], wrong][:gamma]
        )
        with pytest.raises(GenerationError, match=rf"the drafter vidspec_plugin_\S+ proposed the token {wrong}, and"):
            captioner.caption(CLIP)
    assert captioner.caption(CLIP).token_ids == plain.token_ids


@pytest.mark.full
def test_it_drafts_for_several_clips_at_once(tmp_path, capsys):
    for number in range(3):
        shutil.copy(shipped()[number], tmp_path / f"{number}.mp4")
    few = [word for key, value in FEW.items() for word in ("--set", f"{key}={value}")]
    texts = {}
    for profile, batch in (("ar", "1"), (str(EXAMPLE), "4")):
        args = ["caption", str(tmp_path), "-p", profile, "--batch", batch, "--format", "jsonl", *few]
        assert cli.main(args) == 0
        records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        texts[batch] = {one["path"]: one["caption"] for one in records}
    assert len(texts["1"]) == 3 and texts["1"] == texts["4"]


@pytest.mark.full
def test_it_is_measured_beside_others(capsys, monkeypatch):
    for key, value in FEW.items():
        monkeypatch.setenv("VIDSPEC_" + key.upper().replace(".", "__"), str(value))
    arguments = ["bench", CLIP, "--profiles", f"ar,{EXAMPLE}", "--repeats", "1"]
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.setattr("vidspec.bench.measure.copy_bandwidth", lambda device: 1e9)
    assert cli.main(arguments) == 0
    assert f"| {EXAMPLE} | 1/1 |" in capsys.readouterr().out  # the same tokens as plain decoding


@pytest.mark.full
def test_its_passes_are_the_targets_alone(capsys):
    few = [word for key, value in FEW.items() for word in ("--set", f"{key}={value}")]
    assert cli.main(["profile", CLIP, "--profiles", str(EXAMPLE), "--repeats", "1", *few]) == 0
    assert "lookup" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule.kind": "parallel"}, "draft.kind: lookup needs more of the target than token ids"),
        ({"draft.topology": "tree"}, "draft.topology: a lookup drafts a chain"),
        ({"prune.method": "uniform"}, "prune.method: uniform chooses what a draft sees, and draft.kind lookup chooses"),
        ({"draft.options.longest": "0"}, "draft.options.longest: must be greater than or equal to 1, not '0'"),
        ({"draft.options.lognest": "2"}, "draft.options.lognest: unknown key; did you mean longest?"),
        ({"draft.kind": "model", "draft.options.longest": "2"}, "draft.options.longest: unknown key; model takes no"),
    ],
)
def test_what_it_is_not_for(settings, message):
    with pytest.raises(ProfileError) as caught:
        profiles.load(str(EXAMPLE), settings, env={})
    assert caught.value.message.startswith(message)


def test_keys_of_a_section_stay_there():
    """They have bounds of their own."""
    with pytest.raises(ProfileError, match=r"^accept\.options\.lam: is a key of the section; .*: accept\.lam$"):
        profiles.load("lvspec", {"accept.options.lam": "7"}, env={})
    with pytest.raises(ProfileError, match=r"^lossy\.options\.lam: unknown key; fastv takes layer, keep, retention$"):
        profiles.load("fastv", {"lossy.options.lam": "7"}, env={})


def test_what_is_no_drafter(folder):
    (folder / "mine.py").write_text(
        MINE.replace("pruners", "drafters").replace("pruning", "drafting").replace("Pruner", "DrafterKind")
    )
    (folder / "mine.yaml").write_text("plugins: mine.py\ndraft: {kind: mine}\nschedule: {kind: sequential}\n")
    with pytest.raises(ProfileError, match=r"draft\.kind: the drafter mine does not define open \(see vidspec"):
        profiles.load("own/mine.yaml", env={})


def test_a_plugin_whose_class_has_no_base_works(folder):
    (folder / "mine.py").write_text(MINE.replace("(Pruner)", ""))
    with pytest.warns(DeprecationWarning, match="Mine should derive from vidspec.pruning.base.Pruner"):
        profile = profiles.load("own/mine.yaml", env={})
    assert profile.prune.method == "mine" and issubclass(pruners.get("mine"), Pruner)
