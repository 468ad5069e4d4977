"""Methods in files that a profile names."""

import pickle
import subprocess
import sys

import pytest
from plugins import forget_plugins

from vidspec import registry
from vidspec.errors import ProfileError
from vidspec.profile import profiles
from vidspec.pruning.base import configured

MINE = """
from vidspec.registry import pruners
loaded = []
@pruners.register("mine")
class Mine:
    needs = frozenset()
    def __init__(self, depth=0, size=1):
        self.size = size
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
    assert registry.pruners.get("mine").__name__ == "Mine" and "mine" in registry.names("pruning")


def test_a_file_is_run_once(folder):
    profiles.load("own/mine.yaml", env={})
    method = registry.pruners.get("mine")
    again = profiles.override(profiles.load("own/mine.yaml", env={}), {"prune.alpha": 0.5})
    assert registry.pruners.get("mine") is method and again.plugins == (str(folder / "mine.py"),)


def test_a_setting_names_a_file_of_the_working_folder(folder):
    profile = profiles.load("sd-uniform", {"plugins": "own/mine.py", "prune.method": "mine"}, env={})
    assert profile.plugins == (str(folder / "mine.py"),)


def test_a_profile_brings_its_plugins_to_another_process(folder):
    data = pickle.dumps(profiles.load("own/mine.yaml", env={}))
    code = (
        "import pickle, sys; from vidspec import registry; profile = pickle.loads(sys.stdin.buffer.read());"
        "print(profile.name, registry.pruners.get('mine').__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)
    assert done.stdout.split() == [b"mine", b"Mine"]


def test_options_reach_the_constructor_and_no_others(folder):
    text = PROFILE.replace("method: mine", "method: mine, options: {size: 3}")
    (folder / "mine.yaml").write_text(text)
    prune = profiles.load("own/mine.yaml", env={}).prune
    assert configured(registry.pruners.get("mine"), prune.model_dump(), depth=4).size == 3
    with pytest.raises(ProfileError, match=r"prune\.options\.sise: this pruner takes depth, size"):
        configured(registry.pruners.get("mine"), {"options": {"sise": 3}}, depth=4)


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
    known = registry.names("pruning")
    with pytest.raises(ProfileError) as caught:
        profiles.load("own/mine.yaml", env={})
    assert str(caught.value).startswith(f"plugins: {folder / 'mine.py'}: ") and message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert registry.names("pruning") == known and not [name for name in sys.modules if "vidspec_plugin" in name]


def test_two_files_of_one_name_that_register_one_name(folder, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    profiles.load("own/mine.yaml", env={})
    with pytest.raises(ProfileError, match="pruner 'mine' is registered twice"):
        profiles.load("sd-uniform", {"plugins": "mine.py", "prune.method": "mine"}, env={})
    assert registry.pruners.get("mine").__module__.startswith("vidspec_plugin_mine_")


@pytest.mark.parametrize("value", ["3", "[3]", "{a: b}"])
def test_what_is_no_list_of_files(folder, value):
    (folder / "mine.yaml").write_text(PROFILE.replace("mine.py", value))
    with pytest.raises(ProfileError, match="plugins"):
        profiles.load("own/mine.yaml", env={})
