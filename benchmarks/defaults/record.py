"""Measurements, and the JSON file that keeps them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from benchmarks.paper.results import machine

Categories = Literal["as-they-stand", "declared"]
# Dataset, training rows, split, method, categories.
Key = tuple[str, int, int, str, Categories]


@dataclass(frozen=True)
class Measurement:
    """One method on one split of a dataset."""

    dataset: str
    rows: int  # of training
    split: int
    method: str
    categories: Categories
    whole: bool  # the dataset has fewer training rows than asked for
    error: float  # 1 - accuracy, or 1 - R²
    seconds: float  # of training
    version: str  # of the method's package

    @property
    def key(self) -> Key:
        return (self.dataset, self.rows, self.split, self.method, self.categories)


class Record:
    """Measurements by key.  With a path, the file is continued, and written after each new one."""

    def __init__(self, measurements: Iterable[Measurement] = (), path: Path | None = None) -> None:
        kept = read(path) if path and path.is_file() else []
        self.path = path
        self._found = {m.key: m for m in (*kept, *measurements)}

    def __contains__(self, key: Key) -> bool:
        return key in self._found

    def __iter__(self) -> Iterator[Measurement]:
        return iter(self._found.values())

    def add(self, measurement: Measurement) -> None:
        """Add it in place of an earlier one with the same key, and write the file."""
        self._found[measurement.key] = measurement
        if self.path is None:
            return
        lines = ",\n".join(json.dumps(asdict(m)) for m in self)
        text = f'{{"machine": {json.dumps(machine())}, "measurements": [\n{lines}\n]}}\n'
        # The file is replaced as a whole, since a run may be stopped at any time.
        part = self.path.with_name(self.path.name + ".part")
        part.write_text(text, encoding="utf-8")
        os.replace(part, self.path)


def read(path: Path) -> list[Measurement]:
    contents = json.loads(path.read_text(encoding="utf-8"))
    return [Measurement(**m) for m in contents["measurements"]]
