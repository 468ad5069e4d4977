"""Windows that are rejected at every place, in every family: nothing shows of what was read behind a rejection."""

from itertools import count
from typing import ClassVar

import pytest

from tests.checkpoints.qwen import HYBRIDS
from tests.decoding.workers.pairs import CLIPS
from tests.model_pairs import Pair, pair_checkpoints
from tests.ready_clips import ReadyClips
from tests.tiers import full_but, in_turn
from vidspec.drafting.base import FreeDrafter, drafters
from vidspec.events.events import Finished
from vidspec.models.base import families
from vidspec.models.request import CaptionRequest

CLIP = CLIPS["two-objects"]
TOKENS = 80
#: Recurrent states go far back.
LONG = 240


class Scripted(FreeDrafter):
    """Knows the text, and errs one place later in every window; each clip's begins a place later."""

    whole: ClassVar[list[int]] = []
    clips: ClassVar[count] = count()

    def opened(self, clip):
        self.turn = next(self.clips)

    def guess(self, gamma):
        wrong = self.turn % (gamma + 1)
        self.turn += 1
        following = self.whole[len(self.text) :][:gamma]
        return [token + (at == wrong) for at, token in enumerate(following)]


def talkative(family):
    """The first pair of the family whose target does not end early."""
    for seed in count():
        made = Pair(
            *pair_checkpoints(family, seed), tokens=LONG if family in HYBRIDS else TOKENS, **{"video.frames": 4}
        )
        if len(made.plain(CLIP)) == made.tokens:
            return made


@pytest.fixture(
    scope="module", params=full_but(["llava_onevision", "qwen2_5_vl", "qwen3_5"], in_turn(sorted(families.names()), 2))
)
def pair(request):
    made = talkative(request.param)
    drafters.register("scripted")(Scripted)
    Scripted.whole = made.plain(CLIP)
    yield made
    del drafters._entries["scripted"]


@pytest.mark.sample(quick=1, full=20)
@pytest.mark.parametrize(
    ("gamma", "batch"),
    full_but([(5, 1), (1, 4)], [(1, 1), (2, 1), (5, 1), (9, 1), (1, 4), (9, 4)]),
)
def test_rejections_at_every_place(pair, gamma, batch):
    Scripted.clips = count()
    captioner = pair.captioner("vanilla-sd", {"draft.kind": "scripted", "draft.gamma": gamma})
    arrivals = ReadyClips(
        [CaptionRequest(str(CLIP), captioner.client.inputs.read(CLIP), key=number) for number in range(batch)]
    )
    said = [event.caption for _, event in captioner.client.serve(arrivals, batch=batch) if isinstance(event, Finished)]
    assert [one.token_ids for one in said] == [Scripted.whole] * batch
    assert {length for one in said for length in one.counters["accepted_lengths"]} == set(range(gamma + 1))
