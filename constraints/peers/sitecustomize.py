"""Goes into a peer's environment where torchvision's build does not fit torch's, as one for CUDA beside one for CPUs.

Importing it fails there for want of two operators that no peer calls; here they get their names.
"""

import torch

library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
