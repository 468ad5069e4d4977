"""A schedule that drafts every other round: a window of the draft, then a plain step."""

from functools import partial

from vidspec.decoding.prefill import prefill
from vidspec.decoding.schedules.sequential import make_round
from vidspec.decoding.sequence import Sequence
from vidspec.decoding.target import verify
from vidspec.engine.requests import Steps
from vidspec.schedule import Schedule, schedules


@schedules.register("alternating")
class Alternating(Schedule):
    @staticmethod
    def run(sequence: Sequence) -> Steps[None]:
        over = yield from prefill(sequence)  # both prompts; emits the first token and opens the drafter
        drafting, drafts = sequence.drafting, True
        while not over:
            left = sequence.limits.max_new_tokens - len(sequence.token_ids) - 1
            draft = yield from drafting.drafter.propose(min(drafting.gamma, left) if drafts else 0)
            verdict, passed = yield from verify(sequence, draft)
            drafting.drafter.read(verdict.tokens, passed)
            tokens, over = sequence.limits.cut(verdict.tokens, sequence.token_ids)
            elapsed = sequence.trace.elapsed() - sequence.text_start
            made = partial(make_round, sequence, drafting.drafter.origin, tokens, verdict, elapsed)
            sequence.emit_round(tokens, made, last=over)
            drafts = not drafts
