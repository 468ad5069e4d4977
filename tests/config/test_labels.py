"""Names in one word of profiles with overrides."""

from __future__ import annotations

import pytest

from vidspec.bench.loaded import profile_labels
from vidspec.config.labels import parse, split
from vidspec.errors import UsageError


@pytest.mark.parametrize(
    "label, name, overrides",
    [
        ("fly", "fly", {}),
        ("fly+accept.window=2+accept.theta=0.1", "fly", {"accept.window": "2", "accept.theta": "0.1"}),
        ("ar+generate.prompt=a=b", "ar", {"generate.prompt": "a=b"}),
        ("mine/fly.yaml+accept.theta=", "mine/fly.yaml", {"accept.theta": ""}),
        (" fly + accept.window = 2 ", "fly", {"accept.window": "2"}),
    ],
)
def test_a_label_is_a_profile_and_overrides(label, name, overrides):
    assert parse(label) == (name, overrides)


@pytest.mark.parametrize(
    "label, complaint",
    [
        ("fly+window", "window is not KEY=VALUE"),
        ("fly+", "nothing is not KEY=VALUE"),
        ("fly+=2", "=2 is not KEY=VALUE"),
        ("+accept.window=2", "names no profile"),
        ("fly+accept.window=2+accept.window=3", "accept.window is set twice"),
    ],
)
def test_a_malformed_label_is_one_line(label, complaint):
    with pytest.raises(UsageError, match=complaint) as raised:
        parse(label)
    assert "\n" not in str(raised.value)
    with pytest.raises(UsageError, match=complaint):
        profile_labels(f"ar,{label}")


def test_files_may_have_a_plus_in_their_names(tmp_path):
    file = tmp_path / "a+b.yaml"
    assert parse(f"{tmp_path}/a.yaml+accept.lam=1") == (f"{tmp_path}/a.yaml", {"accept.lam": "1"})
    with pytest.raises(UsageError):
        parse(str(file))
    file.write_text("name: mine\n")
    assert parse(str(file)) == (str(file), {})
    assert parse(f"{file}+accept.lam=1") == (str(file), {"accept.lam": "1"})


def test_a_profile_of_the_user_may_have_a_plus_in_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr("vidspec.config.files.user_folder", lambda: tmp_path)
    (tmp_path / "mine+yours.yaml").write_text("about: both\n")
    assert parse("mine+yours+accept.lam=1") == ("mine+yours", {"accept.lam": "1"})


def test_commas_part_labels_but_not_the_items_of_a_list():
    assert split("ar, pdrop+lossy.keep=[0.5,0.25,1] ,fly") == ["ar", "pdrop+lossy.keep=[0.5,0.25,1]", "fly"]
    assert profile_labels("ar,fly,fly+accept.theta=0.1") == ["ar", "fly", "fly+accept.theta=0.1"]
