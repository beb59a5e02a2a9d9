"""The algorithm of the setting `resume`: it draws random numbers, whose state a checkpoint must restore."""

import torch

from ajet import Algorithm


class DrawingAlgorithm(Algorithm):
    def of_group(self, returns_G):
        return returns_G - returns_G.mean() + 0.1 * torch.rand(len(returns_G)).numpy()
