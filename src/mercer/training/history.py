"""The epochs of a run, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from mercer.notebook import html_table


@dataclass(frozen=True)
class Epoch:
    """One pass over the training points.

    A loss is the mean squared error or, for several outputs that are numbers, the mean of each output's
    squared error as a share of its variance.
    """

    number: int
    train_loss: float  # of f - y at each batch just before its step
    validation_loss: float | None
    validation_score: float | None
    seconds: float
    step_size: float  # eta
    halvings: int  # how often the guard halved the step in this epoch
    closing: bool = False  # on all rows, those that were held out included


@dataclass(frozen=True)
class History:
    """The epochs of a run, as data.

    >>> History((Epoch(1, 0.5, None, None, 0.1, 64.0, 0),)).column("train_loss")
    [0.5]
    """

    epochs: tuple[Epoch, ...] = ()

    def __len__(self) -> int:
        return len(self.epochs)

    def __getitem__(self, index: int) -> Epoch:
        return self.epochs[index]

    def column(self, name: str) -> list[float | None]:
        """One field over all epochs."""
        return [getattr(epoch, name) for epoch in self.epochs]

    def _repr_html_(self) -> str:
        """A table, for notebooks."""
        empty = (None, False)
        shown = [
            f for f in fields(Epoch) if not all(any(v is e for e in empty) for v in self.column(f.name))
        ]
        rows = ([getattr(epoch, f.name) for f in shown] for epoch in self.epochs)
        return html_table([f.name.replace("_", " ") for f in shown], rows, in_epochs(len(self)))

    def to_dicts(self) -> list[dict[str, float | None]]:
        """A list of plain dictionaries, which `pandas.DataFrame` accepts."""
        return [asdict(epoch) for epoch in self.epochs]


def loss_name(n_outputs: int, classifies: bool) -> str:
    """What the losses of a model with so many outputs are."""
    if classifies or n_outputs == 1:
        return "mean squared error"
    return "mean squared error as a share of variance"


def in_epochs(count: int) -> str:
    """A number of epochs in words.

    >>> in_epochs(1), in_epochs(2)
    ('1 epoch', '2 epochs')
    """
    return f"{count} epoch" if count == 1 else f"{count} epochs"
