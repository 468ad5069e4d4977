"""``--model vidspec`` of LMMs-Eval, from version 0.6 on; importing it loads neither torch nor the harness.

``python -m research.lmms_eval`` is the harness's own command line with this model added to its registry.

arguments   the strings of command lines and tasks, as keys of a profile
visuals     conversion of a task's visuals to a captioner's input
answering   requests answered by captioners over the same models, and totals; knows nothing of the harness
model       the class that the harness drives
"""

from __future__ import annotations

from typing import Any


def manifest() -> Any:
    """Return the model's entry in the harness's registry, an ``lmms_eval.models.registry_v2.ModelManifest``."""
    from lmms_eval.models.registry_v2 import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
        ModelManifest,
    )

    return ModelManifest(model_id="vidspec", simple_class_path="research.lmms_eval.model.Vidspec")
