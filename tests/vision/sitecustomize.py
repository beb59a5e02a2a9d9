"""On the path of processes that use torchvision's build for CUDA on a machine without one: declares the operators that
its library would bring and its Python part refuses to be imported without. Images are resized in Python all the same.
"""

import importlib.abc
import sys


class _Declare(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            import torch

            for name in ("nms", "qnms"):
                signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                torch.library.define(f"torchvision::{name}", signature)


sys.meta_path.insert(0, _Declare())
