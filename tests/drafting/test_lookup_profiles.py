"""Drafts that are looked up, beside the built-in models: texts of plain decoding, alone and together."""

import pytest

from tests.tiers import full_but, in_turn
from vidspec.bench.measure import ProfileContender
from vidspec.bench.turns import measure_in_turns
from vidspec.config import profiles
from vidspec.decoding.captioner_models import notes_on
from vidspec.drafting.memory import MemoryFile
from vidspec.embedded.samples import shipped
from vidspec.errors import OutputError, ProfileError, UsageError
from vidspec.models.identity import model_identity

DRAWN = {"generate.temperature": 1.5, "generate.top_p": 0.95, "generate.seed": 5}
WAYS = {
    "ngram": {},
    "suffix": {},
    "suffix in trees": {"draft.topology": "tree"},
    "suffix of given windows": {"draft.gamma": 4, "draft.options.least": 2},
    "hybrid": {},
    "hybrid of given windows": {"draft.gamma": 3},
    "hybrid of a given model's window": {"draft.options.window": 3},
    "hybrid in trees": {"draft.topology": "tree"},
    "hybrid-int8 in trees": {"draft.topology": "tree", "draft.options.window": 4},
    "hybrid-int8": {},
    "hybrid-int4 of a given model's window": {"draft.options.window": 5},
    "hybrid with a pruned draft": {"prune.method": "uniform", "prune.alpha": 0.8},
    "hybrid with the target": {"draft.options.of": "self", "prune.method": "attention", "prune.alpha": 0.8},
    "hybrid with an ensemble": {
        "draft.options.of": "ensemble",
        "draft.options.settings": {"contexts": ["video", "text"], "weights": "grid"},
    },
}


@pytest.mark.sample(quick=1, full=4)
@pytest.mark.parametrize(
    ("pair", "way"),
    full_but(
        [("embedded", way) for way in ("suffix in trees", "hybrid", "hybrid-int8 in trees")],
        [*(("embedded", way) for way in in_turn(WAYS, 2)), ("embedded-qwen", "hybrid")],
    ),
)
def test_texts_are_those_of_plain_decoding(pairs, pair, way):
    pair, settings = pairs(pair), WAYS[way]
    for batch in (1, 4, 16):
        texts, records = pair.texts(pair.captioner(way.split()[0], **settings), batch)
        assert texts == pair.alone()
        if way.startswith("hybrid"):
            assert sum(record.counters["accepted"] for record in records) > 0
        model = sum(record.counters["draft_forwards"] for record in records)
        assert (model > 0) == way.startswith("hybrid")


@pytest.mark.full
@pytest.mark.parametrize("profile", full_but(["hybrid"], ["suffix", "hybrid"]))
def test_drawn_texts_are_those_of_plain_decoding(pairs, profile):
    """Whatever neighbours wrote, and whoever proposed."""
    pair = pairs("embedded")
    assert pair.captioner(profile, **DRAWN, **{"draft.gamma": 4}).client.profile.token_for_token
    for batch in (1, 8):
        assert pair.texts(pair.captioner(profile, **DRAWN, **{"draft.gamma": 4}), batch)[0] == pair.alone(**DRAWN)
    assert pair.alone(**DRAWN) != pair.alone()


@pytest.mark.full
@pytest.mark.parametrize("profile", full_but(["suffix"], ["suffix", "hybrid"]))
def test_a_memory_makes_the_next_run_faster(pairs, tmp_path, profile):
    """It has fewer passes of the target, or of the draft that it asks instead.

    The hybrid's windows are given: automatic ones follow what passes cost here.
    """
    windows = {} if profile == "suffix" else {"draft.gamma": 5}
    pair, file = pairs("embedded"), tmp_path / "captions"
    passes, drafts = [], []
    for _ in range(2):
        texts, records = pair.texts(pair.captioner(profile, **windows, **{"draft.memory": str(file)}), 1)
        assert texts == pair.alone()
        passes.append(sum(record.counters["target_forwards"] for record in records))
        drafts.append(sum(record.counters["draft_forwards"] for record in records))
    if profile == "suffix":
        assert passes[1] < 0.6 * passes[0]
    else:
        assert drafts[1] < 0.4 * drafts[0] and sum(passes[1:] + drafts[1:]) < 0.6 * (passes[0] + drafts[0])
    known = list(MemoryFile(file, model_identity(pair.target).tokenizer, 1000).read())
    assert known == 2 * [token for text in texts.values() for token in (-1, *text)]


@pytest.mark.parametrize("profile", ["suffix", "hybrid"])
def test_a_damaged_memory_is_told(pairs, tmp_path, profile):
    pair, file = pairs("embedded"), tmp_path / "captions"
    assert notes_on(pair.captioner(profile, **{"draft.memory": str(file)}).client.setup) == ()
    file.write_bytes(b"vidspec memory 1 cut")
    assert notes_on(pair.captioner(profile, **{"draft.memory": str(file)}).client.setup) == (
        f"draft.memory: {file}: was damaged, and starts empty",
    )


@pytest.mark.full
@pytest.mark.parametrize("profile", ["suffix", "hybrid"])
def test_no_repeat_of_a_bench_knows_the_captions_of_the_one_before(pairs, profile):
    """One that knows it needs two thirds as many passes at most, of the target or of the draft that it asks instead."""

    def passes(record):
        return record.counters["target_forwards"] + record.counters["draft_forwards"]

    captioner = pairs("embedded").captioner(profile, **{"draft.gamma": 3, "generate.max_new_tokens": 80})
    (repeats,) = measure_in_turns({profile: ProfileContender(captioner)}, [str(shipped()[0])], 3)[profile].values()
    known = captioner.caption(shipped()[0])
    assert known.token_ids == repeats[0].token_ids
    assert passes(known) < min(map(passes, repeats)) * 2 / 3


def test_what_is_wrong_with_a_memory_is_said_before_any_clip(pairs, tmp_path):
    pair = pairs("embedded")
    (tmp_path / "clip.mp4").write_bytes(b"no memory")
    with pytest.raises(UsageError, match="is not a memory file of vidspec"):
        pair.captioner("suffix", **{"draft.memory": str(tmp_path / "clip.mp4")})
    with pytest.raises(OutputError, match=r"draft\.memory: "):
        pair.captioner("suffix", **{"draft.memory": str(tmp_path / "clip.mp4" / "x")})


@pytest.mark.parametrize(
    ("profile", "settings", "message"),
    [
        ("suffix", {"prune.method": "uniform"}, "prune.method: uniform chooses what a draft sees"),
        ("suffix", {"schedule.kind": "parallel"}, "draft.kind: suffix needs"),
        ("hybrid", {"schedule.kind": "parallel"}, "draft.kind: hybrid needs"),
        (
            "hybrid",
            {"draft.topology": "adaptive"},
            "draft.topology: adaptive trees grow by the probabilities of one model",
        ),
        ("hybrid", {"draft.options.window": 33}, "draft.options.window: must be less than or equal to 32, not 33"),
        ("hybrid", {"draft.options.of": "ngram"}, "draft.options.of: ngram drafts without a model"),
        ("suffix", {"draft.options.least": 0}, "draft.options.least: must be greater than or equal to 1, not 0"),
        ("hybrid", {"draft.options.of": "nobody"}, "unknown drafter 'nobody'"),
        ("hybrid", {"draft.options.of": "sparse_kv", "draft.options.settings": {"entrys": 3}}, "entrys"),
    ],
)
def test_what_makes_no_sense_is_refused(profile, settings, message):
    with pytest.raises(ProfileError) as caught:
        profiles.load(profile, settings, env={})
    assert message in caught.value.message and "\n" not in caught.value.message
