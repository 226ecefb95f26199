"""What the user said about how a data file is laid out, where the file does not tell."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from mercer.tables.errors import TableError


@dataclass(frozen=True)
class Layout:
    """The encoding and header of a text file, and the sheet of a workbook; None: as found."""

    encoding: str | None = None
    header: bool | None = None
    sheet: str | None = None

    def __post_init__(self) -> None:
        if self.encoding is None:
            return
        try:
            known = codecs.lookup(self.encoding)._is_text_encoding
        except (LookupError, ValueError):
            known = False
        if not known:
            raise TableError(
                f"There is no encoding {self.encoding!r}. Usual ones are utf-8, latin-1, cp1252 and "
                "utf-16."
            )
