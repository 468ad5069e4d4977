import copy
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from tests.checkpoints.llava_onevision import tokenizer
from tests.tiers import examples
from vidspec.models.detokenizer import Detokenizer, StopStrings, reasoning_end

WORDS = tokenizer()
SPECIALS = sorted(WORDS.all_special_ids)


def full(ids):
    return WORDS.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def pieces(ids):
    text = Detokenizer(WORDS)
    return [text.add(token) for token in ids], text


def settled(ids):
    """The text of the longest beginning of ``ids`` that ends neither inside a character nor inside an opening tag."""
    while ids and full(ids).endswith("\ufffd"):
        ids = ids[:-1]
    begun = full(ids).lstrip()
    return full(ids).removesuffix(begun) if "<think>".startswith(begun) else full(ids)


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=60))
@settings(max_examples=examples(150), deadline=None)
def test_any_text(text):
    ids = WORDS.encode(text, add_special_tokens=False)
    made, detokenizer = pieces(ids)
    assert "".join(made) == settled(ids)
    assert detokenizer.finish() == (full(ids).strip(), None)


@given(st.lists(st.integers(0, len(WORDS) - 1), max_size=80))
@settings(max_examples=examples(150), deadline=None)
def test_any_ids(ids):
    """Also bytes that are no text at all, and special tokens anywhere."""
    made, detokenizer = pieces(ids)
    assert "".join(made) == settled(ids)
    assert full(ids).startswith("".join(made))
    assert detokenizer.finish() == (full(ids).strip(), None)


@given(st.lists(st.sampled_from(["🚲", "é", "한", " the", "a", "👩‍👩‍👧", "\n", "<|im_end|>", "<video>"]), max_size=40))
@settings(max_examples=examples(100), deadline=None)
def test_characters_of_many_tokens(parts):
    ids = WORDS.encode("".join(parts), add_special_tokens=False)
    made, _ = pieces(ids)
    assert "".join(made) == full(ids) == "".join(part for part in parts if not part.startswith("<"))
    assert not any("\ufffd" in piece for piece in made)


def test_a_character_comes_whole():
    ids = WORDS.encode("🚲", add_special_tokens=False)
    assert len(ids) == 4
    assert pieces(ids)[0] == ["", "", "", "🚲"]


def test_what_another_token_would_add():
    one, two = WORDS.encode("a cat", add_special_tokens=False)[:2]
    text = Detokenizer(WORDS)
    assert [text.preview(two), text.add(one), text.preview(SPECIALS[0])] == [full([two]), "a", ""]
    assert text.preview(two) == text.add(two) == full([one, two])[1:]


def test_special_tokens_add_nothing():
    ids = WORDS.encode("a cat", add_special_tokens=False)
    for special in SPECIALS:
        made, text = pieces([special, *ids, special])
        assert made[0] == made[-1] == "" and "".join(made) == text.finish().answer == "a cat"


def test_every_piece_as_soon_as_it_is_whole():
    ids = WORDS.encode("The red circle moves left, café 🚲 done.", add_special_tokens=False) * 12
    text, shown = Detokenizer(WORDS), ""
    for count, token in enumerate(ids, 1):
        shown += text.add(token)
        assert shown == settled(ids[:count])


def test_long_text_is_decoded_in_small_windows():
    """The work per token must not grow with the text."""
    sizes = []

    class Watched:
        def decode(self, ids, **options):
            sizes.append(len(ids))
            return WORDS.decode(ids, **options)

    rng = random.Random(3)
    source = "".join(rng.choice(["a ", "small ", "bird ", "🚲", "ü", "\n"]) for _ in range(900))
    ids = WORDS.encode(source, add_special_tokens=False)
    text = Detokenizer(Watched())
    assert "".join(text.add(token) for token in ids) == full(ids) == source
    assert len(ids) > 1000 and max(sizes) < 40


def test_tokenizers_that_drop_the_first_space():
    """SentencePiece-like decoders drop the space of whichever token comes first, so windows must not begin anywhere."""
    words = {word: index for index, word in enumerate(["▁a", "▁bird", "s", "▁and", ".", "<end>"])}
    inner = Tokenizer(models.WordLevel(words, unk_token="."))
    inner.decoder = decoders.Metaspace()
    spaced = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>")
    rng = random.Random(0)
    ids = [rng.randrange(len(words)) for _ in range(300)]
    text = Detokenizer(spaced)
    assert "".join(text.add(token) for token in ids) == spaced.decode(ids, skip_special_tokens=True)


def test_two_texts_at_once():
    first, second = WORDS.encode("a 🚲", add_special_tokens=False), WORDS.encode("one é", add_special_tokens=False)
    one, two = Detokenizer(WORDS), Detokenizer(WORDS)
    shown = ["", ""]
    for index in range(max(len(first), len(second))):
        shown[0] += one.add(first[index]) if index < len(first) else ""
        shown[1] += two.add(second[index]) if index < len(second) else ""
    assert shown == ["a 🚲", "one é"]


THOUGHTS = [
    ("<think>\nIt moves. A\n</think>\n\nA red circle.", False, "A red circle.", "It moves. A"),
    ("It moves.</think>A red </think> circle.", True, "A red </think> circle.", "It moves."),
    ("<think>It moves.</think>A", True, "A", "It moves."),
    ("</think>\nA", True, "A", ""),
    (" <think> It moves", False, None, "It moves"),
    ("It moves</thin", True, None, "It moves</thin"),
    ("A <think> it </think> b", False, "A <think> it </think> b", None),
    (" <thi", False, "<thi", None),
    ("<thing> moves", False, "<thing> moves", None),
    ("A</think>B", False, "A</think>B", None),
]


@pytest.mark.parametrize(("text", "thinks", "answer", "reasoning"), THOUGHTS)
def test_reasoning_is_no_part_of_the_answer(text, thinks, answer, reasoning):
    """The prompt or the text opens it; its tokens add no text, and nothing is taken back later."""
    ids = WORDS.encode(text, add_special_tokens=False)
    reader = Detokenizer(WORDS, thinks=thinks)
    made = [reader.add(token) for token in ids]
    assert reader.finish() == (answer, reasoning)
    shown = "".join(made).strip()
    assert shown == answer or (text == " <thi" and not shown) or (answer is None and not shown)
    ends = [end for end in range(1, len(ids) + 1) if reasoning_end(WORDS)(ids[:end])]
    assert ("</think>" in text) == bool(ends) and full(ids[: ends[0]] if ends else ids).count("</think>") == bool(ends)


@pytest.mark.parametrize(("text", "thinks", "answer", "reasoning"), THOUGHTS)
def test_tags_that_are_special_tokens(text, thinks, answer, reasoning):
    """All other special tokens still add nothing."""
    words = copy.deepcopy(WORDS)
    words.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    ids = words.encode(text.replace("moves", "moves<|im_end|>"), add_special_tokens=False)
    assert {"<think>", "</think>"} & {*words.convert_ids_to_tokens(ids)} or "<th" in text or "</th" in text
    reader = Detokenizer(words, ["circle"], thinks=thinks)
    shown = "".join(map(reader.add, ids)).strip()
    assert shown == (answer or "") or text == " <thi"
    assert reader.finish() == (None if answer is None else answer.partition("circle")[0].strip(), reasoning)
    assert ("</think>" in text) == any(reasoning_end(words)(ids[:end]) for end in range(1, len(ids) + 1))
    if "circle" in text:
        assert StopStrings(words, ["circle"], thinks=thinks).has_stop(ids)


def test_the_draft_proposes_no_reasoning_to_show():
    text, bird = Detokenizer(WORDS, thinks=True), WORDS.encode(" bird", add_special_tokens=False)[0]
    assert text.preview(bird) == ""
    for token in WORDS.encode("so</think>A", add_special_tokens=False):
        text.add(token)
    assert text.preview(bird) == full([bird])


def test_stop_strings_in_reasoning_stop_nothing():
    ids = WORDS.encode("so.\nthen</think>\n\nA.\nB", add_special_tokens=False)
    for thinks, first in ((True, "A."), (False, "so.")):
        found = StopStrings(WORDS, [".\n"], thinks=thinks)
        end = next(end for end in range(1, len(ids) + 1) if found.has_stop(ids[:end]))
        assert full(ids[:end]).endswith(f"{first}\n")
    assert Detokenizer(WORDS, [".\n"], thinks=True).finish() == (None, "")
