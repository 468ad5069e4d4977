"""Token ids that a profile's ``accept.protect`` stands for."""

import pytest

from tests.checkpoints import readable
from vidspec.acceptance.base import protected_ids


@pytest.fixture(scope="module")
def tokenizer():
    return readable.tokenizer()


def one(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) == 1
    return ids[0]


def test_numbers(tokenizer):
    ids = protected_ids(tokenizer, ("numbers",))
    assert {one(tokenizer, text) for text in (" two", "3", "0", " three")} <= ids
    assert not ids & {one(tokenizer, text) for text in (" circle", " the", " not", ".")}
    assert set(tokenizer.encode(" eleven", add_special_tokens=False)) <= ids, "every piece of a word that is split"


def test_negations(tokenizer):
    ids = protected_ids(tokenizer, ("negations",))
    assert one(tokenizer, " not") in ids
    assert set(tokenizer.encode("n't", add_special_tokens=False)) <= ids
    assert not ids & {one(tokenizer, text) for text in (" two", " circle", " is")}


def test_own_words(tokenizer):
    ids = protected_ids(tokenizer, ("circle",))
    assert one(tokenizer, " circle") in ids and one(tokenizer, " square") not in ids
    assert set(tokenizer.encode("Circle", add_special_tokens=False)) <= ids
    assert protected_ids(tokenizer, ("circle", "negations")) == ids | protected_ids(tokenizer, ("negations",))


def test_nothing(tokenizer):
    assert protected_ids(tokenizer, ()) == frozenset()


def test_special_tokens_are_left_alone(tokenizer):
    ids = protected_ids(tokenizer, ("numbers", "negations", "<|im_start|>"))
    assert not ids & set(tokenizer.all_special_ids)


class Sentencepiece:
    """Names bytes by their codes, as Llama's does."""

    all_special_ids, unk_token_id = (), 0

    def get_vocab(self):
        return {"<unk>": 0, "<0x0A>": 1, "<0x35>": 2, "\u25817": 3, "12": 4, "a": 5}

    def encode(self, text, *, add_special_tokens):
        return [0]


def test_bytes_that_are_no_digits_are_not_numbers():
    assert protected_ids(Sentencepiece(), ("numbers",)) == {2, 3, 4}
