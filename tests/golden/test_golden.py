"""Changes of structure leave texts, counters, options, exit codes and the record's schema alone (``make.py``)."""

import json
from functools import cache

import pytest

from tests.golden import make
from tests.packaged import packaged
from tests.ready_clips import read_requests, serve_captions
from tests.tiers import full_but, in_turn
from vidspec import errors
from vidspec.embedded.samples import shipped


@cache
def written(name):
    return json.loads((make.FOLDER / f"{name}.json").read_text(encoding="utf-8"))


@cache
def loaded(pair):
    """A captioner whose models those of all profiles share."""
    return make.captioner(pair, "vanilla-sd")


@pytest.mark.parametrize("name", ["caption_options", "record_schema"])
def test_what_is_offered_stays(name):
    now, before = make.MADE[name](), written(name)
    if name == "caption_options":  # more may come
        assert not set(before) - set(now)
    else:
        assert now == before


def test_exit_codes_stay():
    kinds = {name: getattr(errors, name) for name in errors.__all__}
    codes = {name: kind.exit_code for name, kind in kinds.items() if isinstance(kind, type)}
    assert codes == {
        "VidspecError": 1,
        "DescriptorError": 1,
        "VideoError": 1,
        "GenerationError": 1,
        "OutputError": 1,
        "LostOutputError": 4,
        "UsageError": 2,
        "ArgumentError": 2,
        "ClosedError": 2,
        "ProfileError": 2,
        "ModelError": 3,
        "DeviceError": 3,
    }


EVERY = [(pair, profile, batch) for pair in make.PAIRS for profile in make.PROFILES for batch in (1, 4)]
#: Every fourth profile, on the pairs and at the numbers of clips in turn.
USUAL = [(make.PAIRS[at % 2], profile, (1, 4)[at // 2 % 2]) for at, profile in enumerate(make.PROFILES[::4])]


@pytest.mark.sample(quick=1, full=8)
@pytest.mark.usefixtures("clips_read_once")
@pytest.mark.parametrize(("pair", "profile", "batch"), full_but(USUAL, in_turn(EVERY, 3)))
def test_texts_and_counters_stay(pair, profile, batch):
    before = written("texts")[pair]
    with make.captioner(pair, profile, loaded(pair)) as captioner:
        requests = read_requests(captioner, {clip.stem: clip for clip in shipped()})
        found = serve_captions(captioner, requests, batch)
    assert sorted(found) == sorted(before["plain"])
    for clip, caption in found.items():
        expected = dict(before["profiles"][profile][clip])
        assert caption.token_ids == expected.pop("token_ids", before["plain"][clip])
        assert make.counted(caption) == expected


#: Heads of these come with no pair.
HEADLESS = {"eagle3", "mtp"}
LOSSLESS = [name for name, profile in packaged().items() if profile.lossless and name not in HEADLESS]


@pytest.mark.full
@pytest.mark.usefixtures("forked_drafts", "clips_read_once")
@pytest.mark.parametrize(
    ("pair", "profile", "batch"),
    in_turn([(pair, profile, batch) for batch in (1, 4, 16) for pair in make.PAIRS for profile in LOSSLESS], 19),
)
def test_token_ids_of_every_lossless_profile_stay(pair, profile, batch):
    """On each pair, alone and with many clips at once."""
    plain = written("texts")[pair]["plain"]
    with make.captioner(pair, profile) as captioner:
        clips = {f"{clip.stem} {copy}": clip for copy in range(max(1, batch // 4)) for clip in shipped()}
        found = serve_captions(captioner, read_requests(captioner, clips), batch)
    assert {key: caption.token_ids for key, caption in found.items()} == {key: plain[key.split()[0]] for key in clips}
