"""Each selection against a literal transcription, with loops over single numbers."""

import math
from types import SimpleNamespace

import pytest
import torch

from tests.pruning.given import irregular_tokens, visual_tokens
from vidspec.baselines.base import BlockSignals, last_row_attention, share_of, without_overlap
from vidspec.baselines.engine import Reselect
from vidspec.baselines.methods.dycoke import DyCokeTargetPruner, merge_frames
from vidspec.baselines.methods.fastv import FastVPruner
from vidspec.baselines.methods.pdrop import PyramidDropPruner
from vidspec.baselines.methods.sparsevlm import SparseVLMPruner, assign_clusters, rater_tokens
from vidspec.engine.taps import Taps
from vidspec.errors import ModelError, ProfileError
from vidspec.models.base import EmbeddedPrompt
from vidspec.pruning.base import best, token_grid
from vidspec.registry import build_part

HEADS, KV_HEADS, WIDTH, HIDDEN, AFTER = 4, 2, 8, 6, 5
SCALING = 0.7


def reading(seed, frames=5, rows=3, columns=4):
    """Four rows of text, visual tokens, a newline that must stay, and five rows of text."""
    rng = torch.Generator().manual_seed(seed)
    visual = visual_tokens(frames, rows, columns, hidden=HIDDEN, seed=seed)
    length = 4 + len(visual) + AFTER
    embeds = torch.randn(1, length, HIDDEN, generator=rng)
    prompt = EmbeddedPrompt(torch.zeros(length), embeds, torch.arange(length)[None], visual, length)
    query = torch.randn(1, HEADS, length, WIDTH, generator=rng)
    key = torch.randn(1, KV_HEADS, length, WIDTH, generator=rng)
    return BlockSignals(prompt, visual, torch.randn(length, HIDDEN, generator=rng), query, key, SCALING)


def attention(one, row):
    """Attention of one row to each visual token, head by head."""
    sums = [0.0] * len(one.visual)
    for head in range(HEADS):
        keys = one.key[0, head // (HEADS // KV_HEADS)]
        weights = [math.exp(SCALING * float(one.query[0, head, row] @ keys[at])) for at in range(row + 1)]
        for token, at in enumerate(one.visual.index.tolist()):
            sums[token] += weights[at] / sum(weights) / HEADS
    return sums


def top(scores, required, wanted):
    ranked = sorted(range(len(scores)), key=lambda i: (not required[i], -scores[i], i))
    return sorted(ranked[:wanted])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("share", [0.02, 0.1, 0.33, 1.0])
def test_fastv_and_pdrop(seed, share):
    one = reading(seed)
    scores = attention(one, len(one.states) - 1)
    assert one.last_attention().tolist() == pytest.approx(scores, abs=1e-6)
    wanted = top(scores, one.visual.required.tolist(), max(1, round(share * len(one.visual))))
    for method in (FastVPruner(), PyramidDropPruner()):
        kept, into = method.choose(one, share)
        assert kept.tolist() == wanted and into is None


def test_the_last_row_sees_all_keys_and_may_be_alone():
    one = reading(0)
    alone = last_row_attention(one.query[:, :, -1:], one.key, one.visual.index, SCALING)
    assert torch.allclose(alone, one.last_attention())


@pytest.mark.parametrize("seed", range(4))
def test_raters(seed):
    rng = torch.Generator().manual_seed(seed)
    visual, text = torch.randn(7, 5, generator=rng), torch.randn(9, 5, generator=rng)
    relevance = [0.0] * len(text)
    for token in visual:
        weights = [math.exp(float(token @ word)) for word in text]
        for word, weight in enumerate(weights):
            relevance[word] += weight / sum(weights) / len(visual)
    mean = sum(relevance) / len(relevance)
    assert rater_tokens(visual, text).tolist() == [word for word, value in enumerate(relevance) if value > mean]


def test_text_of_equal_relevance_rates_as_a_whole():
    assert rater_tokens(torch.ones(3, 2), torch.ones(1, 2)).tolist() == [0]


def literal_clusters(points, count):
    m, width = len(points), len(points[0])
    distance = [[math.dist(a, b) / math.sqrt(width) for b in points] for a in points]
    density = [math.exp(-sum(d * d for d in sorted(row)[:count]) / count) for row in distance]
    furthest = max(max(row) for row in distance)
    apart = [min([distance[i][j] for j in range(m) if density[j] > density[i]], default=furthest) for i in range(m)]
    centres = sorted(range(m), key=lambda i: (-apart[i] * density[i], i))[:count]
    return [i if i in centres else min(centres, key=lambda c: (distance[i][c], centres.index(c))) for i in range(m)]


@pytest.mark.parametrize(("m", "count"), [(1, 1), (2, 1), (12, 2), (30, 4), (5, 5)])
def test_clusters(m, count):
    for seed in range(3):
        points = torch.randn(m, 6, generator=torch.Generator().manual_seed(seed))
        found = assign_clusters(points, count).tolist()
        assert found == literal_clusters(points.double().tolist(), count) and len(set(found)) == count


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("share", "recycle", "cluster"), [(0.3, 0.3, 10), (0.1, 0.9, 3), (0.5, 0.01, 1), (0.2, 0, 10)])
def test_sparsevlm(seed, share, recycle, cluster):
    one = reading(seed)
    n, embeds = len(one.visual), one.prompt.embeds[0]
    rating = rater_tokens(embeds[one.visual.index], embeds[-AFTER:]).tolist()
    rows = [len(one.states) - AFTER + rater for rater in rating]
    scores = [sum(values) / len(rows) for values in zip(*(attention(one, row) for row in rows), strict=True)]
    kept = top(scores, one.visual.required.tolist(), max(1, round(share * n)))
    found = SparseVLMPruner(recycle=recycle, cluster=cluster).choose(one, share)
    wanted = len(kept)
    if not recycle:
        assert found.kept.tolist() == kept and found.into is None
        return
    taken = int((n - wanted) * recycle) + 1
    count = min(taken, taken // cluster + 1, wanted // 2)  # part of what stays, at most half of it
    kept = top(scores, one.visual.required.tolist(), wanted - count)
    dropped = [token for token in range(n) if token not in kept]
    again = sorted(sorted(dropped, key=lambda i: (-scores[i], i))[:taken])
    centres = literal_clusters(one.states[one.visual.index[again]].double().tolist(), count)
    into = [-1] * n
    for token, centre in zip(again, centres, strict=True):
        into[token] = again[centre]
    assert found.into.tolist() == into
    assert found.kept.tolist() == sorted({*kept, *(token for token in into if token >= 0)})
    assert len(found.kept) == len(kept) + count == wanted and count


def literal_merge(visual, merge):
    """Frames in groups of four, token by token."""
    at = {}
    for i in range(len(visual)):
        at[int(visual.frame[i]), int(visual.row[i]), int(visual.column[i])] = i
    dropped = set()
    for frame in range(visual.frames):
        like = {1: frame - 1, 2: frame - 2, 3: frame - 1}.get(frame % 4)
        if like is None:
            continue
        alike = {}
        for (f, row, column), i in at.items():
            other = at.get((like, row, column))
            if f == frame and row >= 0 and other is not None:
                alike[i] = float(torch.cosine_similarity(visual.features[i], visual.features[other], dim=0))
        stay = math.floor(round((1 - merge) * len(alike), 6))
        dropped |= set(sorted(alike, key=lambda i: (alike[i], i))[stay:])
    return [i for i in range(len(visual)) if i not in dropped]


@pytest.mark.parametrize("merge", [0.0, 0.5, 0.7, 1.0])
@pytest.mark.parametrize("frames", [1, 2, 3, 4, 7, 8])
def test_temporal_merging(frames, merge):
    for visual in (visual_tokens(frames, 2, 5), irregular_tokens(frames, 3, 4)):
        assert merge_frames(visual.features, token_grid(visual), merge).tolist() == literal_merge(visual, merge)


def test_ten_tokens_of_a_frame_leave_three():
    visual = visual_tokens(8, 2, 5)
    kept = merge_frames(visual.features, token_grid(visual), 0.7)
    assert visual.frame[kept].bincount().tolist() == [10, 3, 3, 3, 10, 3, 3, 4]  # and the newline


def test_entries_are_chosen_anew_when_attention_has_turned():
    """A step that is like the last choice changes nothing, however many small steps lead away from it."""
    visual = visual_tokens(1, 2, 3, newline=False)
    chosen: list[list[int]] = []
    span = SimpleNamespace(whole=2, choose=lambda rows, prompt: chosen.append(rows.tolist()))
    watch = Reselect(0.9, 0.5, visual, span, 12)
    rng = torch.Generator().manual_seed(1)
    key = torch.randn(1, KV_HEADS, 12, WIDTH, generator=rng)
    query = torch.randn(1, HEADS, 1, WIDTH, generator=rng)
    turn = torch.randn(1, HEADS, 1, WIDTH, generator=rng)
    last, versions = None, []
    for step in range(30):
        now = query + 0.1 * step * turn
        scores = last_row_attention(now, key, visual.index, 1.0)
        alike = -2.0
        if last is not None:
            product = sum(float(a * b) for a, b in zip(scores, last, strict=True))
            alike = product / math.sqrt(sum(float(a * a) for a in scores) * sum(float(b * b) for b in last))
        before = len(chosen)
        for block in range(3):
            watch.observe_attention(block, (now if block == 1 else turn)[0].transpose(0, 1), key, 1.0)
        assert (len(chosen) > before) == (alike < 0.9)
        if alike < 0.9:
            last = scores
            kept = top(scores.tolist(), [False] * 6, 3)
            text = [row for row in range(12) if not 4 <= row < 10]
            assert chosen[-1] == sorted(text + [4 + i for i in kept])
        versions.append(len(chosen))
    assert 1 == versions[0] == versions[1] < versions[-1] < 30


def test_where_the_stages_are():
    assert list(FastVPruner().stages(28)) == [2] and FastVPruner(layer=5, keep=[0.5]).stages(4) == {3: 0.5}
    paper = [0.5, 0.25, 0.125]
    assert PyramidDropPruner(paper).stages(32) == {8: 0.5, 16: 0.25, 24: 0.125}
    assert PyramidDropPruner(paper).stages(28) == {7: 0.5, 14: 0.25, 21: 0.125}
    assert PyramidDropPruner(paper).stages(3) == {1: 0.25, 2: 0.125}
    assert list(PyramidDropPruner().stages(28)) == [1, 7, 14, 21] and list(PyramidDropPruner().stages(12)) == [
        1,
        3,
        6,
        9,
    ]
    assert list(SparseVLMPruner().stages(80)) == [7, 17, 40] and list(SparseVLMPruner().stages(28)) == [2, 6, 14]
    assert SparseVLMPruner(keep=[0.3, 0.2, 0.1]).stages(4) == {1: 0.2, 2: 0.1}
    assert DyCokeTargetPruner().stages(28) == {} and FastVPruner().stages(1) == {}
    assert without_overlap([(0, 0.5), (9, 0.1)], 9) == {1: 0.5}


def mean_share(stages, depth):
    """Mean share that the blocks read; those before the first stage read everything."""
    share, total = 1.0, 0.0
    for block in range(depth):
        share = stages.get(block, share)
        total += share
    return total / depth


@pytest.mark.parametrize("depth", [11, 12, 24, 28, 32, 36, 48, 64, 80])
@pytest.mark.parametrize("retention", [0.1, 0.25, 0.5, 0.9, 1.0])
def test_the_average_over_the_blocks_is_what_was_asked_for(depth, retention):
    """PyramidDrop's own shares read 47%, whatever the others of ParallelVLM's Table 2 read."""
    for method in (
        FastVPruner(retention=retention),
        PyramidDropPruner(retention=retention),
        SparseVLMPruner(retention=retention),
    ):
        stages = method.stages(depth)
        assert mean_share(stages, depth) == pytest.approx(retention, abs=1e-9)
        assert all(0 < share <= 1 for share in stages.values())
        assert list(stages.values()) == sorted(stages.values(), reverse=True)
    for entered in (0.475, 0.6, 1.0):
        if retention <= 0.475:
            whole, share = DyCokeTargetPruner(retention=retention).reads(depth, entered)
            assert 0 < share <= 1 <= whole <= 3
            assert entered * (whole + (depth - whole) * share) / depth == pytest.approx(retention, abs=1e-9)


def test_the_papers_own_shares_are_what_their_average_asks_for():
    stages = PyramidDropPruner(retention=mean_share({7: 0.5, 14: 0.25, 21: 0.125}, 28)).stages(28)
    assert stages == pytest.approx({1: 1.0, 7: 0.5, 14: 0.25, 21: 0.125})
    assert FastVPruner(layer=3, retention=0.2).stages(40) == pytest.approx({3: 5 / 37})
    assert list(FastVPruner(layer=3).stages(12)) == [1]  # three blocks that read everything are a quarter alone


def test_too_few_blocks_for_so_little():
    for method in (FastVPruner(), PyramidDropPruner(), SparseVLMPruner(), DyCokeTargetPruner()):
        with pytest.raises(ModelError, match="the first of 8 blocks reads everything, 12% of all") as caught:
            method.stages(8)
        assert caught.value.hint == "give --set lossy.retention=0.17"
    with pytest.raises(ProfileError, match=r"lossy\.retention: 0\.5 is more than the 0\.475 that merging leaves"):
        DyCokeTargetPruner(retention=0.5)


def test_counts():
    assert [share_of(55, share) for share in (0.3, 1.0, 0.001)] == [16, 55, 1]
    visual = SimpleNamespace(required=torch.tensor([False, False, True, False]))
    assert best(torch.tensor([1.0, 3.0, 0.0, 3.0]), visual, 2).tolist() == [1, 2]
    assert best(torch.tensor([1.0, 3.0, 0.0, 3.0]), visual, 1).tolist() == [2]


def test_options_that_the_constructor_names():
    method = build_part(
        DyCokeTargetPruner, {"method": "dycoke", "keep": (0.4,), "layer": None, "merge": 0.6, "recycle": 0.3}
    )
    assert (method.keep, method.layer, method.merge, method.similarity) == ((0.4,), 3, 0.6, 0.9)
    assert method.reads(28, 0.5) == (3, 0.4)


def test_observers_are_taps():
    assert issubclass(Reselect, Taps)
