"""How many bytes of tensors are alive at once, regardless of what the allocator keeps."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode


class LiveMemory(TorchDispatchMode):
    """The peak of the tensors that were created inside the context and are still in use.

    What an operation allocates and frees within itself is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        outputs = func(*args, **(kwargs or {}))
        for tensor in outputs if isinstance(outputs, (tuple, list)) else [outputs]:
            if isinstance(tensor, Tensor):
                self._add(tensor)
        return outputs

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        reference = StorageWeakRef(storage)
        if reference.cdata in self.alive and not self.alive[reference.cdata][0].expired():
            return
        self._forget()
        self.alive[reference.cdata] = (reference, storage.nbytes())
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)

    def _forget(self) -> None:
        gone = [key for key, (reference, _) in self.alive.items() if reference.expired()]
        for key in gone:
            self.now -= self.alive.pop(key)[1]
