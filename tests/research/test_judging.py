"""Metric A by hand, and with a model that judges its own and others' texts."""

import json

import pytest

from research.judging import acceptance_share, accepted_by_target, target_choices
from research.peers.bench import measure
from tests.engine.families import case, decode
from tests.engine.passing import forward
from vidspec.baselines.engine import PrunedTargetEngine
from vidspec.baselines.methods.fastv import FastVPruner
from vidspec.bench.measure import Bench
from vidspec.embedded.samples import shipped
from vidspec.engine.forward import Engine


def test_by_hand():
    assert acceptance_share([5, 6, 7, 8], [5, 6, 9, 8]) == 0.75
    assert acceptance_share([5], [5]) == 1.0
    assert acceptance_share([1, 2], [2, 1]) == 0.0
    for token_ids, wanted in (([], []), ([1], [1, 2])):
        with pytest.raises(ValueError, match="cannot compare"):
            acceptance_share(token_ids, wanted)


def test_a_target_accepts_its_own_text():
    model, prefix = case("qwen2_5_vl")
    engine = Engine(model)
    text = decode(engine, prefix)[0]
    assert target_choices(engine, prefix, text) == text and accepted_by_target(engine, prefix, text) == 1.0
    assert target_choices(engine, prefix, text[:1]) == text[:1]


def test_what_it_wants_follows_the_text_that_is_judged():
    model, prefix = case("qwen2_5_vl")
    engine = Engine(model)
    text = decode(PrunedTargetEngine(model, FastVPruner(layer=1, keep=[0.05])), prefix)[0]
    expected = []
    for place in range(len(text)):
        state = engine.prefill(prefix, len(text))
        rows = [forward(engine, state, [token]).logits[-1] for token in text[:place]]
        expected.append(int((rows[-1] if rows else state.logits).argmax()))
    assert target_choices(engine, prefix, text) == expected != text
    assert accepted_by_target(engine, prefix, text) == acceptance_share(text, expected) < 1


@pytest.mark.full
def test_a_bench_judges_lossy_texts_once(tmp_path):
    small, file, said = "+video.frames=4+generate.max_new_tokens=12", tmp_path / "r.json", []
    names = [f"ar{small}", f"fastv{small}", f"fastv{small}+lossy.keep=[1]"]
    bench = Bench(names, shipped()[:1], repeats=1, json=file)
    found = measure(bench, said.append)
    plain, pruned, whole = (row.accepted_by_target for row in found.studied)
    assert plain is None and 0 < pruned < 1 == whole
    header, _, *rows = found.table.split("\n\n")[1].splitlines()
    assert header.endswith("| speed model | accepted by target |") and rows[1].endswith(f"| {pruned:.1%} |")
    stored = json.loads(file.read_text())
    assert [one["contender"] for one in stored["records"] if "accepted_by_target" in one] == names[1:]
    assert measure(bench, said.append).studied[1].accepted_by_target == pruned
    assert len([line for line in said if line.startswith("accepted by target")]) == 1
