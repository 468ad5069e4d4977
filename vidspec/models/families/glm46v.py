"""GLM-4.6V by the name of its processor: GLM-4.1V's parts, which the configs name."""

from __future__ import annotations

from vidspec.models.base import families
from vidspec.models.families.glm4v import Glm4v


@families.register("glm46v")
class Glm46v(Glm4v):
    """A ``Glm46VForConditionalGeneration``."""

    family = "glm46v"
