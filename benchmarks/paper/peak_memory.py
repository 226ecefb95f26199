"""Peak memory of the three methods of Table 1, measured in this process (Linux), for `costs.py`.

    python -m benchmarks.paper.peak_memory '[[4000, 1000, 100]]'       # n, s, q; JSON to standard output

The allocator must return freed memory at once, or one method would reuse the memory of another:
MALLOC_MMAP_THRESHOLD_=65536 makes it do so.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial

import torch

from benchmarks.paper.iterations import METHODS, epoch_of, problem
from benchmarks.paper.problem import Problem
from benchmarks.peak import peak_bytes

FEATURES = 100
OUTPUTS = 10


def peaks(n: int, s: int, q: int) -> dict[str, float]:
    """Peak bytes of each method, without points and targets."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, FEATURES, generator=generator) / 2
    p = problem(x, torch.randn(n, OUTPUTS, generator=generator), s, q)
    found = {}
    epoch_of(METHODS[0], p)  # loads libraries and starts threads
    for method in METHODS:
        found[method] = peak_bytes(partial(_epoch_with_own_eigenvectors, method, p))
    return found


def _epoch_with_own_eigenvectors(method: str, p: Problem) -> None:
    if method != "SGD":  # which has no eigenvectors
        p = replace(p, levelled=replace(p.levelled, V=p.levelled.V.clone()))
    epoch_of(method, p)


if __name__ == "__main__":
    print(json.dumps([peaks(*sizes) for sizes in json.loads(sys.argv[1])]))
