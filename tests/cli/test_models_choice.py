"""``vidspec models use`` and ``get``, and what the list marks and recommends."""

import huggingface_hub
import pytest
import yaml
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

from tests.fake_captioner import FakeCaptioner

TARGET, DRAFT = "Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen2.5-VL-3B-Instruct"
OTHER = "Qwen/Qwen3-VL-8B-Instruct"


@pytest.fixture
def config(tmp_path):
    return tmp_path / "config" / "vidspec" / "config.yaml"


@pytest.fixture
def fetched(monkeypatch):
    """Downloads, recorded by a stand-in for the hub's client."""
    names = []

    def download(name, *, allow_patterns):
        assert "*.safetensors" in allow_patterns and "*.bin" not in allow_patterns
        names.append(name)
        return f"/cache/{name}"

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return names


def test_a_choice_is_what_captions_come_from(vidspec, config):
    ran = vidspec("models", "use", TARGET)
    assert ran.code == 0 and TARGET in ran.out and DRAFT in ran.out and str(config) in ran.out
    assert f"`vidspec models get` fetches {TARGET} and {DRAFT}" in ran.err
    assert vidspec("caption", "good.mp4").code == 0
    models = FakeCaptioner.made[-1].client.profile.models
    assert (models.pair, models.target, models.draft) == (None, TARGET, DRAFT)
    assert vidspec("caption", "good.mp4", "--target", OTHER).code == 0  # what is named wins
    assert FakeCaptioner.made[-1].client.profile.models.target == OTHER


def test_a_choice_by_words(vidspec, config):
    assert vidspec("models", "use", "qwen3-vl 8b").code == 0
    assert yaml.safe_load(config.read_text()) == {"models": {"target": OTHER}}


def test_a_name_that_is_not_listed_is_a_choice_too(vidspec, config):
    """The hub may have it; a name like a listed one may be mistyped."""
    ran = vidspec("models", "use", "x/y")
    assert ran.code == 0 and yaml.safe_load(config.read_text()) == {"models": {"target": "x/y"}}
    assert "no draft is listed for x/y, so it drafts from earlier" in ran.err and "get` fetches x/y;" in ran.err
    ran = vidspec("models", "use", "Qwen/Qwen2.5-VL-7B-Instuct")
    assert ran.code == 0 and "-7B-Instuct, so it drafts from earlier captions" in ran.err


@pytest.mark.parametrize("back", ["--none", "embedded"])
def test_going_back_to_the_demo(vidspec, config, back):
    assert vidspec("models", "use", TARGET, "--draft", OTHER).code == 0
    assert yaml.safe_load(config.read_text()) == {"models": {"target": TARGET, "draft": OTHER}}
    ran = vidspec("models", "use", back)
    assert ran.code == 0 and "a demo that knows drawn shapes only" in ran.out
    assert not config.read_text().strip()
    assert vidspec("caption", "good.mp4").code == 0 and FakeCaptioner.made[-1].client.profile.models.pair == "embedded"


def test_a_built_in_pair_can_be_chosen(vidspec, config):
    assert vidspec("models", "use", "embedded-qwen").code == 0
    assert yaml.safe_load(config.read_text()) == {"models": {"pair": "embedded-qwen"}}
    assert vidspec("models", "use", TARGET).code == 0
    assert yaml.safe_load(config.read_text()) == {"models": {"target": TARGET}}


BEFORE = """# mine
profile: vanilla-sd
models:   # chosen once
  target: x/y  # a comment
  draft: x/z
  dtype: bfloat16

# of video
video: {frames: 8}
"""


def test_the_rest_of_a_config_stays(vidspec, config):
    config.parent.mkdir(parents=True)
    config.write_text(BEFORE)
    rest = {"profile": "vanilla-sd", "video": {"frames": 8}}
    assert vidspec("models", "use", TARGET).code == 0
    text = config.read_text()
    assert yaml.safe_load(text) == {**rest, "models": {"dtype": "bfloat16", "target": TARGET}}
    assert config.with_name("config.yaml~").read_text() == BEFORE  # its comments
    assert vidspec("models", "use", "--none").code == 0
    assert yaml.safe_load(config.read_text()) == {**rest, "models": {"dtype": "bfloat16"}}
    assert [path.name for path in config.parent.glob("*~*")] == ["config.yaml~"]


@pytest.mark.parametrize(
    "before",
    [
        "",
        "# nothing yet\n",
        "profile: ar",
        "models:\n",
        "{models: {target: a/b}, profile: ar}",
        "models:\n  draft: a/b\nprofile: ar\n",
    ],
)
def test_configs_of_any_style(vidspec, config, before):
    config.parent.mkdir(parents=True)
    config.write_text(before)
    rest = {key: value for key, value in (yaml.safe_load(before) or {}).items() if key != "models"}
    assert vidspec("models", "use", TARGET).code == 0
    assert yaml.safe_load(config.read_text()) == {**rest, "models": {"target": TARGET}}
    assert vidspec("models", "use", "--none").code == 0
    assert (yaml.safe_load(config.read_text()) or {}) == rest


def test_a_folder_is_kept_by_its_whole_path(vidspec, config, tmp_path):
    folder = tmp_path / "work" / "model"
    folder.mkdir()
    ran = vidspec("models", "use", "./model", "--draft", DRAFT)
    assert ran.code == 2 and "has no config.json" in ran.err and not config.exists()
    (folder / "config.json").write_text("{}")
    assert vidspec("models", "use", "./model", "--draft", DRAFT).code == 0
    assert yaml.safe_load(config.read_text())["models"]["target"] == str(folder)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("use",), "takes one model, or --none"),
        (("use", TARGET, OTHER), "takes one model, or --none"),
        (("use", TARGET, "--none"), "takes one model, or --none"),
        (("use", "--none", "--draft", DRAFT), "--draft needs the name of a target"),
        (("use", "embedded", "--draft", DRAFT), "--draft needs the name of a target"),
        (("get",), "no model is named or chosen"),
        (("get", TARGET, "--none"), "takes no --none"),
        (("get", TARGET, OTHER, "--draft", DRAFT), "--draft needs the name of one target"),
        (("get", "."), "is a folder"),
        (("use", TARGET, "--weights", "int8"), "models use: takes no --weights"),
        (("get", TARGET, "--frames", "8"), "models get: takes no --frames"),
        (("get", "embedded"), "models get: embedded: is built in"),
        (("embedded-qwen",), "embedded-qwen: is a built-in pair"),
        (("--none",), "--none: unexpected argument"),
    ],
)
def test_mistakes(vidspec, config, fetched, words, said):
    ran = vidspec("models", *words)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1) and said in ran.err
    assert not config.exists() and not fetched


def test_models_are_downloaded(vidspec, fetched):
    ran = vidspec("models", "get", TARGET)
    assert ran.code == 0 and fetched == [TARGET, DRAFT]
    assert ran.out == f"{TARGET}\t/cache/{TARGET}\n{DRAFT}\t/cache/{DRAFT}\n" and f"fetching {TARGET}" in ran.err
    fetched.clear()
    assert vidspec("models", "get", "x/y").code == 0 and fetched == ["x/y"]
    fetched.clear()
    assert vidspec("models", "get", TARGET, "--draft", "x/y").code == 0 and fetched == [TARGET, "x/y"]
    fetched.clear()
    assert vidspec("models", "use", OTHER).code == 0 and vidspec("models", "get").code == 0
    assert fetched == [OTHER, "Qwen/Qwen3-VL-2B-Instruct"]


def of_the_hub(kind):
    """Such an error without the response of whichever library speaks HTTP."""
    return kind.__new__(kind)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (of_the_hub(GatedRepoError), "access is restricted (accept its terms"),
        (of_the_hub(RepositoryNotFoundError), "not found on the hub"),
        (LocalEntryNotFoundError("the connection\nbroke"), "cannot be fetched: the connection broke"),
        (OSError(28, "No space left on device"), "No space left on device"),
    ],
)
def test_downloads_that_fail(vidspec, monkeypatch, error, said):
    def download(name, **_):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    ran = vidspec("models", "get", "x/y")
    assert (ran.code, ran.out) == (3, "") and ran.err.count("error: ") == 1 and said in ran.err
    assert len(ran.err.splitlines()) == 2


def test_without_a_hub(vidspec, monkeypatch, fetched):
    monkeypatch.setattr("vidspec.models.hub.unreachable_reason", lambda: "no route")
    for cached, said in ((False, "lacks x/y"), (True, "configs of all these models are in the cache already")):
        monkeypatch.setattr("vidspec.models.hub.is_cached", lambda name, cached=cached: cached)
        ran = vidspec("models", "get", "x/y")
        assert (ran.code, ran.out) == (3, "") and ran.err.startswith("error: the hub cannot be reached (no route)")
        assert said in ran.err
    assert not fetched
