"""vLLM as a peer, for single clips and for folders, under an interpreter that has it and no vidspec.

For single clips it is given frames and prompt ids. For folders ``vidspec.video`` opens the same files and
takes the same frames, for which the interpreter needs PyAV, in a thread alongside the engine; every clip is submitted
as soon as it is read, and a line is written and flushed for each one that ends. ``make peers`` makes such an
environment. The engine runs eagerly and in its own process, without prefix caching, so that no run reuses the clips of
an earlier one.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from research.peers.answering import Functions, serve_functions
from research.peers.recorded import read_ahead, write_captions
from research.peers.steady import SteadyRate
from vidspec import video
from vidspec.errors import GenerationError

#: Clips read ahead of the engine.
_AHEAD = 4


def environment(threads: int | None) -> dict[str, str]:
    """Return the variables that the process needs from its start; those set by the user win."""
    wanted = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_KVCACHE_SPACE": "1"}
    if threads is not None:
        cores = "0" if threads == 1 else f"0-{threads - 1}"
        wanted |= {"OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": cores}
    return {key: value for key, value in wanted.items() if key not in os.environ or key == "OMP_NUM_THREADS"}


class VllmEngine:
    """One engine for any batch up to the largest; fewer clips in flight make a smaller batch."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        self.about = about
        self._everywhere = os.sched_getaffinity(0)
        import vllm  # type: ignore[import-not-found]

        self.llm = vllm.LLM(
            model=about["model"],
            dtype=about["dtype"],
            enforce_eager=True,
            max_num_seqs=about["max_batch"],
            limit_mm_per_prompt={"video": 1, "image": 0},
            enable_prefix_caching=False,
            mm_processor_cache_gb=0,
            speculative_config=about.get("speculation"),
        )
        self.sampling = vllm.SamplingParams(temperature=0.0, max_tokens=about["max_new_tokens"])
        self.family = self.llm.llm_engine.model_config.hf_config.model_type
        if self.family == "qwen2_5_vl":
            _number_as_transformers()
        content = [{"type": "video"}, {"type": "text", "text": about["prompt"]}]
        messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
        if about["system"]:
            messages.insert(0, {"role": "system", "content": [{"type": "text", "text": about["system"]}]})
        self.prompt = self.llm.get_tokenizer().apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

    def run(self, clips: Sequence[str], batch: int) -> dict[str, object]:
        """Caption a folder of clips; return token ids, and seconds from the first file opened to the last record."""
        tokenizer = self.llm.get_tokenizer()
        passes = rows = 0

        def captions() -> Iterator[tuple[str, str, list[int]]]:
            nonlocal passes, rows
            for _, outputs in self._steps(self._read(clips), batch):
                passes, rows = passes + 1, rows + len(outputs)
                for one in outputs:
                    if one.finished:
                        ids = list(one.outputs[0].token_ids)
                        yield one.request_id, tokenizer.decode(ids, skip_special_tokens=True), ids

        done = write_captions(captions())
        return {**done, "rows": rows / passes if passes else None, "device_bytes": None}

    def facts(self) -> dict[str, object]:
        import torch
        import transformers
        import vllm

        return {
            "vllm": vllm.__version__,
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": vllm.platforms.current_platform.device_type,
            "threads": torch.get_num_threads(),
        }

    def caption(
        self, frames: str, seconds: Sequence[float], text: str, ids: list[int], prompt: list[int], ends: list[int]
    ) -> dict[str, object]:
        """Return the token ids of one clip, the seconds to the first token and from there to the last.

        Args:
            frames: a file with (N, H, W, 3) uint8.
            seconds: of each frame.
            text: the rendered template; unused, its ids are taken.
            ids: of the template, with the family's placeholder for a video.
            prompt: the expected ids once the video is inserted.
            ends: ids that end a caption.
        """
        import vllm

        sampling = vllm.SamplingParams(temperature=0.0, max_tokens=self.about["max_new_tokens"], stop_token_ids=ends)
        request = {**self._request(np.load(frames), seconds), "prompt_token_ids": ids}
        del request["prompt"]
        began = time.perf_counter()
        outputs = [(when, one) for when, some in self._steps(iter([("clip", request)]), 1, sampling) for one in some]
        (first, _), (end, last) = outputs[0], outputs[-1]
        if list(last.prompt_token_ids) != prompt:
            raise GenerationError(f"its prompt of {len(last.prompt_token_ids)} tokens is not ours of {len(prompt)}")
        return {"token_ids": list(last.outputs[0].token_ids), "first": first - began, "decode": end - first}

    def decode(self, clips: Sequence[str], batch: int) -> dict[str, float]:
        """Return tokens and seconds of decoding alone; see :class:`~research.peers.steady.SteadyRate`."""
        found = []
        for first in range(0, len(clips), batch):
            some = list(self._read(clips[first : first + batch]))
            counted, known = SteadyRate(len(some)), dict.fromkeys((path for path, _ in some), 0)
            for when, outputs in self._steps(iter(some), batch):
                for one in outputs:
                    tokens = len(one.outputs[0].token_ids)
                    counted.emitted(when, one.request_id, tokens - known[one.request_id])
                    known[one.request_id] = tokens
                if any(one.finished for one in outputs):
                    counted.finished(when)
            found.append(counted)
        return SteadyRate.combine(found)

    def _steps(
        self, clips: Iterator[tuple[str, Any]], batch: int, sampling: Any = None
    ) -> Iterator[tuple[float, list[Any]]]:
        """Yield the end time and the outputs of every engine pass, with at most ``batch`` clips in flight."""
        engine, flying, more = self.llm.llm_engine, 0, True
        while more or flying:
            while more and flying < batch:
                found = next(clips, None)
                if found is None:
                    more = False
                    break
                path, request = found
                engine.add_request(path, request, sampling or self.sampling)
                flying += 1
            if flying:
                outputs = engine.step()
                flying -= sum(one.finished for one in outputs)
                yield time.perf_counter(), outputs

    def _read(self, clips: Sequence[str]) -> Iterator[tuple[str, Any]]:
        """Yield the engine's request for each clip; a thread reads a few clips ahead."""

        def request(path: str) -> tuple[str, Any]:
            clip = video.read(path, **self.about["video"])
            return path, self._request(clip.frames, clip.timestamps)

        # vLLM binds its own thread to a core, and threads started from it inherit that.
        unbind = partial(os.sched_setaffinity, 0, self._everywhere)
        return read_ahead(request, clips, _AHEAD, unbind)

    def _request(self, frames: Any, seconds: Any) -> dict[str, object]:
        if not self.family.startswith("qwen"):
            return {"prompt": self.prompt, "multi_modal_data": {"video": frames}}
        # The processors derive the time of a temporal step, two frames, from the frames per second.
        steps = seconds[::2]
        fps = 2.0 * (len(steps) - 1) / float(steps[-1] - steps[0]) if len(steps) > 1 else 2.0
        count = len(frames)
        facts = {
            "fps": fps,
            "frames_indices": list(range(count)),
            "total_num_frames": count,
            "duration": count / fps,
            "video_backend": "vidspec",
            "do_sample_frames": False,
        }
        return {
            "prompt": self.prompt,
            "multi_modal_data": {"video": (frames, facts)},
            "mm_processor_kwargs": {"fps": fps, "do_sample_frames": False},
        }

    @property
    def functions(self) -> Functions:
        return {"facts": self.facts, "caption": self.caption, "run": self.run, "decode": self.decode}


def _number_as_transformers() -> None:
    """Continue text positions after a video as transformers 5.23 does: at its start + the longer side of its grid.

    vLLM 0.32 continues after the largest position of any axis, as transformers 4.57 did; the texts differ from there.
    """
    import torch
    from vllm.model_executor.models import qwen2_5_vl  # type: ignore[import-not-found]

    def positions(self: Any, input_tokens: list[int], mm_features: list[Any]) -> tuple[torch.Tensor, int]:
        found, done, following = [], 0, 0
        for offset, steps, rows, columns, interval in self.iter_mm_grid_thw(mm_features):
            found.append(np.broadcast_to(np.arange(offset - done), (3, offset - done)) + following)
            following += offset - done
            cells = np.indices((steps, rows, columns)).reshape(3, -1)
            cells[0] = (cells[0] * np.float32(interval)).astype(np.int64)
            found.append(cells + following)
            following += max(rows, columns)
            done = offset + steps * rows * columns
        rest = len(input_tokens) - done
        found.append(np.broadcast_to(np.arange(rest), (3, rest)) + following)
        return torch.from_numpy(np.concatenate(found, axis=1)), following + rest - len(input_tokens)

    qwen2_5_vl.Qwen2_5_VLForConditionalGeneration.get_mrope_input_positions = positions


def main(about: str) -> None:
    """Serve requests.

    Args:
        about: JSON: ``model, dtype, max_batch`` (clips at once), ``prompt``, ``system``, ``max_new_tokens``; to read
            files ``video`` (as ``video.read`` takes it); to draft ``speculation``, as the engine takes it.
    """
    serve_functions(lambda: VllmEngine(json.loads(about)).functions)
