"""A plain stream of a kernel's bytes: what memory gives for that size and mix of reads and writes."""

from __future__ import annotations

import torch

from harness import Call, Library, sets_for

VECTOR_BYTES = 16


class Stream:
    """`bytes_moved` in all, of which reads / (reads + writes) are read, in `sets` copies of the operands."""

    def __init__(self, library: Library, *, reads: int, writes: int, bytes_moved: float) -> None:
        self.bytes = bytes_moved
        self.sets = sets_for(bytes_moved)
        self._library = library
        self._mix = (reads, writes)
        # Whole units of `reads` vectors.
        self._vectors = int(bytes_moved * reads / (reads + writes)) // (VECTOR_BYTES * reads) * reads
        self._operands: list[tuple[torch.Tensor, torch.Tensor]] = []

    def peer(self) -> dict[str, Call]:
        """{"stream": call}, with operands of its own."""

        def operand(vectors: int) -> torch.Tensor:
            return torch.randint(-(2**31), 2**31, (max(vectors, 1), 4), device="cuda", dtype=torch.int32)

        reads, writes = self._mix
        self._operands = [
            (operand(self._vectors), operand(self._vectors * writes // reads)) for _ in range(self.sets)
        ]
        return {"stream": self._call}

    def _call(self, index: int) -> None:
        self._library.stream(*self._operands[index], self._vectors, *self._mix)
