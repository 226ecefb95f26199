"""The main job: plan, train, predict, compare.

make demo

The story is told in src/mercer/cli/demo.py, which the command `mercer demo` shares.
"""

from __future__ import annotations

from mercer.cli.demo import demonstrate

if __name__ == "__main__":
    demonstrate(show=lambda text: print(text, flush=True))
