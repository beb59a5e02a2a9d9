"""All trained weights in one buffer, with exact float32 masters in half the memory.

Invariant: master = value + low, bit for bit. In bfloat16 the value is the master's upper 16 bits rounded to the
nearest, and `low` the int16 difference of the bit patterns; so engine and trainer compute with the bfloat16 values,
the optimizer with the float32 masters, and both together take 4 bytes a weight, not 6 (Split-SGD, arXiv 2005.04680,
section 5.1, with rounding in place of truncation). In float32 the values are the masters and there is no `low`.

The model's parameters are views into the buffer: whoever holds them sees each change in place. Gradients exist, as
one buffer, only between `open_gradients` and `drop_gradients`; on a CPU `low` from its first use on, which is not
before an update or a checkpoint: sampling needs the values alone, and drawing as many numbers as there are weights
takes as long as loading them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

SLICE = 1 << 20
ALIGN = 64
"""Elements that each parameter's place is rounded up to."""


def make_zeros(size: int, device: torch.device) -> Tensor:
    """[size] float32. On a CPU pages of memory come with their first use; torch writes to its own at once."""
    if device.type == "cpu":
        return torch.from_numpy(np.zeros(size, np.float32))
    return torch.zeros(size, dtype=torch.float32, device=device)


def add_sliced(total: Tensor, part: Tensor, *, first: bool = False) -> None:
    """total [N] += part [N], slice by slice: adding bfloat16 to float32 makes a float32 copy of it. `first`: to nothing
    so far, whatever `total` holds, which is then not read (a sum may be -0 for 0)."""
    if first:
        total.copy_(part)
        return
    for into, piece in zip(total.split(SLICE), part.split(SLICE), strict=True):
        into.add_(piece)


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of a parameter in the buffer."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


class FlatWeights:
    """Moves `parameters` (all of one dtype and device) into one buffer, matrices first."""

    def __init__(self, parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
        named = sorted(parameters, key=lambda pair: pair[1].ndim < 2)
        first = named[0][1]
        assert first.dtype in (torch.bfloat16, torch.float32), f"weights are {first.dtype}"
        self.parameters = named
        self.places: list[Slot] = []
        end = self.decayed = 0
        for name, parameter in named:
            self.places.append(Slot(name, tuple(parameter.shape), end, end + parameter.numel()))
            end += -(-parameter.numel() // ALIGN) * ALIGN
            if parameter.ndim >= 2:
                self.decayed = end
        self.values = torch.empty(end, dtype=first.dtype, device=first.device)
        self._low: Tensor | None = None
        self._dithered_by: int | None = None
        self.gradients: Tensor | None = None
        self._begun: set[int] = set()
        """Where the parameters start whose gradients hold something."""
        for place, (_, parameter) in zip(self.places, named, strict=True):
            view = self.values[place.start : place.stop].view(place.shape)
            view.copy_(parameter.data)
            self.values[place.stop : -(-place.stop // ALIGN) * ALIGN] = 0
            parameter.data = view
            if self.values.dtype == torch.bfloat16:
                parameter.register_post_accumulate_grad_hook(self._make_collector(place))

    @property
    def size(self) -> int:
        """Elements of the buffer, alignment included."""
        return self.values.numel()

    @property
    def low(self) -> Tensor | None:
        """[size] int16; None in float32. Whoever changes values without masters reads it before."""
        if self._low is None and self.values.dtype == torch.bfloat16:
            self._low = self._draw_low()
        return self._low

    def dither(self, seed: int) -> None:
        """Put each master at a random place among those that round to its value; the values stay. Nothing in float32.
        Before `low` is first used.

        Weights that come in bfloat16 lie in the middle of what rounds to them: the first steps of a small learning
        rate would all be rounded away together, and the policy would stand still until an update exceeds half a unit
        in the last place. From a random place an update of a tenth of a unit moves a tenth of the values: none of it
        is lost on average (non-subtractive dither: Roberts 1962, Picture coding using pseudo-random noise)."""
        assert self._low is None, "masters are placed once, before anything is computed with them"
        self._dithered_by = seed
        if self.values.device.type != "cpu":  # drawn in no time; the engine takes its part of the memory that is left
            self._low = self.low

    def _draw_low(self) -> Tensor:
        low = torch.zeros(self.size, dtype=torch.int16, device=self.values.device)
        if self._dithered_by is not None:
            generator = torch.Generator(self.values.device).manual_seed(self._dithered_by)
            low.random_(-(2**15), 2**15, generator=generator)
            low.masked_fill_(self.values == 0, 0)  # below zero's bit pattern lie those of other signs
        return low

    def master(self, start: int, stop: int, room: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """[stop - start] float32 masters: a copy in bfloat16, the weights themselves in float32. `room`: two float32
        tensors of as many elements or more to compute it in; it lies in the first."""
        values = self.values[start:stop]
        if self.low is None:
            return values
        count = stop - start
        wide, low = room or (torch.empty(count, dtype=torch.float32, device=values.device) for _ in range(2))
        master = wide[:count].copy_(values)  # its bits are the value's and 16 zeros
        master.view(torch.int32).add_(low[:count].view(torch.int32).copy_(self.low[start:stop]))
        return master

    def set_master(self, start: int, stop: int, master: Tensor) -> None:
        """Write float32 masters back; free of rounding. `master` may be used up."""
        if self.low is None:
            if master.data_ptr() != self.values[start:stop].data_ptr():
                self.values[start:stop] = master
            return
        bits = master.view(torch.int32)
        self.low[start:stop] = bits  # its lower 16, which as a signed number are what rounding to the nearest leaves
        self.values.view(torch.int16)[start:stop] = bits.add_(0x8000).bitwise_right_shift_(16)

    def open_gradients(self, *, passes: int) -> Tensor:
        """[size] zeros that the next `passes` backward passes add to: float32, or, for a single pass over bfloat16
        weights, bfloat16, which is what that pass computes."""
        dtype = self.values.dtype if passes == 1 else torch.float32
        if dtype == torch.float32:
            self.gradients = make_zeros(self.size, self.values.device)
        else:  # no numpy: the large pages that it asks for take longer here, where memory was given back just before
            self.gradients = torch.zeros(self.size, dtype=dtype, device=self.values.device)
        self._begun.clear()
        if self.low is None:
            for place, (_, parameter) in zip(self.places, self.parameters, strict=True):
                parameter.grad = self.gradients[place.start : place.stop].view(place.shape)
        return self.gradients

    def drop_gradients(self) -> None:
        """Free them."""
        self.gradients = None
        for _, parameter in self.parameters:
            parameter.grad = None

    def _make_collector(self, place: Slot):  # type: ignore[no-untyped-def]
        def collect(parameter: Tensor) -> None:
            assert self.gradients is not None, "a backward pass outside of an update"
            assert parameter.grad is not None
            total = self.gradients[place.start : place.stop]
            add_sliced(total, parameter.grad.reshape(-1), first=place.start not in self._begun)
            self._begun.add(place.start)
            parameter.grad = None

        return collect
