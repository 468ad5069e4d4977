"""``--model vidspec`` of LMMs-Eval, from version 0.6 on; importing it loads neither torch nor the harness.

The harness asks every installed package for models, whichever it is going to run (entry points ``lmms_eval.models``),
so what it finds here is :func:`manifest` alone.

arguments   the strings of command lines and tasks, as keys of a profile
visuals     what a task shows, as something a captioner takes
answering   requests answered by captioners over the same models, and totals; knows nothing of the harness
model       the class that the harness drives
"""

from __future__ import annotations

from typing import Any

__all__ = ["manifest"]


def manifest() -> Any:
    """Where the harness finds the model: an ``lmms_eval.models.registry_v2.ModelManifest``."""
    from lmms_eval.models.registry_v2 import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
        ModelManifest,
    )

    return ModelManifest(model_id="vidspec", simple_class_path="vidspec.integrations.lmms_eval.model.Vidspec")
