"""The model class that LMMs-Eval calls; requests are answered in ``answering``."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lmms_eval.api.model import lmms  # type: ignore[import-not-found, import-untyped, unused-ignore]
from lmms_eval.models.model_utils.gen_metrics import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
    log_metrics,
)
from loguru import logger  # type: ignore[import-not-found, unused-ignore]
from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

from research.lmms_eval.answering import Answering, Totals
from research.lmms_eval.arguments import overrides_of
from vidspec.captioner import Captioner
from vidspec.errors import GenerationError, UsageError, VideoError, VidspecError
from vidspec.events.record import Caption


class Vidspec(lmms):  # type: ignore[misc, unused-ignore]
    """A profile as a model of the harness, which answers one request at a time.

    Args:
        profile: a packaged or own profile, by name or file.
        batch_size: 1.
        max_batch_size: not read; the harness passes it.
        on_error: handling of a document whose video cannot be read or does not fit: ``stop`` ends the run, ``empty``
            gives an empty answer with a warning. Errors that affect every document always end the run.
        arguments: ``target`` (or ``pretrained``), ``draft``, ``pair``, ``device``, ``dtype``, ``frames`` (or
            ``max_frames_num``), ``fps``, and any key of the profile with its section, such as ``draft.gamma``.

    Raises:
        UsageError, ModelError, DeviceError: with a one-line message and a hint.
    """

    is_simple = True

    def __init__(
        self,
        profile: str = "vanilla-sd",
        batch_size: int | str = 1,
        max_batch_size: int | str | None = None,
        on_error: str = "stop",
        **arguments: Any,
    ) -> None:
        super().__init__()
        if str(batch_size) != "1":
            raise UsageError(f"batch_size {batch_size}: vidspec captions one video at a time", hint="--batch_size 1")
        if on_error not in ("stop", "empty"):
            raise UsageError(f"model_args: on_error={on_error}: must be stop or empty")
        self._passing: tuple[type[VidspecError], ...] = (VideoError, GenerationError) if on_error == "empty" else ()
        self._profile, self._overrides = profile, overrides_of(arguments)
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            self._join()
        self._asked: Counter[tuple[str, str, object]] = Counter()
        self._warned: set[str] = set()
        self._answering: Answering | None = self._load()

    def _join(self) -> None:
        """Join the processes that share the requests, with one device each."""
        from accelerate import Accelerator  # type: ignore[import-not-found, import-untyped, unused-ignore]

        self.accelerator = Accelerator()
        self._rank, self._world_size = self.accelerator.process_index, self.accelerator.num_processes
        if self._overrides.get("models.device", "auto") in ("auto", "cuda") and torch.cuda.is_available():
            self._overrides["models.device"] = f"cuda:{self.accelerator.local_process_index}"

    def _load(self) -> Answering:
        captioner = Captioner.from_profile(self._profile, overrides=self._overrides)
        self._device = captioner.client.setup.target.model.device
        return Answering(captioner)

    @property
    def answering(self) -> Answering:
        """The answering captioners; loaded again after :meth:`clean`."""
        if self._answering is None:
            self._answering = self._load()
        return self._answering

    @property
    def device(self) -> torch.device:
        """The target's device, on which the processes of one evaluation exchange counts."""
        return self._device

    @property
    def batch_size(self) -> int:
        return 1

    def generate_until(self, requests: Sequence[Any]) -> list[Any]:
        """Answer requests, in order.

        Args:
            requests: instances whose ``args`` are context, ``generation_kwargs``, ``doc_to_visual``, the document's
                index, task and split.

        Raises:
            VidspecError: one cannot be answered; which one is logged.
        """
        totals, answers = Totals(), []
        for request in tqdm(requests, disable=self.rank != 0, desc="vidspec"):
            text, record = self._answer(*request.args)
            if record is not None:
                self.cache_hook.add_partial("generate_until", request.args[:2], text)
                totals.add(record)
            answers.append(_counted(text, record.counters["emitted"] if record is not None else 0))
        self._tell(totals, len(answers))
        return answers

    def _answer(
        self, context: str, kwargs: Mapping[str, Any], doc_to_visual: Any, doc_id: Any, task: str, split: str
    ) -> tuple[str, Caption | None]:
        document = (task, split, doc_id)
        name = f"{task}, {split}, document {doc_id}"
        visual = doc_to_visual(self.task_dict[task][split][doc_id])
        try:
            answer = self.answering.answer(context, kwargs, visual, name, self._asked[document])
        except self._passing as error:
            logger.warning(f"{name}: {error}")
            return "", None
        except VidspecError as error:
            logger.error(f"{name}: {error}")
            raise
        self._asked[document] += 1
        return answer

    def _tell(self, totals: Totals, asked: int) -> None:
        if failed := asked - totals.answers:
            logger.warning(f"vidspec: {failed} of {asked} requests failed and were answered with nothing")
        if unread := self.answering.unread - self._warned:
            logger.warning(f"vidspec: generation_kwargs without effect: {', '.join(sorted(unread))}")
            self._warned |= unread
        logger.info(f"vidspec: {totals}")
        speed = totals.tokens / totals.seconds if totals.seconds else 0.0
        log_metrics(totals.seconds, totals.tokens, speed, totals.rates)

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Not supported."""
        raise NotImplementedError("vidspec gives no likelihoods: choose a task whose output_type is generate_until")

    def generate_until_multi_round(self, requests: Sequence[Any]) -> list[Any]:
        """Not supported."""
        raise NotImplementedError("vidspec answers one question on a video: choose a task of a single round")

    def clean(self) -> None:
        """Release the models; called by the harness after the last request."""
        if self._answering is not None:
            self._answering.close()
            self._answering = None
        super().clean()


def _counted(text: str, tokens: int) -> Any:
    """Return an answer with its number of tokens, if the harness has a type for it (from 0.7 on)."""
    try:
        from lmms_eval.api.instance import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
            GenerationResult,
            TokenCounts,
        )
    except ImportError:
        return text
    return GenerationResult(text, TokenCounts(output_tokens=tokens))
