"""Answers that follow a JSON Schema under speculation: texts are those of ``generate`` with the library's own mask."""

import json
from functools import cache
from itertools import combinations

import jsonschema
import pytest
import torch
from transformers import AutoModelForImageTextToText, LogitsProcessor, LogitsProcessorList

from research.stock_inputs import stock_inputs
from tests.decoding.workers.pairs import CLIP, CLIPS
from tests.model_pairs import Pair, pair_checkpoints
from tests.ready_clips import read_requests, serve_captions
from tests.tiers import full_but, in_turn
from vidspec.config import profiles
from vidspec.config.json_schema import ANY_OBJECT, json_grammar, schema_properties
from vidspec.config.run_spec import RunSpec
from vidspec.decoding.decode import parse_json
from vidspec.errors import GenerationError, ProfileError
from vidspec.runs.run_settings import profile_keys

llguidance = pytest.importorskip("llguidance", reason="needs llguidance")

from vidspec.decoding.text_history import make_history, wrap_tokenizer  # noqa: E402

pytestmark = pytest.mark.usefixtures("forked_drafts", "clips_read_once")

TOKENS = 120
SCHEMA = {
    "type": "object",
    "properties": {
        "shape": {"enum": ["disc", "square", "triangle"]},
        "places": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 4},
        "note": {"type": "string", "maxLength": 12},
    },
    "required": ["shape", "places", "note"],
    "additionalProperties": False,
}
SETTINGS = {"generate.json_schema": json.dumps(SCHEMA)}
PENALTIES = {"free": 1.0, "penalised": 1.3}
PROFILES = [
    *("ar", "vanilla-sd", "vanilla-sd-auto", "sd-tree", "sd-adaptive-tree", "specvlm", "self-sd", "self-int8", "std"),
    *("onsd", "suffix", "hybrid", "token-recycling", "tabed-mt", "tabed-mtcp-star", "parallelvlm", "hippo"),
]
#: Draft few or no tokens here: a random model's text has little to look up, and a busy machine starves another process.
SELDOM = {"ar", "parallelvlm", "hippo", "vanilla-sd-auto", "sd-adaptive-tree", "suffix", "hybrid", "token-recycling"}


class OwnMask(LogitsProcessor):
    """The library's mask, row by row, of a parser that reads each text from its beginning."""

    def __init__(self, tokenizer, prompt):
        self.tokenizer, self.prompt = tokenizer, prompt

    def __call__(self, input_ids, scores):
        for row, ids in zip(scores, input_ids, strict=True):
            matcher = llguidance.LLMatcher(self.tokenizer, json_grammar(json.dumps(SCHEMA)))
            matcher.consume_tokens(ids[self.prompt :].tolist())
            bits = torch.frombuffer(bytearray(matcher.compute_bitmask()), dtype=torch.uint8)
            allowed = (bits[:, None] >> torch.arange(8)).bitwise_and(1).flatten()[: len(row)].bool()
            row.masked_fill_(~torch.nn.functional.pad(allowed, (0, len(row) - len(allowed))), -torch.inf)
        return scores


class Constrained(Pair):
    def __init__(self):
        target, draft = pair_checkpoints("llava_onevision")
        super().__init__(target, draft, TOKENS, **{"video.frames": 4})
        self.stock = AutoModelForImageTextToText.from_pretrained(target, dtype=torch.float32).eval()
        self.generated = cache(self._generated)

    @torch.inference_mode()
    def _generated(self, clip, penalty):
        captioner = self.captioner("ar")
        pixels = self.target.preprocess(captioner.client.inputs.read(CLIPS[clip]))
        prefix = self.target.prefix(self.target.encode(pixels), captioner.client.profile.generate.prompt)
        mask = OwnMask(wrap_tokenizer(self.target.tokenizer, self.target.eos), prefix.length)
        ids = self.stock.generate(
            **stock_inputs(self.target, pixels, prefix),
            max_new_tokens=TOKENS,
            do_sample=False,
            repetition_penalty=penalty,
            logits_processor=LogitsProcessorList([mask]),
            eos_token_id=sorted(self.target.eos),
        )
        return ids[0, prefix.length :].tolist()


@pytest.fixture(scope="module")
def pair():
    made = Constrained()
    yield made
    made.close()


USUAL = [
    *[("ar", "free", 4), ("vanilla-sd", "penalised", 1), ("sd-tree", "free", 4), ("parallelvlm", "free", 1)],
    ("vanilla-sd", "free", 16),
]
#: Each profile with both penalties and all batches, which take turns.
IN_TURN = [
    (profile, penalty, batch)
    for at, profile in enumerate(PROFILES)
    for batch, penalty in zip((1, 4, 16), (*PENALTIES, *PENALTIES)[at % 2 :], strict=False)
]


@pytest.mark.sample(quick=1, full=8)
@pytest.mark.parametrize(("profile", "penalty", "batch"), full_but(USUAL, in_turn(IN_TURN, 3)))
def test_texts_are_those_of_generate(pair, profile, penalty, batch):
    penalty = PENALTIES[penalty]
    captioner = pair.captioner(profile, {**SETTINGS, "generate.repetition_penalty": penalty})
    copies = {f"{clip} {copy}": path for clip, path in CLIPS.items() for copy in range(-(-batch // len(CLIPS)))}
    captions = serve_captions(captioner, read_requests(captioner, copies), batch)
    for clip, caption in captions.items():
        assert caption.token_ids == pair.generated(clip.split()[0], penalty)
        jsonschema.validate(caption.data, SCHEMA)
        assert json.loads(caption.caption) == caption.data and caption.ended == "eos"
    if profile not in SELDOM:
        assert sum(caption.counters["accepted"] for caption in captions.values()) > 0


PROCESSORS = {"repetition_penalty": 1.3, "presence_penalty": 1.5, "no_repeat_ngram": 1}
#: Each processor, and all pairs of them.
COMBINED = [("no_repeat_ngram",), ("repetition_penalty",), ("presence_penalty",), *combinations(PROCESSORS, 2)]
#: Each profile with two of them, all in turn.
IN_TURN_WITH_TWO = [
    (name, COMBINED[(number + shift) % len(COMBINED)]) for number, name in enumerate(PROFILES) for shift in (0, 3)
]
DIAGONAL = [("vanilla-sd", COMBINED[0]), ("sd-tree", COMBINED[4]), ("parallelvlm", COMBINED[5])]


@pytest.mark.sample(quick=1, full=18)
@pytest.mark.parametrize(("profile", "names"), full_but(DIAGONAL, in_turn(IN_TURN_WITH_TWO, 4)))
def test_the_grammar_wins_over_every_processor(pair, profile, names):
    """A ban of every token that occurred, of the prompt's too, leaves a valid text, the same however it is drafted."""
    settings = {**SETTINGS, **{f"generate.{name}": PROCESSORS[name] for name in names}}
    captions = [pair.captioner(name, settings).caption(CLIP) for name in (profile, "ar")]
    assert captions[0].token_ids == captions[1].token_ids and captions[0].ended == "eos"
    assert max(captions[0].token_ids) < pair.target.vocabulary
    jsonschema.validate(captions[0].data, SCHEMA)


def test_another_text_without(pair):
    captioner = pair.captioner("ar")
    assert captioner.caption(CLIP).data is None
    prefix = pair.target.prefix(pair.target.encode(pair.target.preprocess(captioner.client.inputs.read(CLIP))), "What?")
    generate = captioner.client.profile.generate
    assert make_history(generate, pair.target, prefix.token_ids) is None, "neither penalties nor a grammar"


@pytest.mark.full
@pytest.mark.parametrize("seed", full_but([0], range(3)))
@pytest.mark.parametrize("profile", full_but(["vanilla-sd"], ["vanilla-sd", "sd-tree", "specvlm"]))
def test_drawn_texts_follow_it_too(pair, profile, seed):
    drawn = {**SETTINGS, "generate.temperature": 1.5, "generate.seed": seed}
    try:
        caption = pair.captioner(profile, drawn).caption(CLIP)
    except GenerationError as error:
        assert error.kind == "json"
    else:
        jsonschema.validate(caption.data, SCHEMA)


def test_an_answer_that_is_cut_is_an_error_of_its_clip(pair):
    captioner = pair.captioner("vanilla-sd", {**SETTINGS, "generate.max_new_tokens": 6})
    with pytest.raises(GenerationError, match=r"one-object.*was cut by the token limit") as caught:
        captioner.caption(CLIP)
    assert caught.value.kind == "json" and "--max-new-tokens" in caught.value.hint


@pytest.mark.full
def test_fields(pair):
    caption = pair.captioner("vanilla-sd", {"generate.fields": "a, b", "generate.max_new_tokens": 400})
    try:
        data = caption.caption(CLIP).data
    except GenerationError as error:
        assert error.kind == "json"
    else:
        assert list(data) == ["a", "b"]


def test_any_object(pair):
    overrides = profile_keys(RunSpec.make({"json_object": True}))
    assert overrides == {"generate.json_schema": ANY_OBJECT} and schema_properties(ANY_OBJECT) == {}
    try:
        data = pair.captioner("vanilla-sd", {**overrides, "generate.max_new_tokens": 400}).caption(CLIP).data
    except GenerationError as error:
        assert error.kind == "json"
    else:
        assert isinstance(data, dict)


@pytest.mark.parametrize("value", ["1e999", "9" * 5000, "[" * 10**5 + "]" * 10**5])
def test_an_answer_without_a_value_is_an_error_of_its_clip(value):
    with pytest.raises(GenerationError, match=r"a\.mp4: the JSON answer cannot be read"):
        parse_json("a.mp4", f'{{"a": {value}}}', "eos")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"generate.json_schema": "nowhere.json"}, "generate.json_schema: nowhere.json: No such file"),
        ({"generate.json_schema": "{1"}, "generate.json_schema: must be JSON"),
        ({"generate.json_schema": [1]}, "generate.json_schema: must be a JSON Schema"),
        ({"generate.json_schema": {"type": str}}, "generate.json_schema: must be JSON (Object of type type"),
        (
            {"generate.json_schema": '{"type": "obj"}'},
            "generate.json_schema: is not a JSON Schema for text: Invalid type",
        ),
        ({**SETTINGS, "generate.fields": "a"}, "generate.fields: excludes generate.json_schema"),
        ({**SETTINGS, "generate.stop": "."}, "generate.stop: excludes generate.json_schema"),
    ],
)
def test_what_is_refused(settings, message):
    with pytest.raises(ProfileError, match=message.replace("(", r"\(")):
        profiles.load("vanilla-sd", settings, env={})


def test_loose_rules_are_refused():
    with pytest.raises(ProfileError, match=r"accept.rule: .* emits tokens that the grammar of generate.json_schema"):
        profiles.load("lvspec", SETTINGS, env={})


def test_a_file_and_a_mapping_are_one_schema(tmp_path):
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA, indent=2))
    loaded = [profiles.load("ar", {"generate.json_schema": one}, env={}).generate for one in (str(path), SCHEMA)]
    assert loaded[0].json_schema == loaded[1].json_schema and json.loads(loaded[0].json_schema) == SCHEMA


def test_without_the_library(monkeypatch):
    json_grammar.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(ProfileError, match=r"needs llguidance, which is not installed.*pip install llguidance"):
        profiles.load("ar", SETTINGS, env={})
    json_grammar.cache_clear()
