"""Runs the ranks of a tensor-parallel network in one process, one after the other, each up to its next sum."""

import threading

import torch

from firesteel.model.gpt_oss import Ranks

LONGEST_WAIT_S = 300


class Turns:
    """Threads of which one runs at a time; each passes the turn to the next at every sum over ranks."""

    def __init__(self, size, in_place=False):
        """With `in_place` a sum is written over the rank's part, else it is a new tensor."""
        self.size, self.in_place = size, in_place
        self.turns = [threading.Semaphore(0) for _ in range(size)]
        self.parts = [None] * size
        self.total = None
        self.num_sums = 0
        self.failure = None

    def ranks(self, rank):
        return Ranks(is_first=rank == 0, add=lambda part: self._add(rank, part))

    def run(self, work):
        """Returns the results of `work(rank)` of all ranks."""
        results = [None] * self.size

        def run_rank(rank):
            try:
                self._wait(rank)
                with torch.inference_mode():
                    results[rank] = work(rank)
            except BaseException as error:
                self.failure = self.failure or error
            self._pass(rank)

        threads = [threading.Thread(target=run_rank, args=(rank,), daemon=True) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        self.turns[0].release()
        for thread in threads:
            thread.join()
        if self.failure is not None:
            raise self.failure
        return results

    def _add(self, rank, part):
        self.parts[rank] = part
        self._pass(rank)
        self._wait(rank)
        if rank == 0:  # its turn comes again after every other rank has computed its part
            self.total = torch.stack([part.float() for part in self.parts]).sum(0).to(part.dtype)
            self.num_sums += 1
        return part.copy_(self.total) if self.in_place else self.total.clone()

    def _pass(self, rank):
        self.turns[(rank + 1) % self.size].release()

    def _wait(self, rank):
        if not self.turns[rank].acquire(timeout=LONGEST_WAIT_S):
            raise TimeoutError(f"rank {rank} waited for its turn for {LONGEST_WAIT_S} s")
        if self.failure is not None:
            raise RuntimeError(f"another rank failed: {self.failure!r}")
