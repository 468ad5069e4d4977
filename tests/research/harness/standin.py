"""A stand-in for LMMs-Eval, which brings more than a gigabyte of packages; and what tests ask.

It has the names and signatures of LMMs-Eval 0.7 that the model uses, and nothing else.
"""

import abc
import sys
from dataclasses import dataclass
from types import SimpleNamespace

from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.embedded.samples import shipped

CLIP, OTHER = (str(path) for path in shipped()[:2])
PROMPT = "What is shown?"
GREEDY = {"max_new_tokens": 24, "temperature": 0, "top_p": None, "num_beams": 1, "do_sample": False, "until": ["\n\n"]}
LEVELS = ("info", "warning", "error")


def under(captioner, **generate):
    """The same models under other settings."""
    profile = profiles.override(captioner.client.profile, {f"generate.{key}": value for key, value in generate.items()})
    return Captioner(profile, captioner.client.setup.target.model, captioner.client.setup.draft.model)


def own(captioner, **generate):
    """Return a captioner's own caption of the clip under other settings."""
    return under(captioner, **generate).caption(CLIP, prompt=PROMPT)


class StandInModel(abc.ABC):
    """``lmms_eval.api.model.lmms``."""

    is_simple = True

    def __init__(self):
        self._rank, self._world_size = 0, 1
        self.cache_hook = SimpleNamespace(add_partial=lambda *added: self.cached.append(added))
        self.task_dict, self.cached, self.cleaned = {}, [], 0

    @property
    def rank(self):
        return self._rank

    @property
    def world_size(self):
        return self._world_size

    @abc.abstractmethod
    def loglikelihood(self, requests): ...

    @abc.abstractmethod
    def generate_until(self, requests): ...

    @abc.abstractmethod
    def generate_until_multi_round(self, requests): ...

    def clean(self):
        self.cleaned += 1


@dataclass(frozen=True)
class StandInManifest:
    """``lmms_eval.models.registry_v2.ModelManifest``."""

    model_id: str
    simple_class_path: str | None = None
    chat_class_path: str | None = None
    aliases: tuple[str, ...] = ()


class StandInRegistry(dict):
    """``lmms_eval.models.MODEL_REGISTRY_V2``: manifests by model."""

    def register_manifest(self, manifest, *, overwrite=False):
        assert overwrite or manifest.model_id not in self
        self[manifest.model_id] = manifest


@dataclass
class StandInCounts:
    input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None


@dataclass
class StandInResult:
    text: str
    token_counts: StandInCounts | None = None


def modules(told):
    """The modules of the harness by name; what is logged goes to ``told``."""
    log = SimpleNamespace(**{level: lambda text, level=level: told.append((level, text)) for level in LEVELS})
    return {
        "loguru": {"logger": log},
        "lmms_eval": {},
        "lmms_eval.api": {},
        "lmms_eval.api.model": {"lmms": StandInModel},
        "lmms_eval.api.instance": {"GenerationResult": StandInResult, "TokenCounts": StandInCounts},
        "lmms_eval.models": {"MODEL_REGISTRY_V2": StandInRegistry()},
        "lmms_eval.__main__": {"cli_evaluate": lambda: told.append(("evaluated", list(sys.argv[1:])))},
        "lmms_eval.models.registry_v2": {"ModelManifest": StandInManifest},
        "lmms_eval.models.model_utils": {},
        "lmms_eval.models.model_utils.gen_metrics": {
            "log_metrics": lambda total_elapsed_time, total_gen_tokens, avg_speed, additional_metrics=None: told.append(
                ("metrics", (total_elapsed_time, total_gen_tokens, avg_speed, additional_metrics))
            )
        },
    }
