"""The class that LMMs-Eval drives, in a stand-in of the harness, and the page that describes it."""

import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from research import lmms_eval as integration
from research.lmms_eval.arguments import overrides_of
from tests.research.harness.standin import CLIP, GREEDY, OTHER, PROMPT, StandInModel, modules, under
from vidspec.config import profiles
from vidspec.errors import UsageError, VideoError

pytestmark = pytest.mark.full

MODEL = "research.lmms_eval.model"
ASKED = ((CLIP, 24), (OTHER, 24), (CLIP, 5))
PAGE = Path(__file__).resolve().parents[3] / "docs/research/lmms-eval.md"


@pytest.fixture
def told(monkeypatch):
    told = []
    for name, contents in modules(told).items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, MODEL, raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    yield told
    sys.modules.pop(MODEL, None)
    vars(integration).pop("model", None)


@pytest.fixture
def made(told):
    """The class, found as the harness finds it: by the manifest's path."""
    manifest = integration.manifest()
    assert (manifest.model_id, manifest.chat_class_path) == ("vidspec", None)
    module, _, name = manifest.simple_class_path.rpartition(".")
    return getattr(import_module(module), name)


@pytest.fixture
def model(made, arguments):
    model = made(profile="vanilla-sd", **arguments)
    model.task_dict["clips"] = {"test": [{"video": CLIP}, {"video": OTHER}, {"video": "gone.mp4"}]}
    yield model
    model.clean()


def request(doc_id, kwargs=GREEDY, context=PROMPT):
    """An instance of ``generate_until``, of a model whose ``is_simple`` is true."""
    return SimpleNamespace(args=(context, dict(kwargs), lambda doc: [doc["video"]], doc_id, "clips", "test"))


def test_the_class_is_what_the_registry_accepts(made):
    assert issubclass(made, StandInModel) and made.is_simple and not made.__abstractmethods__


def test_the_harness_runs_with_the_model_in_its_registry(told, made, monkeypatch):
    from research.lmms_eval.__main__ import main

    monkeypatch.setattr(sys, "argv", ["research.lmms_eval", "--model", "vidspec"])
    main()
    registry = sys.modules["lmms_eval.models"].MODEL_REGISTRY_V2
    assert list(registry) == ["vidspec"] and registry["vidspec"].simple_class_path.endswith(made.__name__)
    assert told == [("evaluated", ["--model", "vidspec"])]


def test_requests_are_answered_in_order(model, captioner, told):
    documents = [CLIP, OTHER]
    answers = model.generate_until(
        [request(documents.index(clip), {**GREEDY, "max_new_tokens": tokens}) for clip, tokens in ASKED]
    )
    records = [under(captioner, max_new_tokens=tokens).caption(clip, prompt=PROMPT) for clip, tokens in ASKED]
    assert [answer.text for answer in answers] == [record.caption for record in records]
    assert [answer.token_counts.output_tokens for answer in answers] == [len(record.token_ids) for record in records]
    assert len(records[2].token_ids) == 5 and len({record.caption for record in records}) == 3
    emitted = sum(len(record.token_ids) for record in records)
    assert [(kind, args[0], text) for kind, args, text in model.cached if len(args) == 2] == [
        ("generate_until", PROMPT, answer.text) for answer in answers
    ]
    (line,) = [text for level, text in told if level == "info"]
    assert line.startswith(f"vidspec: 3 answers, {emitted} tokens") and "tau" in line
    ((_, (seconds, tokens, speed, rates)),) = [one for one in told if one[0] == "metrics"]
    assert tokens == emitted and speed == emitted / seconds
    assert set(rates) == {"decode_tokens_per_s", "tau", "loose_share"}


def test_answers_are_plain_text_where_the_harness_counts_no_tokens(model, monkeypatch):
    monkeypatch.delattr(sys.modules["lmms_eval.api.instance"], "GenerationResult")
    (answer,) = model.generate_until([request(0)])
    assert isinstance(answer, str) and answer


def test_repeats_of_a_document_differ(model):
    sampled = {"max_new_tokens": 12, "temperature": 1.5}
    same = request(0, sampled)
    first, second = model.generate_until([same, same])
    assert first.text != second.text


def test_keys_without_effect_are_warned_of_once(model, told):
    for _ in range(2):
        model.generate_until([request(0, {**GREEDY, "max_new_tokens": 2, "top_k": 5})])
    assert [text for level, text in told if level == "warning"] == ["vidspec: generation_kwargs without effect: top_k"]


def test_an_error_names_the_document(model, told):
    with pytest.raises(VideoError):
        model.generate_until([request(2)])
    (line,) = [text for level, text in told if level == "error"]
    assert line.startswith("clips, test, document 2: gone.mp4")


def test_a_document_that_fails_may_be_passed_over(made, arguments, told):
    model = made(on_error="empty", **arguments)
    model.task_dict["clips"] = {"test": [{"video": CLIP}, {"video": "gone.mp4"}]}
    fine, failed = model.generate_until([request(0), request(1)])
    assert fine.text and (failed.text, failed.token_counts.output_tokens) == ("", 0)
    assert [args[1][0] for args in model.cached] == [PROMPT]
    first, last = [text for level, text in told if level == "warning"]
    assert "document 1: gone.mp4" in first and last == "vidspec: 1 of 2 requests failed and were answered with nothing"
    with pytest.raises(UsageError, match="num_beams"):
        model.generate_until([request(0, {"num_beams": 2})])
    model.clean()


def test_on_error_is_stop_or_empty(made):
    with pytest.raises(UsageError, match="on_error=skip"):
        made(on_error="skip")


def test_gaps_are_named(model):
    with pytest.raises(NotImplementedError, match="no likelihoods"):
        model.loglikelihood([])
    with pytest.raises(NotImplementedError, match="single round"):
        model.generate_until_multi_round([])


def test_one_at_a_time(made):
    with pytest.raises(UsageError, match="batch_size 8"):
        made(batch_size=8)


def test_clean_lets_go_and_a_later_evaluation_loads_again(model):
    (before,) = model.generate_until([request(0)])
    held = model.answering.captioner
    model.clean()
    assert model.cleaned == 1 and not hasattr(held, "setup")
    (after,) = model.generate_until([request(0)])
    assert after == before and model.answering.captioner is not held


def test_alone_without_accelerate(made, arguments, monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    model = made(**arguments)
    assert (model.rank, model.world_size) == (0, 1) and not hasattr(model, "accelerator")
    assert model.device.type == "cpu"


@pytest.mark.parametrize(("device", "used"), [("auto", "cuda:1"), ("cuda", "cuda:1"), ("cpu", "cpu")])
def test_one_of_several_processes(made, arguments, monkeypatch, device, used):
    place = SimpleNamespace(process_index=3, local_process_index=1, num_processes=4)
    monkeypatch.setitem(sys.modules, "accelerate", SimpleNamespace(Accelerator=lambda: place))
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    loaded = []
    monkeypatch.setattr(made, "_load", lambda self: loaded.append(self._overrides["models.device"]))
    model = made(**{**arguments, "device": device})
    assert (model.rank, model.world_size, model.accelerator) == (3, 4, place)
    assert loaded == [used]


def test_the_harness_is_not_needed_to_list_the_model():
    assert not {"lmms_eval", MODEL} & set(sys.modules)


# --- what the page says


def documented():
    text = PAGE.read_text(encoding="utf-8").replace("\\\n", " ")
    return sorted(set(re.findall(r"--model_args (\S+)", text)))


@pytest.mark.parametrize("given", documented())
def test_documented_model_arguments_are_valid(given):
    arguments = dict(pair.split("=", 1) for pair in given.split(","))
    profiles.load(arguments.pop("profile", "vanilla-sd"), overrides_of(arguments), env={})
