"""Peers under other interpreters, one process each, given exactly the frames and the prompt of ours.

Frames are passed in a file, requests and answers as lines of JSON (:mod:`research.peers.answering`). A peer that
cannot start, ends, times out, reads another prompt or answers nonsense is left out with its reason.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from research.peers.answering import JsonWorker, WorkerReply, worker_command
from research.peers.generate import PeerFailed, peer_record, peer_window, read_frames, require_greedy
from research.peers.vllm_worker import environment
from vidspec.bench.loaded import LoadedModels
from vidspec.config.schema import Profile
from vidspec.errors import UsageError, VidspecError
from vidspec.events.record import Caption
from vidspec.models.video_language_model import VideoLanguageModel
from vidspec.video import Clip

#: Module that the other interpreter runs, by peer name.
OUTSIDE = {
    "openvino": "research.peers.openvino_worker",
    "openvino-int8-cache": "research.peers.openvino_worker",
    "vllm": "research.peers.vllm_worker",
    "vllm-ngram": "research.peers.vllm_worker",
}
#: Timeout of loading or of a caption, in seconds.
PATIENCE = 900.0


def peer_interpreters(
    texts: Sequence[str], known: Sequence[str] = tuple(OUTSIDE), others: Sequence[str] = ()
) -> dict[str, str]:
    """Parse ``NAME=PYTHON`` of a command line; return interpreters by name. ``others`` need none; errors list them.

    Raises:
        UsageError: no such peer, one twice, or an interpreter that cannot be run.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, _, python = text.partition("=")
        if name not in known or not python:
            wanted = ", ".join([*others, *(f"{one}=PYTHON" for one in known)])
            raise UsageError(f"--peer {text}: must be one of {wanted}", hint="make peers makes their environments")
        if name in found:
            raise UsageError(f"--peer names {name} twice")
        if shutil.which(python) is None:
            raise UsageError(f"--peer {text}: {python} cannot be run", hint="the interpreter of its environment")
        found[name] = python
    return found


class ExternalPeer:
    """One peer; its process starts with the first clip.

    Args:
        name: of :data:`OUTSIDE`.
        python: the interpreter.
        profile: names the frames and the prompt; the peer decodes greedily.
        target: our model, which knows the prompt of the frames.
        model: source of the target.
        threads: on a CPU.

    Attributes:
        facts: versions, device and threads, in one line; empty before the first clip.
    """

    def __init__(
        self,
        name: str,
        python: str,
        profile: Profile,
        target: VideoLanguageModel,
        model: str,
        threads: int,
    ) -> None:
        self.name, self.python, self.profile, self.target, self.model = name, python, profile, target, model
        self.threads, self.facts = threads, ""
        self._place = TemporaryDirectory(prefix="vidspec-peer-")
        self._worker: JsonWorker | None = None
        self._prompts: dict[str, dict[str, object]] = {}

    def caption(self, path: str | Path) -> Caption:
        """Caption a clip; the time to first token includes reading the file, but not the transfer to the peer.

        Raises:
            PeerFailed: the peer fails.
        """
        require_greedy(self.name, self.profile)
        begun = time.perf_counter()
        clip = read_frames(path, self.profile)
        reading = time.perf_counter() - begun
        try:
            frames = Path(self._place.name, "frames.npy")
            np.save(frames, clip.frames)
            shown = {"frames": str(frames), "seconds": clip.timestamps.tolist(), **self._prompt(str(path), clip)}
            worker = self._ready_worker()
            begun = time.perf_counter()
            answer = worker.ask("caption", **shown)
            tokens, first, decode = self._check_answer(answer, time.perf_counter() - begun)
        except VidspecError as error:
            self.close()
            raise PeerFailed(str(error)) from error
        return peer_record(self.name, path, self.target, tokens, reading + first, decode)

    def close(self) -> None:
        """End the process and delete its files."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None
        self._place.cleanup()

    def _ready_worker(self) -> JsonWorker:
        if self._worker is None:
            adapter: Any = self.target
            if self.profile.models.weights is not None and not self.name.startswith("openvino"):
                raise UsageError(f"{self.name}: has no models.weights: {self.profile.models.weights}")
            speculation: dict[str, object] | None = None
            if self.name == "vllm-ngram":
                speculation = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}
                speculation["num_speculative_tokens"] = peer_window(self.profile)
            about = {
                "model": self.model,
                "speculation": speculation,
                "dtype": str(self.target.dtype).removeprefix("torch."),
                "weights": self.profile.models.weights,
                "int8_cache": self.name == "openvino-int8-cache",
                "max_batch": 1,
                "prompt": self.profile.generate.prompt,
                "system": self.profile.generate.system,
                "max_new_tokens": self.profile.generate.max_new_tokens,
                "threads": self.threads,
                "place": self._place.name,
            }
            env = environment(self.threads)
            self._worker = JsonWorker(
                self.name, worker_command(self.python, OUTSIDE[self.name], about), env, limit=PATIENCE
            )
            self._worker.ready()
            facts = self._worker.ask("facts")
            if not isinstance(facts, Mapping):
                raise VidspecError(f"{self.name}: does not say what it is")
            if facts.get("device") != adapter.device.type:
                raise VidspecError(f"{self.name}: runs on {facts.get('device')}, the models on {adapter.device.type}")
            self.facts = f"({', '.join(f'{key} {value}' for key, value in facts.items())})"
        return self._worker

    @torch.inference_mode()
    def _prompt(self, path: str, clip: Clip) -> dict[str, object]:
        """Return the rendered template and its ids with one place for the video, and the ids of the whole prompt."""
        if path not in self._prompts:
            adapter: Any = self.target
            generate = self.profile.generate
            text = adapter.template.rendered(generate.prompt, generate.system)
            whole = adapter.prefix(adapter.encode(adapter.preprocess(clip)), generate.prompt, generate.system)
            self._prompts[path] = {
                "text": text,
                "ids": adapter.tokenizer.encode(text, add_special_tokens=False),
                "prompt": whole.token_ids.tolist(),
                "ends": sorted(adapter.eos),
            }
        return self._prompts[path]

    def _check_answer(self, answer: WorkerReply, waited: float) -> tuple[list[int], float, float]:
        """Return token ids, seconds to the first and from there to the last.

        Raises:
            VidspecError: they are malformed, or the seconds exceed those that were waited.
        """
        known = len(self.target.tokenizer)
        try:
            tokens, first, decode = answer["token_ids"], float(answer["first"]), float(answer["decode"])
            good = all(type(token) is int and 0 <= token < known for token in tokens)
            good = good and bool(tokens) and first > 0 and decode >= 0 and math.isfinite(first + decode)
        except (TypeError, ValueError, LookupError):
            good = False
        if not good:
            raise VidspecError(f"{self.name}: did not answer with a caption: {json.dumps(answer)[:80]}")
        if first + decode > waited:
            raise VidspecError(f"{self.name}: answered within {waited:.3g} s that it took {first + decode:.3g} s")
        return tokens, first, decode


def external_peers(loaded: LoadedModels, pythons: Mapping[str, str], profile: Profile) -> dict[str, ExternalPeer]:
    """Return peers under other interpreters, with this process's number of threads, the same frames and prompt.

    Args:
        loaded: our models.
        pythons: interpreters by name.
        profile: names the frames and the prompt.
    """
    model, threads = loaded.source.names[0], torch.get_num_threads()
    return {
        name: ExternalPeer(name, python, profile, loaded.target, model, threads) for name, python in pythons.items()
    }
