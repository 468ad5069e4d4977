import json
from pathlib import Path

import pytest

from tests.fake_captioner import FakeCaptioner
from vidspec.config import files
from vidspec.config.user_config import OWN_KEYS, SECTIONS, read_config

CONFIG = """
profile: sd-rand
format: jsonl
models: {target: big, draft: small}
video: {frames: 7}
generate: {max_new_tokens: 99}
"""


@pytest.fixture
def config():
    path = read_config().path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(CONFIG)
    return path


def shown(vidspec, *args):
    return {key: (one["value"], one["source"]) for key, one in shown_raw(vidspec, *args).items()}


def shown_raw(vidspec, *args):
    return json.loads(vidspec("config", "show", "--format", "json", *args).out)


def test_without_a_config_everything_is_the_profile_or_a_default(vidspec):
    found = shown(vidspec)
    assert found["profile"] == ("sparrow", "default") and found["format"] == ("text", "default")
    assert found["models.pair"][0] == "embedded" and found["models.pair"][1].endswith("dflash.yaml")
    assert found["generate.top_p"] == (1.0, "default")
    note = vidspec("config", "show").err
    *others, last = (*OWN_KEYS, *SECTIONS)
    assert "there is no" in note and note.endswith(f"; it may hold {', '.join(others)} and {last}\n")


def test_the_config_gives_profile_pair_and_format(vidspec, config):
    assert vidspec("caption", "good.mp4", "b/good.mp4").records[1]["path"] == "b/good.mp4"
    made = FakeCaptioner.made[0].client
    assert (made.profile.name, made.profile.models.target, made.profile.models.pair) == ("sd-rand", "big", None)
    assert (made.profile.video.frames, made.profile.generate.max_new_tokens) == (7, 99)


def test_one_profile_is_read_and_not_all(vidspec, config, monkeypatch):
    """Reading all takes a while, before anything is shown."""
    read, real = [], files.read_yaml
    monkeypatch.setattr(files, "read_yaml", lambda path, *error: read.append(path.stem) or real(path, *error))
    assert vidspec("caption", "good.mp4").code == 0 and set(read) == {"config", "sd-rand", "sd-tree", "vanilla-sd"}


def test_where_each_value_comes_from(vidspec, config, monkeypatch):
    monkeypatch.setenv("VIDSPEC_GENERATE__MAX_NEW_TOKENS", "11")
    found = shown(vidspec, "--set", "generate.seed=3")
    assert found["profile"] == ("sd-rand", str(config)) and found["format"] == ("jsonl", str(config))
    assert found["models.target"] == ("big", str(config)) and found["video.frames"] == (7, str(config))
    assert found["models.pair"] == (None, "default")
    assert found["generate.max_new_tokens"] == (11, "VIDSPEC_GENERATE__MAX_NEW_TOKENS")
    assert found["generate.seed"] == (3, "flag")
    assert found["prune.alpha"][1].endswith("sd-rand.yaml")
    monkeypatch.setenv("VIDSPEC_PROFILE", "ar")
    assert shown(vidspec)["profile"] == ("ar", "VIDSPEC_PROFILE")
    assert shown(vidspec, "-p", "ar")["profile"][0] == "ar"
    assert (
        f"video.frames              7  [{config}]".split()
        == next(line for line in vidspec("config", "show").out.splitlines() if line.startswith("video.frames")).split()
    )


def test_flags_and_own_profiles_win_over_the_config(vidspec, config):
    vidspec("caption", "good.mp4", "--pair", "embedded", "--fps", "2", "--format", "text")
    made = FakeCaptioner.made[-1].client
    assert (made.profile.models.pair, made.profile.models.target) == ("embedded", None)
    assert (made.profile.video.fps, made.profile.video.frames) == (2.0, None)
    Path("own.yaml").write_text("video: {frames: 3}\nmodels: {pair: embedded}\n")
    vidspec("caption", "good.mp4", "-p", "./own.yaml")
    made = FakeCaptioner.made[-1].client
    assert (made.profile.video.frames, made.profile.models.pair) == (3, "embedded")
    assert made.profile.generate.max_new_tokens == 99


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("video: {framez: 3}", "video.framez: unknown key; did you mean video.frames?"),
        ("profil: ar", "profil: unknown key; did you mean profile?"),
        ("nothing: 3", "nothing: unknown key"),
        ("- a", "must be a mapping of keys, not list"),
        ("a: [", "line 1, column 5: not YAML"),
        ("format: 3", "format: must be text, not int"),
        ("format: xml", "format: must be one of "),
        ("prune: {alpha: 0.5}", "prune.alpha: is part of a method (put it into a profile"),
        ("name: x", "name: is not a key of a config"),
    ],
)
def test_mistakes_name_the_file(vidspec, config, text, message):
    config.write_text(text)
    ran = vidspec("caption", "good.mp4")
    assert ran.code == 2 and f"{config}: {message}" in ran.err and not FakeCaptioner.made


def test_a_config_that_is_a_link_to_nothing_is_not_ignored(vidspec, config):
    config.unlink()
    config.symlink_to("gone.yaml")
    ran = vidspec("caption", "good.mp4")
    assert (ran.code, ran.err) == (2, f"error: {config}: cannot be read: No such file or directory\n")


def test_all_keys_with_their_options(vidspec):
    """The reference has every key of the schema, the parts' own too, and the option that sets it."""
    rows = {row["key"].partition(",")[0]: row for row in json.loads(vidspec("config", "keys", "--format", "json").out)}
    assert set(rows) == {key for key in shown(vidspec) if "." in key}
    assert rows["video.audio"]["key"] == "video.audio, --audio, --no-audio"
    alpha = rows["prune.alpha"]
    assert (alpha["values"], alpha["default"]) == ("0 to 0.99", "0.9") and "does not see" in alpha["about"]
    assert "specvlm" in rows["prune.method"]["values"] and rows["accept.theta"]["about"].startswith("fly, fly_minus: ")
    assert all(row["about"].strip(".") for row in rows.values())


def test_keys_of_a_section(vidspec):
    lines = vidspec("config", "keys", "accept").out.splitlines()
    assert {line.partition(".")[0] for line in lines} == {"accept"} and all(line.count("\t") == 3 for line in lines)
    assert "no section acept" in vidspec("config", "keys", "acept").err
