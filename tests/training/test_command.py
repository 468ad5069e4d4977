"""``vidspec train``, the default draft that it gives a target, and the list of heads."""

import json
import logging
import shutil
from contextlib import ExitStack

import pytest

from tests.checkpoints import checkpoint, copy_checkpoint
from vidspec.cli import main
from vidspec.cli.train import _Bars
from vidspec.config.user_config import PLAIN, UserConfig
from vidspec.decoding import auto
from vidspec.decoding.default_profile import resolve_profile
from vidspec.embedded.samples import shipped
from vidspec.errors import VideoError
from vidspec.models import own_heads
from vidspec.models.own_heads import OwnHead, add_head, weights_digest
from vidspec.training.train import StatesProgress


@pytest.fixture
def no_config(tmp_path):
    return UserConfig(tmp_path / "config.yaml")


def listed(target, folder, decode=2.5, name="mine"):
    """A head of a target, as training keeps it."""
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return add_head(
        folder, OwnHead(name, str(target), weights_digest(str(target)), "dflash", "2026-01-02", 300, 4.0, decode, 1.5)
    )


def test_a_head_that_gains_is_the_default_draft_of_these_weights_only(user_cache, no_config, tmp_path, caplog):
    target, other = checkpoint("readable"), checkpoint("readable", noise=0.05)
    head = listed(target, tmp_path / "head")
    moved = tmp_path / "elsewhere"
    shutil.copytree(target, moved)
    caplog.set_level(logging.DEBUG, "vidspec")
    for name in (target, moved):
        resolved = resolve_profile(None, {"models.target": str(name)}, no_config)
        profile = resolved.profile
        assert resolved.sources["models.draft"] == "vidspec train"
        assert (profile.draft.kind, profile.models.draft, profile.name) == ("dflash", str(head.folder), "own-head")
        assert profile.draft.options == {"visual": "none"}
    assert "own-head: mine: trained here on 300 captions, measured 2.50x plain decoding" in caplog.text
    assert resolve_profile(None, {"models.target": str(other)}, no_config).profile.models.draft is None


def test_a_draft_that_is_predicted_to_gain_more_stays_the_default(user_cache, no_config, tmp_path, monkeypatch):
    target = checkpoint("readable")
    head = listed(target, tmp_path / "head")
    monkeypatch.setattr("vidspec.models.machine.has_gpu", lambda: True)
    for gain, draft in ((2.4, str(head.folder)), (2.6, None)):
        predicted = auto.DefaultDraft(dict(PLAIN), "predicted", gain)
        monkeypatch.setattr(auto, "default_draft", lambda keys, cached, predicted=predicted: predicted)
        resolved = resolve_profile(None, {"models.target": str(target)}, no_config)
        assert resolved.profile.models.draft == draft
    assert (
        resolve_profile(None, {"models.target": str(target)}, no_config).sources["draft.kind"]
        == "predicted for this GPU"
    )


def test_the_users_own_choice_wins(user_cache, no_config, tmp_path):
    target = checkpoint("readable")
    listed(target, tmp_path / "head")
    named = {"models.target": str(target), "models.draft": str(checkpoint("readable", noise=0.05))}
    assert resolve_profile(None, named, no_config).profile.draft.kind == "model"
    assert resolve_profile("ar", {"models.target": str(target)}, no_config).profile.draft.kind == "none"


def test_a_head_that_gains_too_little_is_listed_and_not_used(user_cache, no_config, tmp_path, capsys):
    target = checkpoint("readable")
    listed(target, tmp_path / "head", decode=1.04)
    assert resolve_profile(None, {"models.target": str(target)}, no_config).profile.models.draft is None
    assert main(["models"]) == 0
    assert "mine\ttrained 2026-01-02\t300 clips\tgains too little, not used" in capsys.readouterr().out


def test_heads_are_listed_with_date_clips_and_gain_and_removed(user_cache, tmp_path, capsys):
    target = checkpoint("readable")
    head = listed(target, tmp_path / "head")
    assert main(["models"]) == 0
    line = f"{target} with mine\ttrained 2026-01-02\t300 clips\t2.5x plain decoding, measured"
    assert line in capsys.readouterr().out.splitlines()
    assert main(["models", "--format", "json"]) == 0
    last = json.loads(capsys.readouterr().out)[-1]
    assert (last["draft"], last["gain"], last["made"], last["clips"]) == ("mine", 2.5, "2026-01-02", 300)
    assert main(["models", "remove", "mine"]) == 0
    assert not head.folder.exists() and own_heads.own_heads() == []
    assert main(["models", "remove", "mine"]) == 2
    assert "no head of this name was trained here" in capsys.readouterr().err


def test_weights_are_told_apart_by_any_tensor_and_not_by_their_name(tmp_path):
    target = checkpoint("readable")
    digest = weights_digest(str(target))
    assert digest is not None and digest != weights_digest(str(checkpoint("readable", seed=1)))
    changed = copy_checkpoint(tmp_path / "changed", "readable")
    assert weights_digest(str(changed)) == digest
    file = next(changed.glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    assert weights_digest(str(changed)) not in (None, digest)
    assert weights_digest("nobody/no-such-model") is None


def test_the_command_says_what_it_takes_and_what_it_gained(caption_lines, user_cache, tmp_path, capsys):
    out, page = tmp_path / "head", tmp_path / "page.html"
    assert main(["train", str(caption_lines), "--minutes", "0.02", "--out", str(out), "--report", str(page)]) == 0
    told = capsys.readouterr()
    assert "48 captions, of 56 prompts to train on, 8 to measure with" in told.err
    assert "GiB of memory, and its states" in told.err
    assert "times as fast as plain decoding" in told.out and f"written to {out}" in told.out
    assert (out / "model.safetensors").exists()
    shown = page.read_text()
    assert (
        "<polyline" in shown and shown.count("<h2>Caption</h2>") == 2 and 'class="t block' in shown + 'class="t block'
    )


def test_clips_that_cannot_be_read_are_counted_and_the_first_is_named(capsys):
    gone = [VideoError("/gone.mp4: no such file"), VideoError("/other.mp4: is damaged")]
    with ExitStack() as stack:
        bars = _Bars(stack, quiet=False)
        bars.show(StatesProgress(50, 56, gone[:1]))
        bars.show(StatesProgress(56, 56, gone))
    told = capsys.readouterr().err.splitlines()
    assert told[-1].endswith(
        "2 captions are left out, as their clips cannot be read; the first: /gone.mp4: no such file"
    )
    assert sum("left out" in line for line in told) == 1


def test_captions_whose_clips_have_gone_train_no_head(caption_lines, user_cache, tmp_path, capsys):
    moved = tmp_path / "captions.jsonl"
    moved.write_text(caption_lines.read_text().replace(str(shipped()[0]), "/gone.mp4"))
    hidden = caption_lines.with_name(f".{caption_lines.name}.vidspec.jsonl")
    shutil.copyfile(hidden, tmp_path / ".captions.jsonl.vidspec.jsonl")
    assert main(["train", str(moved)]) == 2
    told = capsys.readouterr().err
    assert "clips of 56 of 56 captions cannot be read" in told and "the first: /gone.mp4: no such file" in told


def test_wrong_options_are_refused_before_anything_is_loaded(caption_lines, user_cache, tmp_path, capsys):
    for options, told in (
        (["--disk", "much"], "--disk much: must be a size"),
        (["--disk", "10KB"], "captions fit 0.00 GB, and a head learns from 50 or more"),
        (["--target", "nobody/other"], "0 captions that nobody/other wrote"),
        (["--minutes", "0"], "must be more than 0"),
    ):
        assert main(["train", str(caption_lines), *options]) == 2
        assert told in capsys.readouterr().err
