"""Profiles and models of a bench."""

from __future__ import annotations

import pytest

from tests.checkpoints import checkpoint, eagle3, mtp, qwen
from vidspec.bench.loaded import LoadedModels, ModelSource, profile_labels
from vidspec.decoding.captioner_models import models_record
from vidspec.embedded.samples import shipped
from vidspec.engine.layouts import stored_bytes
from vidspec.errors import UsageError


@pytest.mark.full
def test_all_means_every_lossless_profile_with_plain_decoding_first():
    names = profile_labels("all")
    assert names[0] == "ar" and len(names) == len(set(names)) > 10
    assert {"parallelvlm", "specvlm", "self-sd"} <= set(names)
    assert not {"eagle3", "mtp"} & set(names)  # a head is no model that other profiles could draft with
    assert not any(name.startswith(("lvspec", "fly", "random-loose")) for name in names)
    assert profile_labels("all,eagle3") == [*names, "eagle3"]


@pytest.mark.parametrize("text, complaint", [(" , ", "names no profile"), ("ar,sd-rand,ar", "names ar twice")])
def test_names_that_make_no_run(text, complaint):
    with pytest.raises(UsageError, match=complaint):
        profile_labels(text)


def test_a_draft_needs_a_target():
    with pytest.raises(UsageError, match="--draft needs --target"):
        ModelSource(draft="x").names  # noqa: B018
    assert ModelSource(target="x").names == ("x", None)


@pytest.mark.full
def test_a_target_of_codes_is_measured_as_one_and_never_silently_otherwise():
    eight, plain = LoadedModels(ModelSource(weights="int8")), LoadedModels(ModelSource())
    ours, theirs = (one.captioner("ar", {"video.frames": 4, "generate.max_new_tokens": 4}) for one in (eight, plain))
    assert (
        stored_bytes(eight.target.decoder.matrices, copies=False)
        > 0
        == stored_bytes(plain.target.decoder.matrices, copies=False)
    )
    assert [one.caption(shipped()[0]).models["weights"] for one in (ours, theirs)] == ["int8", None]
    with pytest.raises(UsageError, match="profile ar needs another target") as caught:
        plain.captioner("ar+models.weights=int4")
    assert caught.value.hint == "give --weights int4 for all"


@pytest.mark.full
def test_a_draft_is_kept_as_the_profile_has_it():
    loaded = LoadedModels(ModelSource())
    made = {one: loaded.captioner(f"vanilla-sd+draft.precision={one}") for one in ("auto", "int8", "as-target")}
    drafts = {one: captioner.client.setup.draft.model for one, captioner in made.items()}
    assert drafts["auto"] is loaded.draft and len({id(one) for one in drafts.values()}) == 3
    assert (
        stored_bytes(drafts["int8"].decoder.matrices, copies=False)
        > 0
        == stored_bytes(drafts["as-target"].decoder.matrices, copies=False)
    )
    assert loaded.captioner("specvlm+draft.precision=int8").client.setup.draft.model is drafts["int8"]


@pytest.mark.full
def test_a_head_stands_where_a_draft_is_named(tmp_path):
    kind = qwen.QwenKind()
    target = str(checkpoint(kind))
    settings, weights = eagle3.config(kind), eagle3.tensors(kind)
    head = str(eagle3.save(tmp_path / "head", settings, weights))
    loaded = LoadedModels(ModelSource(target=target, draft=head, device="cpu"))
    models = {"models.target": target, "models.draft": head}
    assert models_record(loaded.captioner("eagle3", models).client.setup)["draft"] == head
    assert models_record(loaded.captioner("ar", models).client.setup)["draft"] is None
    with pytest.raises(UsageError, match="profile vanilla-sd drafts with a model"):
        loaded.captioner("vanilla-sd", models)
    with pytest.raises(UsageError, match="profile eagle3 drafts with a head of the target"):
        LoadedModels(ModelSource(target=target, device="cpu")).captioner("eagle3", models)


def test_a_layer_of_the_target_is_read_once(tmp_path):
    kind = qwen.QwenKind(mtp.FAMILY)
    target = str(mtp.save(kind, tmp_path, mtp.tensors(kind)))
    loaded = LoadedModels(ModelSource(target=target, device="cpu"))
    made = [loaded.captioner("mtp", {"models.target": target}) for _ in range(2)]
    assert made[0].client.setup.head.model is made[1].client.setup.head.model
    assert loaded.captioner("ar", {"models.target": target}).client.setup.head is None
