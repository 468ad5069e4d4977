"""The largest tensor that operations make."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class LargestTensor(TorchDispatchMode):
    """Notes the most numbers that an operation returned, and the most bytes of one that is no view."""

    numel = nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else [made]:
            if isinstance(one, torch.Tensor):
                self.numel = max(self.numel, one.numel())
                if "view" not in str(func):
                    self.nbytes = max(self.nbytes, one.numel() * one.element_size())
        return made
