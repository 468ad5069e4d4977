"""METRICS, gate 1: in float32 on the CPU every lossless method gives the token ids of plain decoding.

``VIDSPEC_LOSSLESS_CLIPS=50`` draws more clips than the usual six, and shows the built-in pair all the shipped ones
under every profile.
"""

import os
from functools import cache
from types import SimpleNamespace

import pytest
from decoding import checkpoints

from vidspec import profiles, video
from vidspec.acceptance.base import Verdict
from vidspec.batch.compare import first_difference
from vidspec.captioner import Captioner
from vidspec.embedded.samples import draw, shipped
from vidspec.models import loading
from vidspec.registry import pruners, rules

PACKAGED = {info.name: str(info.path) for info in profiles.available() if info.source == "packaged"}


def speculates_losslessly(path):
    profile = profiles.load(path, env={})
    return profile.draft.kind != "none" and rules.get(profile.accept.rule).lossless


LOSSLESS = [name for name, path in PACKAGED.items() if speculates_losslessly(path)]
CLIPS = {path.stem: path for path in shipped()}
USUAL = 6
DRAWN = int(os.environ.get("VIDSPEC_LOSSLESS_CLIPS", USUAL))
PLACE = loading.placement("cpu", "float32")


@pytest.fixture(scope="module", autouse=True)
def clips_are_read_once():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(video, "read", cache(video.read))
        yield


def loaded(target, draft, tokens):
    """A pair, and what plain decoding of its target gives for a clip."""
    target, draft = loading.load(str(target), PLACE), loading.load(str(draft), PLACE)

    def captioner(name, overrides=None):
        settings = {"generate.max_new_tokens": tokens, **(overrides or {})}
        profile = profiles.load(PACKAGED[name], settings, env={})
        return Captioner(profile, target, None if name == "ar" else draft)

    @cache
    def plain(clip):
        return captioner("ar").caption(clip).token_ids

    return SimpleNamespace(captioner=captioner, plain=plain, tokens=tokens)


@pytest.fixture(scope="module")
def random_pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    return loaded(checkpoints.save(folder / "target"), checkpoints.save(folder / "draft", noise=0.05), tokens=48)


@pytest.fixture(scope="module")
def built_in_pair():
    return loaded(loading.embedded_folder("target"), loading.embedded_folder("draft"), tokens=24)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("drawn"), DRAWN, seed=2026)


def check(pair, captioner, clip):
    record = captioner.caption(clip)
    at = first_difference(record.token_ids, pair.plain(clip))
    assert at is None, f"{captioner.profile.name} leaves plain decoding of {clip} at token {at}"
    assert len(record.token_ids) <= pair.tokens
    return record


def test_profiles_are_found():
    assert {"vanilla-sd", "sd-rand", "sd-uniform", "sd-attention"} <= set(LOSSLESS) and "ar" not in LOSSLESS
    assert len(CLIPS) == 4


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("profile", LOSSLESS)
def test_random_pair(random_pair, profile, clip):
    check(random_pair, random_pair.captioner(profile), CLIPS[clip])


@pytest.mark.parametrize(("number", "profile"), list(enumerate(LOSSLESS)))
def test_built_in_pair(built_in_pair, number, profile):
    """Clips take turns; all of them in a longer run."""
    turns = sorted(CLIPS)[number % len(CLIPS) :][:1] if DRAWN <= USUAL else CLIPS
    for clip in turns:
        check(built_in_pair, built_in_pair.captioner(profile), CLIPS[clip])


def test_built_in_pair_on_all_clips(built_in_pair):
    captioner = built_in_pair.captioner("vanilla-sd")
    for clip in CLIPS.values():
        check(built_in_pair, captioner, clip)


@pytest.mark.parametrize("gamma", [1, 3, 8])
@pytest.mark.parametrize("alpha", [0, 0.5, 0.99])
def test_any_window_and_any_share(random_pair, gamma, alpha):
    captioner = random_pair.captioner("sd-attention", {"draft.gamma": gamma, "prune.alpha": alpha})
    lengths = set()
    for clip in CLIPS.values():
        lengths |= set(check(random_pair, captioner, clip).counters["accepted_lengths"])
    # The gate says little unless windows are rejected early, late and not at all.
    assert lengths >= ({0, 1, gamma} if alpha < 0.99 else {0, 1})


@pytest.mark.parametrize("method", [name for name in pruners.names() if name != "none"])
def test_any_pruner(random_pair, method):
    captioner = random_pair.captioner("sd-uniform", {"prune.method": method, "prune.alpha": 0.8})
    check(random_pair, captioner, CLIPS["one-object"])


@pytest.mark.parametrize("positions", ["original", "compact"])
def test_renumbered_positions(random_pair, positions):
    captioner = random_pair.captioner("sd-uniform", {"prune.positions": positions})
    check(random_pair, captioner, CLIPS["one-object"])


def test_drawn_clips(random_pair, built_in_pair, drawn):
    assert len(drawn) == DRAWN
    for number, clip in enumerate(drawn):
        profile = LOSSLESS[number % len(LOSSLESS)]
        for pair in (random_pair, built_in_pair):
            check(pair, pair.captioner(profile), clip)


class AcceptsAll:
    lossless = True

    def __call__(self, draft, target_logits, hidden, rng):
        return Verdict(len(draft.tokens), int(target_logits[-1].argmax()))


class AcceptsOneMore:
    """Almost right: takes the drafted token at the first mismatch too."""

    lossless = True

    def __call__(self, draft, target_logits, hidden, rng):
        choices = target_logits.argmax(-1).tolist()
        agree = next((i for i, token in enumerate(draft.tokens) if token != choices[i]), len(draft.tokens))
        accepted = min(agree + 1, len(draft.tokens))
        return Verdict(accepted, choices[accepted])


@pytest.mark.parametrize("rule", [AcceptsAll, AcceptsOneMore])
def test_the_gate_can_fail(random_pair, rule):
    captioner = random_pair.captioner("vanilla-sd")
    captioner.acceptance = rule()
    with pytest.raises(AssertionError, match="leaves plain decoding"):
        check(random_pair, captioner, CLIPS["one-object"])
