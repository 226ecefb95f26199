"""A fitted model as an ONNX file, with the preparation of its numbers inside."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mercer.estimators.preparation import column_names
from mercer.estimators.targets import Labels
from mercer.files.whole import whole_file
from mercer.model.plain_function import PlainFunction, has_plain_form
from mercer.tables.columns import Columns
from mercer.tables.wording import quoted

ONNX_PACKAGES = ("onnx", "onnxscript")
# Names in the file.
INPUT, PREDICTED, INDEX, LABEL, PROBABILITIES = "X", "prediction", "indicator", "label", "probabilities"


class NumericColumns(torch.nn.Module):
    """From the columns of training, (m, p) with NaN for missing values, to features, (m, d)."""

    means: Tensor
    places: Tensor
    indicated: Tensor

    def __init__(self, model: Any) -> None:
        super().__init__()
        columns: Columns | None = model.columns_
        means, places, indicated = model.machine_.inputs.means, None, None
        if columns is not None:
            names = column_names(model)
            fills = {column.name: column.fill for column in columns.columns}
            means = torch.tensor([fills.get(name, 0.0) for name in names], dtype=torch.float64)
            places = torch.tensor([names.index(c.name) for c in columns.columns if c.is_plain])
            indicated = torch.tensor([names.index(c.name) for c in columns.columns if c.is_indicated])
        for name, value in (("means", means), ("places", places), ("indicated", indicated)):
            self.register_buffer(name, value)

    def forward(self, x: Tensor) -> Tensor:
        missing = torch.isnan(x)
        if self.means is not None:
            x = torch.where(missing, self.means.to(x.dtype), x)
        if self.places is not None:
            x = torch.cat([x[:, self.places], missing[:, self.indicated].to(x.dtype)], 1)
        return x


class Answering(torch.nn.Module):
    """From what `steps` take, (m, p) in float64, to answers; `steps` lead to the columns of training."""

    def __init__(self, model: Any, steps: torch.nn.Module) -> None:
        super().__init__()
        self.steps, self.columns = steps, NumericColumns(model)
        self.function = PlainFunction(model.machine_)
        self.targets = model._targets
        self.logit_scale = getattr(model, "logit_scale_", 1.0)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        f = self.function(self.columns(self.steps(x)))  # (m, l)
        targets = self.targets
        if not isinstance(targets, Labels):
            return (f[:, 0] if targets.single else f,)
        logits = self.logit_scale * f
        if targets.multilabel:
            return (f > 0).to(torch.int64), torch.sigmoid(logits)
        if targets.is_binary:
            chances = torch.cat([torch.sigmoid(-logits), torch.sigmoid(logits)], 1)
            return (f[:, 0] > 0).to(torch.int64), chances
        return f.argmax(1), torch.softmax(logits, 1)


def write_onnx(
    model: Any,
    path: str | os.PathLike[str],
    steps: torch.nn.Module | None = None,
    names: Sequence[str] | None = None,
) -> None:
    """Write the file, completely or not at all; `steps` before the model take columns `names`."""
    missing = [name for name in ONNX_PACKAGES if find_spec(name) is None]
    if missing:
        raise ImportError(
            f"Missing packages: {', '.join(missing)}. Install them with pip install 'mercer[onnx]'."
        )
    check_exportable(model)
    import onnx

    names = column_names(model) if names is None else names
    answering = Answering(model, torch.nn.Identity() if steps is None else steps).double()
    example = torch.zeros(2, len(names), dtype=torch.float64)
    classifies = isinstance(model._targets, Labels)
    outputs = [INDEX, PROBABILITIES] if classifies else [PREDICTED]
    with _quiet():
        program = torch.onnx.export(
            answering,
            (example,),
            dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("rows", min=1)},),
            input_names=[INPUT],
            output_names=outputs,
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    if classifies and not model._targets.multilabel:
        _with_labels(proto, model.classes_)
    for key, values in (("columns", names), ("classes", getattr(model, "classes_", []))):
        entry = proto.metadata_props.add()
        entry.key, entry.value = key, "\n".join(map(str, values))
    with whole_file(Path(path)) as beside:
        onnx.save(proto, str(beside))


def check_exportable(model: Any) -> None:
    """Raise for what a graph cannot have."""
    kernel, columns = model.machine_.kernel, model.columns_
    if not has_plain_form(kernel):
        raise ValueError(
            "A kernel function of your own cannot be exported. Use one of Mercer's kernels."
        )
    other = None
    if columns is not None:
        other = next((c for c in columns.columns if c.kind not in ("number", "boolean")), None)
    if other is not None:
        raise ValueError(
            f"Only columns of numbers can be exported, but {quoted(other.name)} holds {other.kind}. "
            "Encode it as numbers before training."
        )


def _with_labels(proto: Any, classes: Any) -> None:
    """Replace the output of places in `classes` by labels."""
    from onnx import TensorProto, helper, numpy_helper

    kinds = {"i": np.int64, "u": np.int64, "f": np.float64, "b": np.bool_}
    values = np.asarray(classes)
    values = values.astype(kinds.get(values.dtype.kind, object))
    if values.dtype == object:
        texts: Any = [str(value).encode() for value in values]
        table = helper.make_tensor("mercer_classes", TensorProto.STRING, [len(values)], texts)
    else:
        table = numpy_helper.from_array(values, "mercer_classes")
    graph = proto.graph
    graph.initializer.append(table)
    graph.node.append(helper.make_node("Gather", ["mercer_classes", INDEX], [LABEL]))
    label = helper.make_tensor_value_info(LABEL, table.data_type, ["rows"])
    others = [output for output in graph.output if output.name != INDEX]
    del graph.output[:]
    graph.output.extend([label, *others])


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks on packages and on itself."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
