"""What a part of a user's own may return by mistake fails its clip, in one line that names the part."""

import pytest
import torch

from tests.ready_clips import ReadyClips
from vidspec.acceptance.base import Verdict
from vidspec.acceptance.rules.exact import ExactRule
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.decoding.prefill import prefill
from vidspec.decoding.schedules.autoregressive import plain_round
from vidspec.drafting.base import Draft, Drafter
from vidspec.embedded.samples import shipped
from vidspec.errors import GenerationError
from vidspec.events.events import Finished
from vidspec.models.request import CaptionRequest
from vidspec.pruning.base import kept_count

CLIP = str(shipped()[1])
FEW = {"video.frames": 4, "generate.max_new_tokens": 12, "draft.gamma": 4}


@pytest.fixture(scope="module")
def models():
    with Captioner.from_profile(profiles.load("sd-uniform-chain", FEW, env={})) as captioner:
        yield captioner.client.setup


@pytest.fixture
def captioner(models):
    profile = models.profile
    return Captioner(profile, models.target.model, models.draft.model)


def refused(captioner, *words):
    with pytest.raises(GenerationError) as caught:
        captioner.caption(CLIP)
    message = caught.value.message
    assert message.startswith(f"{CLIP}: the ") and __name__ in message, message
    assert all(word in message for word in words), message


class WrongPruner:
    needs = frozenset()

    def __init__(self, make):
        self.make = make

    def __call__(self, signals, alpha):
        count = len(signals.visual)
        return self.make(torch.arange(kept_count(count, alpha)), count)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda kept, count: kept.float(),
            ["the pruner", "(6,) torch.float32", "keeps (6,) int64 indices of 65"],
        ),
        (lambda kept, count: torch.arange(count) < len(kept), ["(65,) torch.bool"]),
        (lambda kept, count: kept[None], ["(1, 6)"]),
        (lambda kept, count: kept[:2], ["returned (2,) torch.int64, and prune.alpha 0.9 keeps (6,)"]),
        (lambda kept, count: kept.flip(0), ["not sorted, each once, between 0 and 64"]),
        (lambda kept, count: torch.zeros_like(kept), ["not sorted, each once"]),
        (lambda kept, count: kept + count, ["between 0 and 64"]),
        (lambda kept, count: kept - 1, ["between 0 and 64"]),
    ],
)
def test_a_pruner(captioner, make, words):
    captioner.client.setup.pruner = WrongPruner(make)
    refused(captioner, *words)


class WrongDrafter(Drafter):
    """Drafts what ``make`` returns; as its own kind, it opens itself."""

    needs, draws = frozenset(), False

    def __init__(self, make):
        self.make = make

    def open(self, clip):
        yield from ()
        return self

    def begin(self, token):
        self.token = token

    def propose(self, gamma):
        yield from ()
        return self.make(self.token)

    def read(self, tokens, passed):
        self.token = tokens[-1]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda token: Draft.chain([float(token)]), ["the drafter", "proposed the token", "the target's ids are 0 to"]),
        (lambda token: Draft.chain([token, 10**6]), ["proposed the token 1000000"]),
        (lambda token: Draft.chain([token] * 30), ["proposed 30 tokens, and a window has at most 4"]),
        (lambda token: Draft((token, token), (1, 0)), ["node 0 has the parent 1"]),
        (lambda token: Draft((token, token), (-1, -2)), ["node 1 has the parent -2"]),
        (lambda token: Draft((token, token, token), (-1, -1)), ["3 tokens with 2 parents"]),
        (lambda token: Draft.chain([token], torch.ones(1, 7)), ["shape (1, 7), not (1, "]),
    ],
)
def test_a_drafter(captioner, make, words):
    captioner.client.setup.drafter = WrongDrafter(make)
    refused(captioner, *words)


class WrongRule(ExactRule):
    def __init__(self, make):
        self.make = make

    def __call__(self, draft, passed, rng):
        verdict = super().__call__(draft, passed, rng)
        return self.make(verdict, len(draft.tokens)) if len(draft.tokens) > 1 else verdict


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda verdict, count: Verdict((1,), verdict.token),
            ["the acceptance rule", "the path (1,), which is none"],
        ),
        (lambda verdict, count: Verdict((1, 0), verdict.token), ["the path (1, 0)"]),
        (lambda verdict, count: Verdict((-1,), verdict.token), ["the path (-1,)"]),
        (lambda verdict, count: Verdict(tuple(range(count + 1)), verdict.token), ["window of 4 tokens"]),
        (lambda verdict, count: Verdict(verdict.path, 10**6), ["returned the token 1000000"]),
        (lambda verdict, count: Verdict(verdict.path, -1), ["returned the token -1"]),
        (lambda verdict, count: Verdict(verdict.path, 1.5), ["returned the token 1.5"]),
    ],
)
def test_an_acceptance_rule(captioner, make, words):
    captioner.client.setup.acceptance = WrongRule(make)
    refused(captioner, *words)


def test_what_is_yielded_in_place_of_an_engine_request_fails_its_clip_alone(captioner):
    plain = captioner.caption(CLIP, plain=True).token_ids
    kind, opened = captioner.client.setup.drafter, []

    class Sometimes(type(kind)):
        def open(self, clip):
            opened.append(clip)
            if len(opened) == 2:
                yield "no request"
            return (yield from super().open(clip))

    kind.__class__ = Sometimes
    clip = captioner.client.inputs.read(CLIP)
    requests = [CaptionRequest(CLIP, clip, key=number) for number in range(3)]
    ended = {
        key: event
        for key, event in captioner.client.serve(ReadyClips(requests), batch=3)
        if isinstance(event, Finished | Exception)
    }
    failed = [event for event in ended.values() if isinstance(event, Exception)]
    assert [str(error) for error in failed] == ["'no request', yielded, is no engine request"]
    texts = [event.caption.token_ids for event in ended.values() if isinstance(event, Finished)]
    assert texts == [plain, plain]


def stops_early(sequence):
    yield from prefill(sequence)


def goes_on(sequence):
    yield from prefill(sequence)
    while len(sequence.token_ids) < 14:
        yield from plain_round(sequence)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (lambda sequence: iter(()), "wrote no text"),
        (stops_early, "stopped after 1 tokens, before the end of the text"),
        (goes_on, "wrote 14 tokens, and generate.max_new_tokens is 12"),
    ],
)
def test_a_schedule(captioner, run, words):
    captioner.client.setup.schedule = run
    with pytest.raises(GenerationError) as caught:
        captioner.caption(CLIP)
    assert caught.value.message == f"{CLIP}: the schedule sequential {words}"
