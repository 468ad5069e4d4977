"""The study of drafts on real language: its figures, and that another text is an error."""

from types import SimpleNamespace

import pytest

from research.studies import real_language
from research.studies.real_language import CONTENDERS, markdown, row
from vidspec.config import labels
from vidspec.errors import VidspecError


def written(token_ids, passes, drafts=0, drafted=0, accepted=0):
    counters = {"emitted": len(token_ids), "target_forwards": passes, "draft_forwards": drafts}
    counters |= {"drafted": drafted, "accepted": accepted, "accepted_lengths": [accepted]}
    return SimpleNamespace(token_ids=token_ids, counters=counters)


PLAIN = {0: written([1, 2, 3, 4], 3), 1: written([5, 6, 7], 2)}


def test_figures_are_those_of_all_captions_together():
    drafted = {0: written([1, 2, 3, 4], 1, 3, 3, 2), 1: written([5, 6, 9], 1, 2, 2, 1)}
    one = row("self-int8", 8, drafted, PLAIN, [30.0, 10.0, 20.0])
    assert (one.tokens_per_target_pass, one.draft_passes_per_token) == (2.5, 1.0)
    assert (one.accepted, one.equal, one.clips, one.tokens_per_s) == (0.6, 1, 2, 20.0)
    plain = row("ar", 8, PLAIN, PLAIN, [10.0])
    assert (plain.tokens_per_target_pass, plain.accepted, plain.equal) == (1.0, None, 2)
    assert "| 8 | `self-int8` | 2.50 | 1.00 | 60% | 1/2 | 20.0 | 2.00x |" in markdown([plain, one])


def test_without_times_there_are_no_columns_of_speed():
    table = markdown([row("ar", 1, PLAIN, PLAIN, ())])
    assert "tokens/s" not in table and table.endswith("| 1 | `ar` | 1.00 | 0.00 | - | 2/2 |")


def test_contenders_are_profiles():
    assert [labels.load(one, {}).lossless for one in CONTENDERS] == [True] * len(CONTENDERS)


def test_another_text_is_an_error(monkeypatch):
    other = {0: written([1, 2, 3, 9], 3), 1: PLAIN[1]}
    loaded = SimpleNamespace(captioner=lambda label, settings: label, where=None)
    monkeypatch.setattr(real_language, "LoadedModels", lambda source: loaded)
    monkeypatch.setattr(real_language, "build", lambda: "folder")
    monkeypatch.setattr(
        real_language, "caption", lambda captioner, prompts, size: (PLAIN if captioner == "ar" else other, 1.0)
    )
    assert real_language.main(["--profiles", "ar", "--counters"]) == 0
    with pytest.raises(VidspecError, match=r"other token ids than plain decoding: suffix, suffix"):
        real_language.main(["--profiles", "ar,suffix", "--counters"])
