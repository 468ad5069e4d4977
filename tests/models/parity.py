"""A small model behind vidspec's interface beside the library's own, and checks that both compute the same."""

import torch

from research.stock_inputs import stock_inputs
from tests.engine.passing import forward
from tests.models.closeness import assert_close
from tests.ready_clips import read_requests, serve_captions
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.engine.forward import Engine

PROMPT = "Describe the video."
#: Parents of a window that is a tree.
PARENTS = [-1, -1, 0, 0, 1, 3, 4]


class ParityCase:
    """A model behind our interface, the same model untouched (``stock``), a clip and a prompt."""

    def __init__(self, model, stock, pixels, prompt=PROMPT):
        self.model, self.stock, self.pixels = model, stock, pixels
        self.engine = Engine(model)
        self.seen = model.encode(pixels)
        self.prefix = model.prefix(self.seen, prompt)
        self.inputs = stock_inputs(model, pixels, self.prefix)

    def prefill(self, prefix=None):
        return self.engine.prefill(self.prefix if prefix is None else prefix, room=32)

    def greedy(self, count):
        """Our greedy text of ``count`` tokens, whatever they are."""
        read = self.prefill()
        text = [int(read.logits.argmax())]
        while len(text) < count:
            text.append(int(forward(self.engine, read, text[-1:]).logits[-1].argmax()))
        return text

    @torch.inference_mode()
    def generated(self, count, **options):
        """The text of the library's ``generate``, which may end early."""
        return self.stock.generate(**self.inputs, max_new_tokens=count, **options)[0, self.prefix.length :].tolist()

    @torch.inference_mode()
    def expected(self, new=()):
        """Logits (L + n, V) of the stock model's own forward pass over prompt and new tokens."""
        ids = torch.cat([self.prefix.token_ids, torch.tensor(new, dtype=torch.long)])[None]
        given = {**self.inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
        return self.stock(**given, use_cache=False).logits[0, :, : self.model.vocabulary]


class SoundCase(ParityCase):
    """The thinker of an Omni model, whose clip may have sound."""

    def positions(self, new=0):
        """(3, 1, L + n) as the stock model's own function has them, were all of the prompt."""
        ids = torch.nn.functional.pad(self.inputs["input_ids"], (0, new))
        length = None if self.pixels.sound is None else torch.tensor([self.pixels.sound.shape[1]])
        return self.stock.get_rope_index(
            ids,
            video_grid_thw=self.inputs["video_grid_thw"],
            attention_mask=torch.ones_like(ids),
            use_audio_in_video=length is not None,
            audio_seqlens=length,
            second_per_grids=self.inputs["video_second_per_grid"],
        )[0]


def check_decoders(case, new):
    """Windows of five and of one token; ``case.expected`` gives the stock model's logits."""
    state = case.prefill()
    several, one = forward(case.engine, state, new[:5]), forward(case.engine, state, new[5:6])
    assert_close(torch.cat([state.logits[None], several.logits, one.logits]), case.expected(new[:6])[-7:])


def check_chunks(case, new, chunks):
    state, left, rows = case.prefill(), list(new), []
    for size in chunks:
        rows.append(forward(case.engine, state, left[:size]).logits)
        left = left[size:]
    assert_close(torch.cat(rows), case.expected(new)[-len(new) :])
    assert state.span.length == case.prefix.length + len(new)


def check_rollback(case, new, rejected):
    """The first of five tokens is kept, and others follow it."""
    state = case.prefill()
    forward(case.engine, state, rejected)
    state.span.rollback(case.prefix.length + 1)
    assert_close(forward(case.engine, state, new).logits, case.expected([rejected[0], *new])[-len(new) :])


def check_tree(case, new, tokens):
    """Every node sees its own path alone; returns what the pass gave."""
    state = case.prefill()
    forward(case.engine, state, new[:2])
    passed, paths = forward(case.engine, state, tokens, PARENTS), []
    for node, parent in enumerate(PARENTS):
        paths.append([*(paths[parent] if parent >= 0 else []), tokens[node]])
        assert_close(passed.logits[node], case.expected([*new[:2], *paths[-1]])[-1])
    return passed


def check_generate(case, count=12):
    """Plain decoding is the library's ``generate``, which must not say a padded id."""
    padding = list(range(case.model.vocabulary, case.stock.lm_head.out_features))
    expected = case.generated(count, suppress_tokens=padding)
    assert case.greedy(len(expected)) == expected


def check_profiles(target, draft, names, clips, settings):
    """Every profile gives plain decoding's text for one of the clips; two give it for all clips at once."""

    def captioner(name):
        profile = profiles.load(name, settings, env={})
        return Captioner(profile, target, draft if profile.draft.has_model else None)

    texts = {path: captioner("ar").caption(path).token_ids for path in clips}
    for number, name in enumerate(names):
        path = clips[number % len(clips)]
        with captioner(name) as drafting:
            assert drafting.caption(path).token_ids == texts[path], name
    for name in ("ar", "specvlm"):
        four = captioner(name)
        captions = serve_captions(four, read_requests(four, clips), batch=4)
        assert {key: caption.token_ids for key, caption in captions.items()} == texts, name
