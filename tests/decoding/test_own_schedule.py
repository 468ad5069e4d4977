"""Schedules in one file of a user: the example of docs/extend/parts.md, and one that a test registers."""

from pathlib import Path

import pytest

from tests.plugins import forget_plugins
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.decoding.prefill import prefill
from vidspec.decoding.schedules.autoregressive import plain_round
from vidspec.embedded.samples import shipped
from vidspec.errors import ProfileError
from vidspec.events.events import Finished, InputsReleased, Prefilled, Restarted, Round
from vidspec.schedule import Schedule, schedules

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "alternating.yaml"
FEW = {"video.frames": 4, "generate.max_new_tokens": 12}
CLIP = str(shipped()[1])


@pytest.fixture(autouse=True)
def nothing_stays():
    yield
    forget_plugins()
    schedules.forget(__name__)


def test_the_example_drafts_every_other_round_and_writes_the_text_of_plain_decoding():
    with Captioner.from_profile(profiles.load(str(EXAMPLE), FEW, env={})) as captioner:
        events = list(captioner.stream(CLIP))
        found, plain = events[-1].caption, captioner.caption(CLIP, plain=True)
        pair = captioner.caption_many([CLIP, CLIP], batch=2)
        assert [one.token_ids for one in pair] == [plain.token_ids] * 2
    assert found.token_ids == plain.token_ids and found.caption == plain.caption and found.lossless
    assert found.schedule["kind"] == "alternating" and found.counters["accepted"] > 0
    rounds = [event for event in events if isinstance(event, Round)]
    assert [bool(step.drafted) for step in rounds[1:-1]] == [number % 2 == 0 for number in range(len(rounds) - 2)]
    others = [type(event) for event in events if not isinstance(event, Round)]
    assert others[1:] == [Prefilled, InputsReleased, Finished]


def test_a_head_drafts_under_the_example_which_knows_none():
    """It reads every pass by ``drafter.read``, those of rounds without a draft included."""
    keys = {**FEW, "draft.kind": "dflash", "draft.options.visual": "none", "prune.method": "none"}
    with Captioner.from_profile(profiles.load(str(EXAMPLE), keys, env={})) as captioner:
        found, plain = captioner.caption(CLIP), captioner.caption(CLIP, plain=True)
    assert found.token_ids == plain.token_ids and found.schedule["kind"] == "alternating"
    lengths = found.counters["accepted_lengths"]
    assert found.counters["accepted"] > 2 * len(lengths), "a head that missed passes would be rejected"


def test_a_schedule_repeats_a_clip_by_itself():
    """Whatever ends its first attempt: decode() knows no kind of schedule and none of its errors."""
    attempts = []

    @schedules.register("stubborn")
    class Stubborn(Schedule):
        drafts = False

        @staticmethod
        def run(sequence):
            for _ in range(2):
                attempts.append(sequence.rounds)
                over = yield from prefill(sequence)
                over = over or (yield from plain_round(sequence))
                if len(attempts) == 1:
                    sequence.restart("once more")
            while not over:
                over = yield from plain_round(sequence)

    profile = profiles.load("ar", {**FEW, "schedule.kind": "stubborn"}, env={})
    with Captioner.from_profile(profile) as captioner:
        events = list(captioner.stream(CLIP))
        plain = captioner.caption(CLIP, plain=True)
    kinds = [type(event) for event in events]
    assert kinds.count(Restarted) == 1 and kinds[1] is Prefilled and kinds[kinds.index(Restarted) + 1] is Prefilled
    assert events[-1].caption.token_ids == plain.token_ids and len(attempts) == 2


def test_a_refusal_names_the_schedule():
    @schedules.register("plainly")
    class Plainly(Schedule):
        drafts = False

    with pytest.raises(ProfileError, match=r"schedule\.kind: plainly uses no draft, and draft\.kind is model"):
        profiles.load("vanilla-sd", {"schedule.kind": "plainly"}, env={})
