"""Captions that part from plain decoding at a near-tie are correct in half precision; the record names the place."""

import json
from dataclasses import replace

import pytest

from vidspec.captioner import Captioner
from vidspec.cli import main
from vidspec.config import profiles
from vidspec.embedded.samples import shipped
from vidspec.models.request import CaptionRequest
from vidspec.runs import ties

CLIP = shipped()[0]


@pytest.fixture(scope="module")
def captioner():
    few = {"models.device": "cpu", "models.dtype": "float32", "generate.max_new_tokens": 8, "video.frames": 2}
    with Captioner.from_profile("ar", overrides=few) as found:
        yield found


def test_the_gap_where_two_captions_part(captioner):
    request = CaptionRequest(str(CLIP), captioner.client.inputs.read(CLIP))
    ids = list(captioner.caption(CLIP).token_ids)
    assert ties.logit_gap(captioner.client, request, ids, ids) == 0
    assert ties.logit_gap(captioner.client, request, ids, ids[:5]) == float("inf")
    wrong = [*ids[:5], ids[5] + 1, 7]
    assert (
        ties.logit_gap(captioner.client, request, ids, wrong)
        == ties.logit_gap(captioner.client, request, wrong, ids)
        > ties.EPSILON
    )
    assert ties.logit_gap(captioner.client, request, ids, [ids[0] + 1]) > ties.EPSILON
    assert not ties.is_near_tie(captioner.client, request, ids, wrong)


def test_the_gap_is_that_of_penalised_logits(captioner):
    request = CaptionRequest(str(CLIP), captioner.client.inputs.read(CLIP))
    few = {"generate.no_repeat_ngram": 1, "generate.max_new_tokens": 8, "video.frames": 2}
    profile = profiles.load("ar", few, env={})
    penalised = Captioner(profile, captioner.client.setup.target.model, None)
    ids = list(penalised.caption(CLIP).token_ids)
    again = [*ids[:5], ids[0]]
    assert (
        ties.logit_gap(penalised.client, request, ids, again)
        == float("inf")
        > ties.logit_gap(captioner.client, request, ids, again)
    )
    assert ties.logit_gap(penalised.client, request, ids, [*ids[:5], ids[5] + 1]) < float("inf")


@pytest.mark.full
@pytest.mark.parametrize(
    ("dtype", "epsilon", "passes"), [("bfloat16", 10.0, True), ("bfloat16", 2**-5, False), ("float32", 10.0, False)]
)
def test_verify(monkeypatch, tmp_path, dtype, epsilon, passes):
    """Plain decoding's fifth token is another; with a wide bound that is a near-tie."""
    caption = Captioner.caption

    def another(self, path, **asked):
        plain = caption(self, path, **asked)
        ids = list(plain.token_ids)
        ids[4] += 1
        return replace(plain, token_ids=ids)

    monkeypatch.setattr(Captioner, "caption", another)
    monkeypatch.setattr(ties, "EPSILON", epsilon)
    out = tmp_path / "out.json"
    few = ["--profile", "ngram", "--dtype", dtype, "--frames", "2", "--max-new-tokens", "8"]
    code = main(["caption", str(CLIP), "--verify", *few, "--format", "json", "-o", str(out)])
    record = json.loads(out.read_text(encoding="utf-8"))
    assert code == (0 if passes else 1)
    if passes:
        assert record["near_tie"] == 4 and record["caption"] and record["error"] is None
    else:
        assert record["near_tie"] is None and record["error"]["kind"] == "mismatch"
