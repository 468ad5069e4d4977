"""A language model without vision as the draft of a video model of its vocabulary."""

import pytest
import torch
import transformers

from tests.checkpoints import checkpoint, readable
from tests.engine.passing import forward
from tests.tiers import full_but
from vidspec.captioner import Captioner
from vidspec.config.profiles import load
from vidspec.decoding.protocol import OpenClip
from vidspec.decoding.workers.draft import DraftClip
from vidspec.decoding.workers.process import DraftProcess
from vidspec.embedded.samples import shipped
from vidspec.engine.forward import Engine
from vidspec.errors import ModelError
from vidspec.models import loading
from vidspec.models.identity import check_identity, model_identity, require_vision
from vidspec.models.placement import resolve_placement
from vidspec.models.video_language_model import VideoLanguageModel

WHERE = resolve_placement("cpu", "float32")
SMALL = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
}
FEW = {"video.frames": 4, "generate.max_new_tokens": 10}


#: No family's: a prompt that shows it was made by whoever has it.
ODD = (
    "{% for message in messages %}~{{ message['role'] }}: {% for part in message['content'] %}"
    "{% if part['type'] == 'video' %}<video>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endfor %} ~answer:"
)


def save(folder, kind="Qwen2", vocabulary=0):
    tokenizer = readable.tokenizer()
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=vocabulary or len(tokenizer) + 8,  # padded
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        **SMALL,
    )
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = getattr(transformers, f"{kind}ForCausalLM")(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {"target": str(checkpoint("readable")), "draft": save(root / "draft")}


@pytest.fixture(scope="module")
def target(folders):
    return loading.load_model(folders["target"], WHERE)


@pytest.fixture
def read(monkeypatch):
    """Prompts that were made of text alone, as (model, token ids)."""
    found = []
    made = VideoLanguageModel.text_prefix

    def noted(self, token_ids):
        found.append((self, list(token_ids)))
        return made(self, token_ids)

    monkeypatch.setattr(VideoLanguageModel, "text_prefix", noted)
    return found


@pytest.mark.full
@pytest.mark.sample(quick=1, full=3)
@pytest.mark.parametrize("kind", full_but(["Llama"], ["Qwen2", "Qwen3", "Llama"]))
@pytest.mark.parametrize("system", [None, "Be brief."])
def test_it_reads_the_targets_prompt_with_a_newline_for_the_video(folders, tmp_path, read, kind, system):
    """Whatever templates the two have."""
    target = loading.load_model(folders["target"], WHERE)
    target.template.source = ODD
    draft = loading.load_model(save(tmp_path, kind), WHERE, text=True)
    draft.template.source = "{{ messages }}"
    captioner = Captioner(load("onsd", FEW, env={}), target, draft)
    captioner.caption(shipped()[0], prompt="What moves?", system=system)
    shown = target.prefix(
        target.encode(target.preprocess(captioner.client.inputs.read(shipped()[0]))), "What moves?", system
    )
    text = target.tokenizer.decode(shown.token_ids)
    text = text.replace("<video>" * len(shown.visual), "\n")
    expected = target.tokenizer.encode(text, add_special_tokens=False)
    assert read == [(draft, expected)] and "~answer:" in text and "<video>" not in text


@pytest.mark.full
def test_a_draft_in_another_process_reads_the_targets_prompt_too(folders, monkeypatch):
    sent, send = [], DraftProcess.send
    monkeypatch.setattr(DraftProcess, "send", lambda self, *order: (sent.append(order[1]), send(self, *order)))
    names = {"models.pair": None, "models.target": folders["target"], "models.draft": folders["draft"]}
    beside = {**FEW, **names, "schedule.kind": "parallel", "models.device": "cpu", "models.threads": 1}
    with Captioner.from_profile("onsd", overrides=beside) as captioner:
        captioner.client.setup.target.model.template.source = ODD
        captioner.caption(shipped()[0], prompt="What moves?")
        expected = captioner.client.setup.target.model.template.ids_with_text("\n", "What moves?")
    (order,) = [one for one in sent if isinstance(one, OpenClip)]
    assert order.texts == {"\n": expected}
    clip = DraftClip(1, order, Engine(loading.load_model(folders["draft"], WHERE, text=True)), lambda result: None)
    assert clip.context.text("\n").token_ids.tolist() == expected


@pytest.mark.full
@pytest.mark.parametrize("kind", ["Qwen2", "Qwen3", "Llama"])
def test_it_reads_and_goes_on_as_the_stock_model_does(target, tmp_path, kind):
    model = loading.load_model(save(tmp_path, kind), WHERE, text=True)
    prefix = model.text_prefix(target.template.ids_with_text("\n", "What moves?", "Be brief."))
    text = model.tokenizer.decode(prefix.token_ids)
    assert "\n" in text and "What moves?" in text and "Be brief." in text and not len(prefix.visual)
    assert "video_pad" not in text and "<image>" not in text
    engine = Engine(model)
    state = engine.prefill(prefix, 8)
    with torch.inference_mode():
        expected = model.model(prefix.token_ids[None]).logits[0, -1, : model.vocabulary]
        torch.testing.assert_close(state.logits, expected, rtol=0, atol=1e-4)
        rows = forward(engine, state, [5, 6, 7]).logits
        whole = torch.cat([prefix.token_ids, torch.tensor([5, 6, 7])])
        expected = model.model(whole[None]).logits[0, -3:, : model.vocabulary]
    torch.testing.assert_close(rows, expected, rtol=0, atol=1e-4)


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("topology", ["chain", "tree"])
def test_it_drafts_without_the_video_and_the_text_is_the_targets(target, folders, topology):
    draft = loading.load_model(folders["draft"], WHERE, text=True)
    plain = Captioner(load("ar", FEW, env={}), target, None).caption(shipped()[0])
    profile = load("onsd", {**FEW, "draft.topology": topology}, env={})
    captioner = Captioner(profile, target, draft)
    clip = captioner.client.inputs.read(shipped()[0])
    captioner.client.inputs.vision.prepare(clip)  # nothing is made ready for a draft that looks at nothing
    found = captioner.caption(shipped()[0], clip=clip)
    assert found.token_ids == plain.token_ids and found.counters["drafted"] and found.counters["draft_forwards"]
    assert found.models["draft"] == folders["draft"]


@pytest.mark.full
def test_a_profile_loads_it(folders):
    names = {"models.pair": None, "models.target": folders["target"], "models.draft": folders["draft"]}
    with Captioner.from_profile("onsd", overrides={**FEW, **names, "models.device": "cpu"}) as captioner:
        assert captioner.caption(shipped()[0]).counters["drafted"]


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("profile", ["vanilla-sd", "tabed-mt"])
def test_a_draft_that_is_shown_the_video_needs_to_see(target, folders, profile):
    draft = loading.load_model(folders["draft"], WHERE, text=True)
    with pytest.raises(ModelError, match="without vision, and this profile shows its draft the video") as caught:
        Captioner(load(profile, FEW, env={}), target, draft)
    assert "onsd" in caught.value.hint
    check_identity(model_identity(target), model_identity(draft))  # as a worker's draft is judged
    require_vision(model_identity(draft), shown=False)
    with pytest.raises(ModelError, match="without vision"):
        require_vision(model_identity(draft), shown=True)


def test_a_target_needs_to_see(folders):
    with pytest.raises(ModelError, match="models of type qwen2 are not supported") as caught:
        loading.load_model(folders["draft"], WHERE)
    assert "can draft" in caught.value.hint


def test_another_vocabulary_is_refused(target, tmp_path):
    draft = loading.load_model(save(tmp_path, vocabulary=len(readable.tokenizer()) - 3), WHERE, text=True)
    with pytest.raises(ModelError, match="share no common vocabulary"):
        Captioner(load("onsd", FEW, env={}), target, draft)
