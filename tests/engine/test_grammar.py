"""Masks of a grammar, against partial matches of an equivalent regular expression."""

import json
import random
import time

import pytest
import regex
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from vidspec.engine.history import CombinedHistory
from vidspec.engine.penalties import Penalties, PenaltyHistory

llguidance = pytest.importorskip("llguidance", reason="needs llguidance")

from vidspec.config.json_schema import json_grammar  # noqa: E402
from vidspec.engine.history import GrammarHistory  # noqa: E402
from vidspec.errors import GenerationError  # noqa: E402

SCHEMA = {
    "type": "object",
    "properties": {"shape": {"enum": ["disc", "square"]}, "count": {"type": "integer"}},
    "required": ["shape", "count"],
    "additionalProperties": False,
}
SPACE = r" ?"
LIKE = regex.compile(r'\{~"shape"~:~(?:"disc"|"square")~,~"count"~:~-?(?:0|[1-9][0-9]*)~\}'.replace("~", SPACE))
#: Letters, since ``llguidance`` allows only the tokenizer's own pieces of what must follow, and two longer pieces.
PIECES = [*sorted(set('{"shape": "discsquarecount120", x}\n')), "12", "  "]
END = len(PIECES)
#: More logits than the tokenizer has tokens, as padded heads have.
WIDTH = END + 9


@pytest.fixture(scope="module")
def tokenizer():
    vocabulary = {piece.replace(" ", "\u0120").replace("\n", "\u010a"): index for index, piece in enumerate(PIECES)}
    made = Tokenizer(models.BPE(vocabulary, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens(["<end>"])
    return llguidance.LLTokenizer(made.to_str(), eos_token=END)


@pytest.fixture
def history(tokenizer):
    return GrammarHistory(tokenizer, json_grammar(json.dumps(SCHEMA)))


def allowed(text):
    """Return the tokens that may follow ``text``, by the regular expression."""
    found = {index for index, piece in enumerate(PIECES) if LIKE.fullmatch(text + piece, partial=True)}
    return found | ({END} if LIKE.fullmatch(text) else set())


def kept(rows):
    return [set(row.isfinite().nonzero().flatten().tolist()) for row in rows]


def walk(seed):
    """Return the tokens of a random text of the grammar, its end token last."""
    draw, tokens = random.Random(seed), []
    while not tokens or tokens[-1] != END:
        after = sorted(allowed("".join(PIECES[token] for token in tokens)))
        ended = END in after and draw.random() < 0.5
        tokens.append(END if ended else draw.choice([token for token in after if token != END] or after))
        if len(tokens) > 80:  # mostly white space: short cuts to the end
            return walk(seed + 1000)
    return tokens


@pytest.mark.sample(quick=6)
@pytest.mark.parametrize("seed", range(20))
def test_every_row_of_every_window(history, seed):
    """Chains and trees: each row may choose what may follow its own path, whatever the others' are."""
    text = walk(seed)
    draw = random.Random(seed)
    at = 0
    while at < len(text) - 1:
        size = draw.randint(1, 6)
        window = text[at : at + size]
        if END in window:
            window = window[: window.index(END)]
        paths = [(), *(tuple(window[: row + 1]) for row in range(len(window)))]
        branch = (*window[:1], draw.randrange(END))
        paths.append(branch)
        before = "".join(PIECES[token] for token in text[:at])
        logits = torch.randn(len(paths) + 1, WIDTH)
        changed = history.changes_for_paths(paths)(logits)
        assert torch.equal(changed[0], logits[0]), "rows before the paths' stay"
        for path, row, untouched in zip(paths, changed[1:], logits[1:], strict=True):
            whole = before + "".join(PIECES[token] for token in path)
            expected = allowed(whole) if LIKE.fullmatch(whole, partial=True) else set(range(WIDTH))
            assert kept([row]) == [expected]
            assert torch.equal(row[sorted(expected)], untouched[sorted(expected)])
        accepted = text[at : at + draw.randint(1, size)]
        history.add(accepted)
        at += len(accepted)
    history.add(text[at:])
    assert history.is_complete


def test_unread_tokens_have_the_text_before_each(history):
    text = walk(3)
    history.add(text[:5])
    rows = history.changes_for_unread(text[2:5])(torch.zeros(3, WIDTH))
    assert kept(rows) == [allowed("".join(PIECES[token] for token in text[: at + 1])) for at in (2, 3, 4)]
    assert kept(history.changes_for_paths([()])(torch.zeros(1, WIDTH))) == kept(rows[2:]), "the history is as before"


def test_complete_only_at_the_end(history):
    text = walk(1)
    for token in text[:-1]:
        assert not history.is_complete
        history.add([token])
    assert history.is_complete and END in kept(history.changes_for_paths([()])(torch.zeros(1, WIDTH)))[0]


def test_a_smaller_vocabulary(history):
    """A draft's: logit i is token ``ids[i]``; rows without any allowed token are left, since the target rejects."""
    ids = torch.tensor([PIECES.index("x"), PIECES.index("{"), END, PIECES.index("a"), WIDTH + 5])
    rows = history.changes_for_paths([(), (PIECES.index("{"),)], ids)(torch.zeros(2, 5))
    assert kept(rows) == [{1}, {0, 1, 2, 3, 4}]


def test_penalties_change_what_the_grammar_allows(tokenizer, history):
    penalties = PenaltyHistory(Penalties(presence_penalty=2.0), [])
    both = CombinedHistory([history, penalties])
    text = walk(5)
    both.add(text[:6])
    logits = torch.randn(1, WIDTH)
    (row,) = both.changes_for_paths([()])(logits)
    (penalised,) = penalties.changes_for_paths([()])(logits)
    inside = sorted(allowed("".join(PIECES[token] for token in text[:6])))
    assert kept([row]) == [set(inside)] and torch.equal(row[inside], penalised[inside])
    rows = both.changes_for_unread(text[4:6])(torch.zeros(2, WIDTH))
    assert kept(rows) == [allowed("".join(PIECES[token] for token in text[:end])) for end in (5, 6)]


def test_the_grammar_wins_over_a_ban(history):
    """A ban that would leave a row no token is dropped for that row, with every other rule kept."""
    text, quote, space = [PIECES.index(piece) for piece in "{"], PIECES.index('"'), PIECES.index(" ")
    both = CombinedHistory([history, PenaltyHistory(Penalties(no_repeat_ngram=1), [quote])])
    both.add(text)
    rows = both.changes_for_paths([(), (space,)])(torch.zeros(2, WIDTH))
    assert kept(rows) == [{space}, {quote}], "after the space only the quote may follow, banned or not"


def test_a_token_that_the_grammar_refuses_is_an_error(history):
    history.add([PIECES.index("{")])
    with pytest.raises(GenerationError, match=f"token {PIECES.index('x')} does not follow the grammar"):
        history.add([PIECES.index('"'), PIECES.index("x")])


def test_tokens_of_a_window_after_the_end_are_ignored(history):
    history.add([*walk(1), PIECES.index("x"), END])
    assert history.is_complete


def test_a_grammar_begins_after_a_free_part(tokenizer):
    """As after the reasoning of a thinking model, wherever in a window it ends; and it is rolled back into it."""
    mark, x, brace, quote, space = (PIECES.index(piece) for piece in (":", "x", "{", '"', " "))
    history = GrammarHistory(tokenizer, json_grammar(json.dumps(SCHEMA)), lambda ids: ids[-1] == mark)
    every, first, second = set(range(WIDTH)), {brace}, {space, quote}
    history.add([x, END])
    paths = [(), (brace,), (mark,), (x, mark, brace)]
    assert kept(history.changes_for_paths(paths)(torch.zeros(4, WIDTH))) == [every, every, first, second]
    history.add([x, mark, brace])
    assert kept(history.changes_for_paths([()])(torch.zeros(1, WIDTH))) == [second]
    rows = history.changes_for_unread([x, mark, brace])(torch.zeros(3, WIDTH))
    assert kept(rows) == [every, first, second]
    assert not history.is_complete
    history.add(walk(2)[1:])
    assert history.is_complete


@pytest.mark.parametrize("schema", ['{"type": "obj"}', "[1]", '{"type": "string", "pattern": "("}'])
def test_what_is_no_schema(schema):
    with pytest.raises(ValueError):
        json_grammar(schema)


def test_a_schema_of_too_many_optional_properties_names_the_limit(tokenizer, monkeypatch, capfd):
    """At first, and, where only a token of the text meets the limit, with the text; nothing else is printed."""
    schema = json.dumps({"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(900)}})
    limit = r"exceeds a limit of llguidance \(Current row has 3607 items; max is 2000\)"
    with pytest.raises(ValueError, match=f"^it {limit}: list fewer optional properties$"):
        json_grammar(schema)
    with monkeypatch.context() as patched:
        patched.setattr("vidspec.config.json_schema._problem", lambda grammar: None)
        history = GrammarHistory(tokenizer, json_grammar(schema.replace("p1", "q1")))
    with pytest.raises(GenerationError, match=f"^the schema of the answer {limit}") as caught:
        history.add(tokenizer.tokenize_str('{"q1'))
    assert caught.value.kind == "json" and capfd.readouterr() == ("", "")


@pytest.mark.parametrize("forks", [True, False])
def test_a_schema_that_takes_minutes_before_the_first_token_is_refused(monkeypatch, forks):
    """The limits of llguidance do not hold there, and the thread that runs the models would wait for it."""
    monkeypatch.setattr("vidspec.limited.can_fork", lambda: forks)
    begun = time.monotonic()
    with pytest.raises(ValueError, match="takes too much time"):
        json_grammar(json.dumps({"type": "integer", "multipleOf": 9_999_991 if forks else 9_999_973}))
    assert time.monotonic() - begun < (60 if forks else 180)
    several = [
        {"type": "integer", "multipleOf": 99_991},
        {"type": "integer", "multipleOf": 99_989 if forks else 99_971},
    ]
    with pytest.raises(ValueError, match="takes too much time"):  # by its own limits
        json_grammar(json.dumps({"allOf": several}))
    assert json_grammar(json.dumps({"type": "integer", "multipleOf": 5 if forks else 25}))
