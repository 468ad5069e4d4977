import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import huggingface_hub.constants as hub_constants
import pytest
import torch
import transformers
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from huggingface_hub.utils import are_progress_bars_disabled

from tests.checkpoints import copy_checkpoint
from tests.checkpoints.llava_onevision import TIED
from vidspec.captioner import Captioner
from vidspec.errors import ModelError
from vidspec.models import hub, loading
from vidspec.models.loading import load_model
from vidspec.models.placement import Placement
from vidspec.models.weight_files import optional_file

CPU = Placement(torch.device("cpu"), torch.float32)


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """Nothing known of any hub, an empty cache, and time enough to answer."""
    monkeypatch.setattr(hub, "answers", {})
    monkeypatch.setattr(hub, "ANSWER", 60.0)
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub_constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)


@pytest.fixture
def endpoint(monkeypatch):
    """Makes the hub another address."""
    return lambda port: monkeypatch.setattr(hub_constants, "ENDPOINT", f"http://127.0.0.1:{port}")


@contextmanager
def listening():
    """A port that takes connections and never answers, for which not long is waited."""
    with socket.socket() as listener, pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub, "ANSWER", 0.3)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@contextmanager
def answering(status):
    """A server that has one answer, and a list of what it was asked."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

        do_GET = do_HEAD

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server.server_port, asked
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def refusing():
    """A port that nobody else gets, and that takes no connections."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.mark.sample(quick=1)
@pytest.mark.parametrize("kind", [listening, refusing])
def test_a_hub_that_does_not_answer_is_asked_once(endpoint, monkeypatch, kind):
    asked = []
    real = hub.hub_failure
    monkeypatch.setattr(hub, "hub_failure", lambda address: asked.append(address) or real(address))
    with kind() as port:
        endpoint(port)
        for name in ("org/target", "org/draft"):
            with pytest.raises(
                ModelError, match=rf"^the hub cannot be reached \(.*\), and the cache .* lacks {name} "
            ) as caught:
                load_model(name, CPU)
            assert caught.value.kind == "missing" and caught.value.exit_code == 3
            assert "\n" not in str(caught.value) and "`vidspec models get NAME`" in caught.value.hint
    assert len(asked) == 1


def test_a_hub_is_asked_again_after_a_while(endpoint, monkeypatch):
    with refusing() as port:
        endpoint(port)
        assert hub.unreachable_reason()
    monkeypatch.setattr(hub, "KNOWN", 0.0)
    with answering(200) as (port, asked):
        hub.answers[f"http://127.0.0.1:{port}"] = hub.answers.popitem()[1]
        endpoint(port)
        assert hub.unreachable_reason() == "" and asked == ["/api/models"]


@pytest.mark.parametrize(("status", "there"), [(200, True), (401, True), (404, True), (500, False), (503, False)])
def test_which_answers_count(endpoint, status, there):
    with answering(status) as (port, _):
        endpoint(port)
        assert hub.unreachable_reason() == ("" if there else f"its server says {status}")


@pytest.mark.full
def test_without_a_hub_the_cache_will_do(endpoint, tmp_path, monkeypatch):
    """As huggingface_hub lays it out: a snapshot, and which commit ``main`` is."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    commit = "0" * 40
    kept = tmp_path / "cache" / "models--org--model"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text(commit)
    copy_checkpoint(kept / "snapshots" / commit, TIED)
    assert hub.is_cached("org/model") and not hub.is_cached("org/other")
    with listening() as port:
        endpoint(port)
        assert not hub.require_models(["org/model"])
        assert load_model("org/model", CPU).layers == 4
        with Captioner.from_pretrained("org/model", dtype="float32", device="cpu") as captioner:  # with no listed draft
            assert captioner.client.profile.draft.kind == "suffix"
        with pytest.raises(ModelError, match=r"^the hub cannot be reached .* lacks org/other "):
            Captioner.from_pretrained("org/other", device="cpu")
    assert hub_constants.HF_HUB_OFFLINE is False


def server_error():
    response = SimpleNamespace(status_code=503, headers={}, request=None)
    return HfHubHTTPError("503 Service Unavailable", response=response)


def unreachable():
    error = LocalEntryNotFoundError("An error happened while trying to locate the file on the Hub")
    error.__cause__ = ConnectionError("connection refused")
    return error


@pytest.mark.parametrize("failure, why", [(server_error, "503 Service"), (unreachable, "connection refused")])
def test_a_file_that_cannot_be_fetched_is_not_taken_for_absent(monkeypatch, failure, why):
    """A config that is not known to be missing must not give way to defaults."""

    def fail(*_args, **_kwargs):
        raise failure()

    monkeypatch.setattr("transformers.utils.hub.hf_hub_download", fail)
    with pytest.raises(ModelError, match=f"org/model: processor_config.json could not be fetched: {why}") as caught:
        optional_file("org/model", "processor_config.json")
    assert caught.value.kind == "connection" and "\n" not in str(caught.value)


def test_a_file_that_is_not_there(endpoint, monkeypatch, tmp_path):
    assert optional_file(str(tmp_path), "processor_config.json") is None
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", True)
    assert optional_file("org/model", "processor_config.json") is None


def test_folders_and_offline_mode_ask_nobody(endpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "hub_failure", lambda address: pytest.fail("was asked"))
    assert not hub.require_models([str(tmp_path), "./nowhere"])
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        ModelError, match=r"^the hub cannot be reached \(offline mode is on\), and the cache .* lacks org/model "
    ):
        hub.require_models(["org/model"])


@pytest.mark.full
def test_all_missing_models_are_named_at_once(monkeypatch):
    """Also by the library, whatever it would load first, and before the draft's process starts."""
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", True)
    models = {"models.target": "org/target", "models.draft": "org/draft", "models.captioner": "org/captioner"}
    with pytest.raises(ModelError) as caught:
        Captioner.from_profile("tabed-mtcp", overrides=models)
    assert caught.value.message.startswith("the hub cannot be reached (offline mode is on), and the cache ")
    assert caught.value.message.endswith(" lacks org/target and org/draft and org/captioner")
    assert caught.value.kind == "missing"


def test_a_mistyped_name_is_answered_with_the_published_one():
    for name in ("Qwen/Qwen2.5-VL-7B-Instuct", "Qwen/Qwen2.5-VL-7B"):
        assert hub.download_hint(name, "org/model") == "did you mean Qwen/Qwen2.5-VL-7B-Instruct?"
    for name in ("Qwen/Qwen2.5-VL-7B-Instruct", "org/model"):
        assert hub.download_hint(name) == "`vidspec models get NAME` fetches a model where there is a network"


def test_a_target_that_is_not_supported_is_told_before_the_draft_is_loaded(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"model_type": "mllama"}')
    monkeypatch.setattr(loading, "load_model", lambda *_, **__: pytest.fail("was loaded"))
    models = {"models.target": str(tmp_path), "models.draft": str(tmp_path / "draft")}
    with pytest.raises(ModelError, match="models of type mllama are not supported; nearest: llava"):
        Captioner.from_profile("vanilla-sd", overrides=models)


@pytest.mark.parametrize("terminal", [True, False])
def test_downloads_are_shown_on_a_terminal(monkeypatch, terminal):
    monkeypatch.delenv("HF_HUB_DISABLE_PROGRESS_BARS", raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal, raising=False)
    try:
        hub.show_downloads()
        assert are_progress_bars_disabled() is not terminal
        assert not transformers.utils.logging.is_progress_bar_enabled()  # weights that are read from the disk
    finally:
        transformers.utils.logging.enable_progress_bar()


@pytest.mark.parametrize(
    "name", ["unsloth/Qwen2.5-VL-7B-Instruct-GGUF", "org/mine-gguf", "Qwen3-VL-8B-Instruct-UD-Q4_K_XL.gguf"]
)
def test_gguf_is_refused(tmp_path, name):
    if name.endswith(".gguf"):
        (tmp_path / name).touch()
        places = [str(tmp_path), str(tmp_path / name)]
    else:
        places = [name]
    for place in places:
        with pytest.raises(ModelError, match="is in GGUF, whose weights are not read") as caught:
            loading.load_model(place, Placement(torch.device("cpu"), torch.float32))
        assert caught.value.hint == "take the model it was made from, in safetensors"


def test_a_folder_with_both_forms_is_read(tmp_path):
    for name in ("model.safetensors", "model-Q4_K_M.gguf"):
        (tmp_path / name).touch()
    for name in (str(tmp_path), "Qwen/Qwen3-VL-8B-Instruct"):
        hub.refuse_gguf(name)
