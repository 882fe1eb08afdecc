"""What a forward saved for its backward, moved to host memory and back.

Everything is moved that autograd keeps and nobody else does: not parameters and buffers, nor what the stage read and
made. Autograd asks for a saved tensor when it needs it, and gets it from where it is by then; the bits are the same.

On CUDA copies run on a stream of their own in each direction, through pinned memory. A device copy is given up only
once compute waits for its copy, and made on the compute stream's account, so no memory is reused too early. On the CPU
the host copies at once.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["CopyStreams", "Stash"]


class CopyStreams:
    """The streams of one device on which copies run: one to the host, one back; none on the CPU."""

    def __init__(self, device: torch.device) -> None:
        self.out: torch.cuda.Stream | None = None
        self.back: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.out, self.back = torch.cuda.Stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class _Saved:
    """What autograd holds in place of a saved tensor.

    `alias` is that tensor, None once its memory is given up; then it is made again from `block`.
    """

    __slots__ = ("__weakref__", "_dtype", "_offset", "_size", "_stride", "_version", "alias", "block")

    def __init__(self, tensor: Tensor) -> None:
        self.alias: Tensor | None = tensor.detach()
        self.block: _Block | None = None
        self._version = tensor._version
        self._dtype, self._offset = tensor.dtype, tensor.storage_offset()
        self._size, self._stride = tuple(tensor.shape), tensor.stride()

    def tensor(self) -> Tensor:
        """Return the saved tensor.

        Raises
        ------
        RuntimeError
            When it was changed in place since, as autograd itself would find; or is in host memory.
        """
        if self.alias is not None:
            self.check()
            return self.alias
        if self.block is None or self.block.device is None:
            raise RuntimeError("a backward needs what is in host memory")
        flat = torch.empty(0, dtype=self._dtype, device=self.block.device.device)
        return flat.set_(self.block.device.untyped_storage(), self._offset, self._size, self._stride)

    def check(self) -> None:
        """Refuse what is not as it was saved."""
        if self.alias is not None and self.alias._version != self._version:
            message = "one of the variables needed for gradient computation has been modified by an inplace operation"
            raise RuntimeError(f"{message}: {self._dtype} of shape {list(self._size)}")


class _Block:
    """A storage and all that is saved in it; its bytes on the device and in host memory, as flat tensors."""

    def __init__(self, saved: Sequence[_Saved], storage: torch.UntypedStorage) -> None:
        self._saved = [weakref.ref(entry) for entry in saved]
        self.device: Tensor | None = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        self.host: Tensor | None = None

    def copy_out(self, stream: torch.cuda.Stream | None) -> None:
        """Start the copy to the host."""
        assert self.device is not None  # noqa: S101 (it was not moved before)
        if stream is None:
            self.host = self.device.clone()
            return
        self.host = torch.empty(self.device.shape, dtype=torch.uint8, pin_memory=True)
        with torch.cuda.stream(stream):
            self.host.copy_(self.device, non_blocking=True)

    def give_up(self) -> None:
        """Free the device's memory, the copy being made."""
        for ref in self._saved:
            if (entry := ref()) is not None:
                entry.check()
                entry.alias, entry.block = None, self
        self.device = None

    def copy_back(self, stream: torch.cuda.Stream | None, device: torch.device) -> None:
        """Start the copy back, into memory of the compute stream."""
        assert self.host is not None  # noqa: S101 (it was moved)
        if stream is None:
            self.device = self.host.clone()
            return
        self.device = torch.empty(self.host.shape, dtype=torch.uint8, device=device)
        stream.wait_stream(torch.cuda.current_stream(device))  # who had that memory before may still use it
        with torch.cuda.stream(stream):
            self.device.copy_(self.host, non_blocking=True)


class Stash:
    """What one forward saves; use `saving` around it, then the other methods in their order.

    Parameters
    ----------
    module, inputs
        Whose tensors stay where they are.
    streams
        Where copies run.
    """

    def __init__(self, module: nn.Module, inputs: Iterable[Tensor], streams: CopyStreams) -> None:
        self._streams = streams
        self._stays = {_address(tensor) for tensor in (*module.parameters(), *module.buffers(), *inputs)}
        self._saved: list[weakref.ref[_Saved]] = []
        self._blocks: list[_Block] = []
        self._device: torch.device | None = None
        self._event: torch.cuda.Event | None = None

    @property
    def num_bytes(self) -> int:
        """What is moved [bytes]; 0 before `offload`."""
        return sum(len(block.host) for block in self._blocks if block.host is not None)

    def saving(self) -> AbstractContextManager[Any]:
        """Return the context in which the forward runs."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)

    def keep(self, outputs: Iterable[Tensor]) -> None:
        """Note what the forward made: it stays, as others hold it."""
        self._stays |= {_address(tensor) for tensor in outputs}

    def offload(self) -> None:
        """Start to copy to the host what is saved."""
        groups: dict[int, list[_Saved]] = {}
        for ref in self._saved:
            entry = ref()
            if entry is not None and entry.alias is not None and _address(entry.alias) not in self._stays:
                groups.setdefault(_address(entry.alias), []).append(entry)
        for group in groups.values():
            alias = group[0].alias
            assert alias is not None  # noqa: S101 (it was there above)
            self._device = alias.device
            self._blocks.append(_Block(group, alias.untyped_storage()))
        stream = self._streams.out
        if stream is not None and self._device is not None:
            stream.wait_stream(torch.cuda.current_stream(self._device))
        for block in self._blocks:
            block.copy_out(stream)
        self._event = None if stream is None else stream.record_event()

    def offloaded(self) -> None:
        """Wait for those copies, and free the device's memory."""
        self._wait()
        for block in self._blocks:
            block.give_up()

    def reload(self) -> None:
        """Start to copy back."""
        stream = self._streams.back
        for block in self._blocks:
            assert self._device is not None  # noqa: S101 (something was moved)
            block.copy_back(stream, self._device)
        self._event = None if stream is None else stream.record_event()

    def reloaded(self) -> None:
        """Wait for those copies, and forget those of the host."""
        self._wait()
        for block in self._blocks:
            block.host = None

    def _wait(self) -> None:
        if self._event is not None and self._device is not None:
            torch.cuda.current_stream(self._device).wait_event(self._event)

    def _pack(self, tensor: Tensor) -> Tensor | _Saved:
        plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
        if not plain or tensor.is_conj() or tensor.is_neg() or _address(tensor) in self._stays:
            return tensor
        saved = _Saved(tensor)
        self._saved.append(weakref.ref(saved))
        return saved


def _unpack(saved: Tensor | _Saved) -> Tensor:
    return saved.tensor() if isinstance(saved, _Saved) else saved


def _address(tensor: Tensor) -> int:
    """Return where a tensor's storage begins: tensors of one storage share it; 0 of none."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0
