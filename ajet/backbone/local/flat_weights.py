"""All trained weights in one buffer, with exact float32 masters in half the memory.

Invariant: master = value + low, bit for bit. In bfloat16, the value is the master's upper 16 bits rounded to nearest,
and `low` is the int16 difference of the bit patterns. Engine and trainer compute with the bfloat16 values, the
optimizer with float32 masters; both together take 4 bytes per weight, not 6 (Split-SGD, arXiv 2005.04680, section 5.1,
with rounding instead of truncation). In float32 the values are the masters and `low` is None.

The model's parameters are views into the buffer, so every change is visible in place. Gradients exist as one buffer,
and only between `open_gradients` and `drop_gradients`. On a CPU, `low` is allocated at its first use in an update or a
checkpoint: sampling needs only the values, and drawing one random number per weight takes as long as loading them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

SLICE = 1 << 20
ALIGN = 64
"""Each parameter's range is padded to a multiple of this number of elements."""


def make_zeros(size: int, device: torch.device) -> Tensor:
    """Return [size] float32 zeros.

    On a CPU the memory pages are allocated at their first use, while torch's zeros touch all of them at once.
    """
    if device.type == "cpu":
        return torch.from_numpy(np.zeros(size, np.float32))
    return torch.zeros(size, dtype=torch.float32, device=device)


def add_sliced(total: Tensor, part: Tensor, *, first: bool = False) -> None:
    """Add part [N] to total [N] in slices, because adding bfloat16 to float32 makes a float32 copy.

    Args:
        first: True to overwrite `total` without reading; a sum with 0 could turn -0 into 0.
    """
    if first:
        total.copy_(part)
        return
    for into, piece in zip(total.split(SLICE), part.split(SLICE), strict=True):
        into.add_(piece)


@dataclass(frozen=True, slots=True)
class Slot:
    """The range of one parameter in the buffer."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


class FlatWeights:
    """Moves `parameters` (all of one dtype and device) into one buffer, matrices first."""

    def __init__(self, parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
        """Copy the parameters into one buffer and make each parameter a view of its range."""
        # Matrices come first, so that the weights with decay are the contiguous range below `decayed`.
        by_dimension = sorted(parameters, key=lambda pair: pair[1].ndim < 2)
        first = by_dimension[0][1]
        assert first.dtype in (torch.bfloat16, torch.float32), f"weights are {first.dtype}"
        self.parameters = by_dimension
        self.places: list[Slot] = []
        end = self.decayed = 0
        for name, parameter in by_dimension:
            self.places.append(Slot(name, tuple(parameter.shape), end, end + parameter.numel()))
            # -(-a // b) rounds up.
            end += -(-parameter.numel() // ALIGN) * ALIGN
            if parameter.ndim >= 2:
                self.decayed = end
        self.values = torch.empty(end, dtype=first.dtype, device=first.device)
        self._rounded_values: Tensor | None = None
        self._dithered_by: int | None = None
        self.gradients: Tensor | None = None
        self._accumulated_starts: set[int] = set()
        """Start positions of the parameters with accumulated gradients."""
        for span, (_, parameter) in zip(self.places, by_dimension, strict=True):
            view = self.values[span.start : span.stop].view(span.shape)
            view.copy_(parameter.data)
            self.values[span.stop : -(-span.stop // ALIGN) * ALIGN] = 0
            parameter.data = view
            if self.values.dtype == torch.bfloat16:
                # A bfloat16 gradient cannot be a view of the float32 buffer, so a hook adds it after each backward
                # pass.
                parameter.register_post_accumulate_grad_hook(self._make_collector(span))

    @property
    def size(self) -> int:
        """Number of elements in the buffer, including alignment."""
        return self.values.numel()

    @property
    def low(self) -> Tensor | None:
        """Low halves of the masters, [size] int16, or None in float32.

        They are allocated here at the first read. Read them before changing `values` by anything but `set_master`.
        """
        if self._rounded_values is None and self.values.dtype == torch.bfloat16:
            self._rounded_values = self._draw_low()
        return self._rounded_values

    def dither(self, seed: int) -> None:
        """Move each master to a random position among those that round to its value. A no-op in float32.

        Must run before the first use of `low`. Values do not change.

        bfloat16 weights start in the middle of their rounding interval: with a small learning rate the first steps
        would all be rounded away, and the policy would not move until an update exceeds half a unit in the last place.
        From a random position, an update of a tenth of a unit moves a tenth of the values, so the mean change is exact
        (non-subtractive dither: Roberts 1962, Picture coding using pseudo-random noise).
        """
        assert self._rounded_values is None, "the master weights must be placed before the first forward pass"
        self._dithered_by = seed
        if self.values.device.type != "cpu":  # fast to draw on a GPU, and the engine sizes its cache by the memory left
            self._rounded_values = self.low

    def _draw_low(self) -> Tensor:
        """Return new low halves: 0, or random ones within each value's rounding interval after `dither`."""
        low = torch.zeros(self.size, dtype=torch.int16, device=self.values.device)
        if self._dithered_by is not None:
            generator = torch.Generator(self.values.device).manual_seed(self._dithered_by)
            low.random_(-(2**15), 2**15, generator=generator)
            low.masked_fill_(self.values == 0, 0)  # below zero's bit pattern are numbers of the other sign
        return low

    def master(self, start: int, stop: int, room: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Return the float32 master weights, shape [stop - start].

        Float32 weights are returned themselves. For bfloat16 weights the result is a copy, joined with their stored low
        bits.

        Args:
            room: For bfloat16, two float32 buffers of at least as many elements; the first one holds the copy.
        """
        values = self.values[start:stop]
        if self.low is None:
            return values
        count = stop - start
        wide, low = room or (torch.empty(count, dtype=torch.float32, device=values.device) for _ in range(2))
        master = wide[:count].copy_(values)  # the bits are the value's, followed by 16 zeros
        master.view(torch.int32).add_(low[:count].view(torch.int32).copy_(self.low[start:stop]))
        return master

    def set_master(self, start: int, stop: int, master: Tensor) -> None:
        """Store float32 master weights without rounding loss. The function may overwrite `master`."""
        if self.low is None:
            if master.data_ptr() != self.values[start:stop].data_ptr():
                self.values[start:stop] = master
            return
        bits = master.view(torch.int32)
        # the lower 16 bits, read as a signed number, are the remainder of rounding to nearest
        # Assigning int32 to int16 keeps the lower 16 bits.
        self.low[start:stop] = bits
        self.values.view(torch.int16)[start:stop] = bits.add_(0x8000).bitwise_right_shift_(16)

    def open_gradients(self, *, passes: int) -> Tensor:
        """Allocate [size] zeros for the gradients of the next `passes` backward passes.

        The dtype is float32. A single pass over bfloat16 weights gets bfloat16, the dtype computed by the pass.
        """
        dtype = self.values.dtype if passes == 1 else torch.float32
        if dtype == torch.float32:
            self.gradients = make_zeros(self.size, self.values.device)
        else:  # not numpy: its large pages take longer here, because memory was just returned to the system
            self.gradients = torch.zeros(self.size, dtype=dtype, device=self.values.device)
        self._accumulated_starts.clear()
        if self.low is None:  # else a hook of each parameter adds its gradient here in float32
            for span, (_, parameter) in zip(self.places, self.parameters, strict=True):
                parameter.grad = self.gradients[span.start : span.stop].view(span.shape)
        return self.gradients

    def drop_gradients(self) -> None:
        """Release the gradient buffer and all views."""
        self.gradients = None
        for _, parameter in self.parameters:
            parameter.grad = None

    def _make_collector(self, place: Slot):  # type: ignore[no-untyped-def]
        """Return a hook that adds a bfloat16 parameter's gradient to the buffer after each backward pass."""

        def collect(parameter: Tensor) -> None:
            """Add the parameter's gradient to its range of the buffer and release it."""
            assert self.gradients is not None, "a backward pass began outside of an update"
            assert parameter.grad is not None
            total = self.gradients[place.start : place.stop]
            add_sliced(total, parameter.grad.reshape(-1), first=place.start not in self._accumulated_starts)
            self._accumulated_starts.add(place.start)
            parameter.grad = None

        return collect
