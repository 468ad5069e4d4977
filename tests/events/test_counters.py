"""Counters and the papers' lengths, from rounds made by hand."""

from vidspec.events.compare import count_rounds, lengths
from vidspec.events.events import Round

FIRST = Round((1,), ("target",), drafted=0, accepted=0, elapsed=0.0)
ALL_PASS = Round((2, 3, 4, 5), ("draft", "draft", "draft", "bonus"), drafted=3, accepted=3, elapsed=1.0, verify_s=0.5)
REJECTED = Round((6, 7), ("draft", "correction"), drafted=3, accepted=1, elapsed=2.0, verify_s=0.5)
NONE_PASS = Round((8,), ("correction",), drafted=3, accepted=0, elapsed=3.0, verify_s=0.5)
LOOSE = Round((9, 10, 11), ("draft", "loose", "correction"), drafted=3, accepted=2, elapsed=4.0, verify_s=0.5)
ENDED = Round((12, 13), ("draft", "draft"), drafted=3, accepted=2, elapsed=5.0, verify_s=0.5)
PLAIN = Round((14,), ("target",), drafted=0, accepted=0, elapsed=6.0, verify_s=0.5)


def test_counts():
    counters = count_rounds([FIRST, ALL_PASS, REJECTED, NONE_PASS, LOOSE, PLAIN, ENDED], draft_forwards=15)
    assert counters.target_forwards == 6
    assert counters.draft_forwards == 15
    assert counters.drafted == 15
    assert counters.accepted == 8
    assert counters.loose == 1
    assert counters.corrections == 3
    assert counters.bonus == 1
    assert counters.emitted == 14
    assert counters.accepted_lengths == (3, 1, 0, 2, 2)  # the plain step verified no window


def test_lengths():
    counters = count_rounds([FIRST, ALL_PASS, REJECTED, NONE_PASS], draft_forwards=9)
    assert lengths(counters) == {
        "tau": 4 / 3,
        "tokens_per_target_pass": 7 / 3,
        "run_length": 4 / 3,
        "acceptance_rate": 4 / 9,
    }


def test_a_start_up_token_that_the_prefill_accepts_is_no_verification():
    prefill = Round((1,), ("draft",), drafted=1, accepted=1, elapsed=0.0, mode="prefill")
    counters = count_rounds([prefill, ALL_PASS, REJECTED], draft_forwards=7)
    assert (counters.accepted, counters.accepted_lengths) == (5, (3, 1))
    assert lengths(counters)["tau"] == 2.0  # not 5 / 2


def test_run_length_goes_across_rounds():
    """Seven accepted tokens, one rejection: two runs, though four windows."""
    counters = count_rounds([FIRST, ALL_PASS, REJECTED, ALL_PASS], draft_forwards=9)
    assert lengths(counters)["run_length"] == 3.5
    assert lengths(counters)["tau"] == 7 / 3


def test_plain_decoding_has_one_token_per_pass_and_no_other_length():
    counters = count_rounds([FIRST, PLAIN, PLAIN], draft_forwards=0)
    assert (counters.target_forwards, counters.accepted_lengths) == (2, ())
    assert lengths(counters) == {
        "tau": None,
        "tokens_per_target_pass": 1.0,
        "run_length": None,
        "acceptance_rate": None,
    }


def test_a_text_of_one_token_has_no_lengths():
    assert set(lengths(count_rounds([FIRST], draft_forwards=0)).values()) == {None}
