"""What a client is told when a request cannot be answered: a status and one sentence."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from mercer.tables.errors import CellError

JSON = "application/json"
# Characters of a sentence; it may quote what the client sent.
LONGEST_SENTENCE = 1_000


class Fault(Exception):
    """A request that is answered with an error."""

    def __init__(
        self,
        status: int,
        sentence: str,
        *,
        row: int | None = None,
        column: str | None = None,
        retry: int | None = None,
    ) -> None:
        super().__init__(sentence)
        self.status, self.row, self.column, self.retry = status, row, column, retry

    @classmethod
    def of(cls, error: ValueError) -> Fault:
        """A body that can be read, but has values that the model cannot take."""
        if isinstance(error, CellError):
            column, row, *_ = error.parts
            return cls(422, str(error), row=row + 1, column=column)
        return cls(422, str(error))

    def response(self) -> Response:
        """
        >>> Fault(422, "Not a number.", row=3, column="age").response().body
        b'{"error":"Not a number.","row":3,"column":"age"}'
        """
        sentence = " ".join(str(self).split())
        if len(sentence) > LONGEST_SENTENCE:
            sentence = sentence[: LONGEST_SENTENCE - 1] + "…"
        content: dict[str, Any] = {"error": sentence}
        if self.row is not None:
            content["row"] = self.row
        if self.column is not None:
            content["column"] = self.column
        headers = {} if self.retry is None else {"Retry-After": str(self.retry)}
        return Response(
            msgspec.json.encode(content), status_code=self.status, headers=headers, media_type=JSON
        )
