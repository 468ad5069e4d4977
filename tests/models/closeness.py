"""Tolerances of our numbers against the stock models' in float32."""

import torch

#: Share of the largest number that is expected.
PART = 1e-5


@torch.inference_mode()
def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """They differ by at most :data:`PART`."""
    scale = expected.abs().max()
    torch.testing.assert_close(found / scale, expected / scale, rtol=0, atol=PART)
