"""A CUDA graph on a CPU: operations are recorded once, and replayed without the Python of the step.

A replay recomputes each recorded operation from the tensors that it was recorded with, and writes to the tensors that
the recording returned. So a step that rebinds an attribute, branches on a value or reads a tensor that is not its own
fails here as it does on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.engine import standin
from vidspec.captioner import Captioner
from vidspec.engine.graphs.passes import ReplayedPasses


def tensors(value: object) -> list[torch.Tensor]:
    return [one for one in tree_leaves(value) if isinstance(one, torch.Tensor)]


class Tape(TorchDispatchMode):
    """Records operations with their arguments and results."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[tuple[Callable[..., object], tuple[Any, ...], dict[str, Any], list[torch.Tensor]]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> object:
        result = function(*args, **(kwargs or {}))
        self.recorded.append((function, args, kwargs or {}, tensors(result)))
        return result

    @torch.inference_mode()
    def replay(self) -> None:
        for function, args, kwargs, results in self.recorded:
            for result, again in zip(results, tensors(function(*args, **kwargs)), strict=True):
                if again is not result and not is_same_view(again, result):
                    result.copy_(again)


def is_same_view(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() and one.stride() == other.stride() and one.shape == other.shape


class TapedPasses(ReplayedPasses):
    """Passes recorded on a tape; ``replays`` counts the runs of tapes."""

    replays = 0

    def _capture(self, step: Any) -> Callable[[], None]:
        with torch.inference_mode():
            step()  # as before a capture on a GPU
            step.set_idle()
            with Tape() as tape:
                step()

        def replay() -> None:
            self.replays += 1
            tape.replay()

        return replay


def tape_passes(captioner: Captioner) -> list[TapedPasses]:
    """Tape the passes of all models of a captioner from now on."""
    setup = captioner.client.setup
    engines = setup.target, setup.draft, setup.head, setup.self_draft
    decoders = {id(engine.model.decoder): engine.model.decoder for engine in engines if engine is not None}
    for decoder in decoders.values():
        decoder.graphs = TapedPasses(decoder, standin.attention)
    return [decoder.graphs for decoder in decoders.values()]
