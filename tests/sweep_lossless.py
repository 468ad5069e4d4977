"""Every lossless profile of every family over many random models: ``make sweep`` (hours); no part of ``make test-all``.

A run is one pair of random models, drawn by ``seed``, under every profile that its family takes. Windows go from 1 to 9
and clips come alone or four at a time, another way with every seed, so that over twenty seeds every profile has met
both and each window twice. ``VIDSPEC_SWEEP`` names a file for one JSON line of counts a run.
"""

import gc
import json
import os

import pytest

from tests.decoding.workers.pairs import named_requests
from tests.model_pairs import Pair, pair_checkpoints
from tests.ready_clips import ReadyClips
from tests.test_lossless import CLIPS, LOSSLESS
from vidspec.errors import ProfileError
from vidspec.events.events import Finished
from vidspec.models.base import families

SEEDS = int(os.environ.get("VIDSPEC_SWEEP_SEEDS", "20"))
TOKENS, FRAMES, WINDOWS, BATCH = 14, 4, 9, 4
pytestmark = pytest.mark.usefixtures("forked_drafts", "clips_read_once")


def ways(seed, number):
    """The window and the clips at once of one profile under one seed."""
    return 1 + (seed + number) % WINDOWS, (1, BATCH)[(seed // WINDOWS + seed + number) % 2]


def test_every_profile_meets_every_window_and_both_batches():
    for number in range(len(LOSSLESS)):
        met = [ways(seed, number) for seed in range(20)]
        assert {gamma for gamma, _ in met} == set(range(1, WINDOWS + 1)) and {batch for _, batch in met} == {1, BATCH}


def texts(captioner, batch, clips):
    if batch == 1:
        records = {clip: captioner.caption(CLIPS[clip]) for clip in clips[:1]}
    else:
        said = captioner.client.serve(ReadyClips(named_requests(captioner, clips)), batch=batch)
        records = {clip: event.caption for clip, event in said if isinstance(event, Finished)}
    lengths = [length for record in records.values() for length in record.counters["accepted_lengths"]]
    return {clip: record.token_ids for clip, record in records.items()}, lengths


@pytest.fixture(autouse=True)
def nothing_is_left():
    """Models go in circles of references, and few of their objects are many bytes: a collection would come late."""
    yield
    gc.collect()


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("family", sorted(families.names()))
def test_profiles(family, seed):
    pair = Pair(*pair_checkpoints(family, seed), tokens=TOKENS, **{"video.frames": FRAMES})
    told = {"family": family, "seed": seed, "runs": 0, "clips": 0, "windows": {}, "refused": []}
    try:
        for number, name in enumerate(LOSSLESS):
            gamma, batch = ways(seed, number)
            clips = sorted(CLIPS)[number % len(CLIPS) :] + sorted(CLIPS)[: number % len(CLIPS)]
            try:
                captioner = pair.captioner(name, {"draft.gamma": gamma})
            except ProfileError as error:
                told["refused"].append(f"{name}: {error}")
                continue
            found, lengths = texts(captioner, batch, clips)
            assert len(found) == batch
            for clip, tokens in found.items():
                assert tokens == pair.plain(CLIPS[clip]), (family, seed, name, gamma, batch, clip)
            told["runs"] += 1
            told["clips"] += len(found)
            told["windows"].setdefault(gamma, []).extend(lengths)
    finally:
        pair.close()
    assert told["runs"] >= 15  # chains at the least
    if path := os.environ.get("VIDSPEC_SWEEP"):
        told["windows"] = {
            gamma: [lengths.count(n) for n in range(gamma + 1)] for gamma, lengths in told["windows"].items()
        }
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(told) + "\n")
