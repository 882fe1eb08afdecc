"""How many bytes of tensors are alive, on a device whose allocator does not say: the CPU.

Every storage that an op makes is watched through a weak reference, so it counts as long as anything holds it: the
graph, the tensors saved for the backward, or a variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

__all__ = ["LiveBytes"]


class LiveBytes(TorchDispatchMode):
    """Counts the bytes that ops inside its ``with`` block allocate.

    Parameters
    ----------
    ignored
        Tensors whose storage does not count: parameters, buffers, gradients.

    Attributes
    ----------
    peak
        Most bytes alive at once since `reset_peak`.
    """

    def __init__(self, ignored: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ignored = {tensor.untyped_storage()._cdata for tensor in ignored}
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def watch(self, tensors: Iterable[Tensor]) -> None:
        """Count the storage of `tensors`, which were made elsewhere, from now on."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._ignored:
                self._alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())  # type: ignore[no-untyped-call]

    def current(self) -> int:
        """Return the bytes that are alive now."""
        gone = [key for key, entry in self._alive.items() if entry[0].expired()]  # type: ignore[no-untyped-call]
        for key in gone:
            del self._alive[key]
        return sum(num_bytes for _, num_bytes in self._alive.values())

    def reset_peak(self) -> None:
        """Forget the peak; it starts again from what is alive now."""
        self.peak = self.current()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an op and watch what it returns."""
        result = func(*args, **(kwargs or {}))
        self.watch(leaf for leaf in tree_iter(result) if isinstance(leaf, torch.Tensor))
        self.peak = max(self.peak, self.current())
        return result
