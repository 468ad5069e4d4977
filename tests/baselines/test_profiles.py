"""Profiles that prune the target: settings, what is refused, and that record and panel say what they are."""

import jsonschema
import pytest

from tests.checkpoints import checkpoint
from vidspec.bench.loaded import lossless_profiles
from vidspec.captioner import Captioner
from vidspec.cli.report import summary
from vidspec.config import profiles
from vidspec.config.profiles import load
from vidspec.embedded.samples import shipped
from vidspec.errors import ModelError, ProfileError
from vidspec.events.events import Prefilled
from vidspec.lossy import lossy
from vidspec.models import loading
from vidspec.models.placement import resolve_placement
from vidspec.runs.schema import record_schema

METHODS = ("dycoke", "fastv", "pdrop", "sparsevlm")
#: The small target has too few blocks for a tenth.
AVERAGE = 0.45


@pytest.fixture(scope="module")
def target():
    return loading.load_model(str(checkpoint("readable")), resolve_placement("cpu", "float32"))


def captioner(target, name, **settings):
    few = {"video.frames": 8, "generate.max_new_tokens": 6}
    return Captioner(load(name, {**few, **settings}, env={}), target, None)


def problem(name, **overrides):
    with pytest.raises(ProfileError) as caught:
        load(name, overrides, env={})
    return str(caught.value)


def test_settings():
    assert lossy.names() == ("dycoke", "fastv", "none", "pdrop", "sparsevlm")
    fastv, pdrop, sparsevlm, dycoke = (load(name, env={}).lossy for name in ("fastv", "pdrop", "sparsevlm", "dycoke"))
    assert {one.retention for one in (fastv, pdrop, sparsevlm, dycoke)} == {0.1} and fastv.layer == 2
    assert (sparsevlm.recycle, sparsevlm.cluster) == (0.3, 10)
    assert (dycoke.merge, dycoke.layer, dycoke.similarity) == (0.7, 3, 0.9)
    assert load("fastv", {"lossy.keep": "1"}, env={}).lossy.retention is None
    assert not load("ar", env={}).prunes_the_target
    assert load("pdrop", {"lossy.keep": "0.5, 0.4,0.3"}, env={}).lossy.keep == (0.5, 0.4, 0.3)
    assert load("fastv", {"lossy.keep": "1"}, env={}).lossy.keep == (1.0,)


def test_what_is_refused():
    assert problem("vanilla-sd", **{"lossy.method": "fastv"}) == (
        "lossy.method: fastv prunes the target of plain decoding, and draft.kind is model; "
        "nearest valid choice: lossy.method: none, or draft.kind: none with schedule.kind: autoregressive"
    )
    assert problem("pdrop", **{"lossy.keep": 0.5}) == (
        "lossy.keep: pdrop takes 3 shares, not 1; nearest valid choice: lossy.keep: [0.5, 0.25, 0.125]"
    )
    with pytest.raises(ProfileError, match=r"lossy\.keep: excludes lossy\.retention"):
        profiles.parse({"name": "both", "lossy": {"method": "fastv", "keep": [0.5], "retention": 0.1}})
    assert problem("fastv", **{"lossy.method": "fastvv"}).startswith(
        "lossy.method: unknown lossy method 'fastvv'; did you mean fastv?"
    )
    for key, value in (("keep", 0), ("keep", 1.5), ("layer", 0), ("merge", 1.5), ("cluster", 0), ("recycle", -1)):
        assert problem("fastv", **{f"lossy.{key}": value}).startswith(f"lossy.{key}")


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("name", METHODS)
def test_records_say_that_it_is_not_lossless(target, name):
    one = captioner(target, name, **{"lossy.retention": AVERAGE})
    events = list(one.stream(shipped()[0]))
    record = events[-1].caption
    assert record.lossless is False and record.loose is None and len(record.token_ids) == 6
    (read,) = [event for event in events if isinstance(event, Prefilled)]
    assert read.lossless is False
    kept = record.lossy["kept"]
    total = sum(kept) / (target.layers * read.visual_tokens)
    assert record.lossy == {"method": name, "kept": kept, "retention": pytest.approx(total, abs=1e-6)}
    jsonschema.validate(record.to_dict(), record_schema())
    assert record.lossy["retention"] == pytest.approx(AVERAGE, abs=1 / read.visual_tokens)
    assert len(kept) == target.layers and record.counters["visual_tokens"] == read.visual_tokens > kept[-1]
    assert "; not lossless" in summary(record)
    plain = one.caption(shipped()[0], plain=True)
    assert plain.lossless is True and plain.token_ids == captioner(target, "ar").caption(shipped()[0]).token_ids


def test_clips_in_flight_together_have_the_texts_they_have_alone(target):
    one, paths = captioner(target, "fastv", **{"lossy.retention": AVERAGE}), list(map(str, shipped()[:2]))
    alone = {path: one.caption(path) for path in paths}
    together = {done.path: done for done in one.caption_many(paths, batch=2)}
    for path in paths:
        assert together[path].token_ids == alone[path].token_ids and together[path].lossy == alone[path].lossy


def test_too_few_blocks_and_blocks_that_need_all_rows_are_refused_when_models_are_loaded(target):
    with pytest.raises(ModelError, match=r"lossy\.retention 0\.01: the first of"):
        captioner(target, "fastv", **{"lossy.retention": 0.01})


def test_they_are_no_part_of_the_lossless_benchmark(monkeypatch):
    some = [info for info in profiles.available() if info.name in ("ar", "vanilla-sd", "fly", *METHODS)]
    monkeypatch.setattr(profiles, "available", lambda: some)
    assert lossless_profiles() == ["ar", "vanilla-sd"]


def test_a_profile_that_does_not_say_it_is_listed_so(monkeypatch, tmp_path):
    (tmp_path / "quiet.yaml").write_text("about: Quick.\nlossy: {method: fastv}\n")
    (tmp_path / "plain.yaml").write_text("about: Slow.\nlossy: {method: none}\n")
    monkeypatch.setattr("vidspec.config.files.user_folder", lambda: tmp_path)
    about = {info.name: info.about for info in profiles.available() if info.source == "user"}
    assert about == {"quiet": "Quick. Not lossless.", "plain": "Slow."}
