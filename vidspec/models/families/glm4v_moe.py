"""GLM-4.5V and GLM-4.6V: GLM-4.1V's prompts and tower, a mixture of experts inside."""

from __future__ import annotations

from vidspec.models.base import families
from vidspec.models.families.glm4v import Glm4v


@families.register("glm4v_moe")
class Glm4vMoe(Glm4v):
    """A ``Glm4vMoeForConditionalGeneration``."""

    family = "glm4v_moe"
