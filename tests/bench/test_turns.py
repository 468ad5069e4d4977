"""The measuring loop and its summary, on contenders whose times are given."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from vidspec.bench.measure import copy_bandwidth, model_weight_bytes, weight_bytes
from vidspec.bench.rows import bench_rows, markdown, methods_with_other_draws
from vidspec.bench.turns import ContenderFailed, measure_in_turns
from vidspec.config import profiles
from vidspec.events.record import Caption

CLIPS = ["a.mp4", "b.mp4"]


@dataclass
class TimedContender:
    """Captions with the given decode seconds for 11 tokens; logs every call."""

    name: str
    decode: dict[str, float]
    log: list[str] = field(default_factory=list)
    ids: tuple[int, ...] = tuple(range(11))
    drafted: bool = False

    def __call__(self, path: str) -> Caption:
        self.log.append(f"{self.name}:{path}")
        decode = self.decode[path]
        counters = (
            {
                "drafted": 10,
                "accepted": 7,  # one of them a start-up token, which the prefill accepted
                "accepted_lengths": [4, 2],
                "target_forwards": 4,
                "emitted": 11,
                "visual_tokens": 100,
                "visual_tokens_kept": 10,
            }
            if self.drafted
            else {"drafted": 0}
        )
        return Caption(
            path=path,
            caption="x",
            token_ids=list(self.ids),
            counters=counters,
            timings={"time_to_first_token": 1.0, "decode": decode, "end_to_end": 1.0 + decode},
        )


def test_contenders_take_turns_after_a_warm_up_of_each():
    log: list[str] = []
    times = {"a.mp4": 1.0, "b.mp4": 1.0}
    contenders = {name: TimedContender(name, times, log) for name in "xyz"}
    records = measure_in_turns(contenders, CLIPS, repeats=2)
    assert log[:3] == ["x:a.mp4", "y:a.mp4", "z:a.mp4"]
    assert [entry[0] for entry in log[3:]] == list("xyzyzxzxyxyz")
    assert [entry[2:] for entry in log[3:9]] == ["a.mp4"] * 3 + ["b.mp4"] * 3
    assert {clip: len(runs) for clip, runs in records["x"].items()} == {"a.mp4": 2, "b.mp4": 2}


def test_a_contender_that_the_others_can_do_without_is_left_out():
    log, left, said = [], {}, []

    def failing(clip: str) -> Caption:
        log.append(clip)
        if len(log) == 3:  # a warm-up, the first clip, and then the second
            raise ContenderFailed("y: gone")
        return Caption(clip, "x")

    contenders = {"x": TimedContender("x", {"a.mp4": 1.0, "b.mp4": 1.0}), "y": failing}
    found = measure_in_turns(contenders, CLIPS, 2, leave=left.__setitem__, say=said.append)
    assert list(found) == ["x"] and left == {"y": "y: gone"} and log == ["a.mp4", "a.mp4", "b.mp4"]
    assert said[:3] == ["warm-up x", "warm-up y", "1/2 a.mp4"] and said.count("left out: y: gone") == 1


def test_summary_compares_clip_by_clip():
    plain = TimedContender("plain", {"a.mp4": 4.0, "b.mp4": 2.0})
    fast = TimedContender("fast", {"a.mp4": 1.0, "b.mp4": 1.0}, drafted=True)
    rows = {row.name: row for row in bench_rows(measure_in_turns({"plain": plain, "fast": fast}, CLIPS, 1), "plain")}
    assert rows["plain"].decode == (1.0, 1.0, 1.0)
    assert rows["plain"].tau is None and rows["plain"].kept is None
    assert rows["fast"].decode == pytest.approx((3.0, 2.0, 4.0))
    assert rows["fast"].end_to_end == pytest.approx((2.0, 1.5, 2.5))
    assert rows["fast"].tokens_per_s == pytest.approx(10.0)
    assert rows["fast"].tau == pytest.approx(3.0)
    assert rows["fast"].tokens_per_target_pass == pytest.approx(2.5)
    assert rows["fast"].kept == pytest.approx(0.1)
    assert rows["fast"].equal == 2


def test_summary_counts_clips_with_other_tokens():
    plain = TimedContender("plain", {"a.mp4": 1.0, "b.mp4": 1.0})
    other = TimedContender("other", {"a.mp4": 1.0, "b.mp4": 1.0}, ids=(1, 2, 3))
    rows = {row.name: row for row in bench_rows(measure_in_turns({"plain": plain, "other": other}, CLIPS, 1), "plain")}
    assert (rows["plain"].equal, rows["other"].equal) == (2, 0)


def test_end_to_end_is_of_texts_as_long_as_the_baselines():
    """11 tokens in 1 + 4 s; 6 in 1 + 1 s are 0.2 s a token, so 11 of them would take 3 s, and 21 in 1 + 4 s too."""
    times = {"a.mp4": 4.0, "b.mp4": 4.0}
    plain = TimedContender("plain", times)
    short = TimedContender("short", {"a.mp4": 1.0, "b.mp4": 1.0}, ids=tuple(range(6)))
    long = TimedContender("long", times, ids=tuple(range(21)))
    rows = bench_rows(measure_in_turns({"plain": plain, "short": short, "long": long}, CLIPS, 2), "plain")
    assert [row.tokens for row in rows] == [11, 6, 21]
    assert [row.end_to_end[0] for row in rows] == pytest.approx([1.0, 5 / 3, 5 / 3])
    assert [row.end_to_end_raw[0] for row in rows] == pytest.approx([1.0, 5 / 2, 1.0])
    header, _, _, of_short, _ = markdown(rows, "plain", lambda _: 1.0).splitlines()
    assert header.endswith("| mean tokens | end to end at the baseline's length |")
    assert of_short.endswith("| 6.0 | 1.67x (1.67-1.67) |")
    assert "mean tokens" not in markdown(rows[:1], "plain", lambda _: 1.0)


def test_a_text_of_one_token_does_not_say_how_long_more_would_take():
    times = {"a.mp4": 4.0, "b.mp4": 4.0}
    silent = TimedContender("silent", {"a.mp4": 0.0, "b.mp4": 0.0}, ids=(1,))
    _, row = bench_rows(
        measure_in_turns({"plain": TimedContender("plain", times), "silent": silent}, CLIPS, 1), "plain"
    )
    assert (row.decode[0], row.end_to_end[0], row.end_to_end_raw[0]) == (0.0, 0.0, 5.0)


HOT = {"generate.temperature": 0.7}


@pytest.mark.parametrize(
    ("settings", "by_others"),
    [
        ({"ar": {}, "vanilla-sd": {}}, ()),
        ({"ar": HOT, "vanilla-sd": HOT, "sd-tree": HOT, "parallelvlm": HOT}, ("vanilla-sd",)),
        ({"ar": HOT, "sd-tree": {**HOT, "generate.seed": 1}}, ("sd-tree",)),
        ({"vanilla-sd": HOT, "ar": HOT}, ("ar",)),
        # Other distributions, and so other tokens.
        ({"ar": HOT, "vanilla-sd": {}, "sd-rand": {"generate.temperature": 0.8}, "fastv": HOT}, ()),
    ],
)
def test_methods_that_draw_other_tokens_of_the_same_distribution(settings, by_others):
    loaded = {name: profiles.load(name, overrides, env={}) for name, overrides in settings.items()}
    assert methods_with_other_draws(loaded, next(iter(loaded))) == by_others


def test_the_tokens_of_a_method_that_draws_others_are_not_held_against_it():
    plain = TimedContender("plain", {"a.mp4": 1.0, "b.mp4": 1.0})
    other = TimedContender("other", {"a.mp4": 1.0, "b.mp4": 1.0}, ids=(1, 2, 3))
    rows = bench_rows(measure_in_turns({"plain": plain, "other": other}, CLIPS, 1), "plain", ["other"])
    assert [(row.equal, row.equality) for row in rows] == [(2, "2/2"), (None, "in distribution")]
    assert "| other | in distribution |" in markdown(rows, "plain", lambda _: 1.0)


def test_a_table_says_that_two_names_are_one_method():
    named = {name: profiles.load(name, env={}) for name in ("ar", "hippo-sequential", "hippo-no-vpsd", "sd-tree")}
    also = profiles.group_equal_profiles(named)
    times = {"a.mp4": 1.0, "b.mp4": 1.0}
    rows = bench_rows(measure_in_turns({name: TimedContender(name, times) for name in also}, CLIPS, 1), "ar", also=also)
    assert [row.names for row in rows] == ["ar", "hippo-sequential = hippo-no-vpsd", "sd-tree"]
    header, _, _, twins, _ = markdown(rows, "ar", lambda _: 1.0).splitlines()
    assert header.startswith("| method (= its other names: measured once) | same tokens as ar |")
    assert twins.startswith("| hippo-sequential = hippo-no-vpsd | 2/2 |")
    assert markdown(rows[:1], "ar", lambda _: 1.0).startswith("| method | same tokens as ar |")


def test_weight_bytes_count_a_tied_table_once_and_an_untied_one_not_at_all():
    class Language(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(10, 4)
            self.block = torch.nn.Linear(4, 4, bias=False)

        def get_input_embeddings(self) -> torch.nn.Embedding:
            return self.table

    language, head = Language(), torch.nn.Linear(4, 10, bias=False)
    assert weight_bytes(language, head) == 4 * (16 + 40)
    head.weight = language.table.weight
    assert weight_bytes(language, head) == 4 * (16 + 40)
    assert weight_bytes(language, torch.nn.Linear(4, 20, bias=False)) == 4 * (16 + 80)


def test_copy_bandwidth_counts_reads_and_writes(monkeypatch):
    ticks = iter([0.0, 0.5, 1.0, 1.25])
    monkeypatch.setattr("vidspec.bench.turns.time.perf_counter", lambda: next(ticks))
    assert copy_bandwidth(torch.device("cpu"), megabytes=1, repeats=2) == pytest.approx(2 * 2**20 / 0.25)


def test_copies_of_weights_that_are_packed_count_as_weights():
    class Adapter:
        model = torch.nn.Sequential(torch.nn.Linear(512, 256, bias=False), torch.nn.Linear(4, 4, bias=False))
        matrices: ClassVar = []

    one = Adapter()
    plain = 4 * (512 * 256 + 16)
    assert model_weight_bytes(one) == plain
    one.matrices = [SimpleNamespace(nbytes=600), SimpleNamespace(nbytes=400)]
    assert model_weight_bytes(one) == plain + 1000
