"""The server in OpenAPI: every model has its own columns, options and answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mercer.estimators import KernelClassifier
from mercer.estimators.answer_table import FAR, LABEL_SET, LOWER, PREDICTION, UPPER
from mercer.serve.json_rows import LARGEST_NUMBER, expected
from mercer.serve.limits import Limits
from mercer.serve.registry import Registry
from mercer.serve.served import Served
from mercer.tables.columns import Columns
from mercer.tables.kinds import Kind

Schema = dict[str, Any]

JSON_NUMBER: Schema = {"type": "number", "minimum": -LARGEST_NUMBER, "maximum": LARGEST_NUMBER}
# What a value of each kind is in JSON, beside null.
JSON_VALUES: dict[Kind, list[Schema]] = {
    "number": [JSON_NUMBER],
    "boolean": [{"type": "boolean"}],
    "date": [{"type": "string", "format": "date"}, {"type": "string", "format": "date-time"}],
    "duration": [{**JSON_NUMBER, "description": "seconds"}],
    "time": [{"type": "string", "format": "time"}],
    "text": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}],
}
# Errors of a request for predictions.
FAULTS = {
    400: "The body cannot be read.",
    404: "There is no such model.",
    406: "The answer cannot be had in a format that the client accepts.",
    408: "The body did not arrive in time.",
    413: "The body has too many bytes or rows.",
    415: "The body is in another format.",
    422: "A value or an option is not what the model needs.",
    429: "Too many requests are in work.",
    500: "The prediction failed.",
    503: "The server is ending.",
    504: "The answer took too long.",
}


def description(registry: Registry, limits: Limits) -> Schema:
    """The document at /openapi.json."""
    from mercer import __version__

    models = [entry.served for entry in registry.entries.values()]
    paths: Schema = {}
    if len(models) == 1:
        paths["/predict"] = {"post": _predict(models[0], "predict", limits)}
    for i, served in enumerate(models):
        paths[f"/models/{served.name}/predict"] = {"post": _predict(served, f"predict_{i}", limits)}
    paths["/health"] = {"get": _get("health", "The models that are served.", "application/json", HEALTH)}
    metrics = "What the server has done so far, for Prometheus."
    paths["/metrics"] = {"get": _get("metrics", metrics, "text/plain", {"type": "string"})}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Mercer",
            "version": __version__,
            "description": "Predictions of kernel machines.",
        },
        "paths": paths,
        "components": {"schemas": {"Error": ERROR}},
    }


ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "additionalProperties": False,
    "properties": {
        "error": {"type": "string", "description": "What is wrong, in one sentence."},
        "row": {"type": "integer", "minimum": 1, "description": "The row, counted from 1."},
        "column": {"type": "string"},
    },
}
HEALTH: Schema = {
    "type": "object",
    "required": ["status", "models"],
    "properties": {
        "status": {"enum": ["ok", "stale"], "description": "Stale: a replaced file cannot be used."},
        "models": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["version", "loaded"],
                "properties": {
                    "version": {"type": "string"},
                    "loaded": {"type": "number", "description": "Seconds since 1970."},
                    "problem": {"type": "string"},
                },
            },
        },
    },
}


def _get(operation: str, summary: str, media: str, schema: Schema) -> Schema:
    ok = {"description": "Always, while the server runs.", "content": {media: {"schema": schema}}}
    return {"operationId": operation, "summary": summary, "responses": {"200": ok}}


def _predict(served: Served, operation: str, limits: Limits) -> Schema:
    faults = {
        str(status): {
            "description": text,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            **({"headers": RETRY} if status in (429, 503) else {}),
        }
        for status, text in FAULTS.items()
    }
    answers: Schema = {"application/json": {"schema": answer_schema(served)}}
    if served.single:
        answers["text/csv"] = {"schema": {"type": "string"}}
    body: Schema = {
        "application/json": {"schema": rows_schema(served, limits), "example": [example(served)]},
        "text/csv": {"schema": {"type": "string"}, "example": csv_example(served)},
    }
    what = "class" if served.is_classifier else "target"
    return {
        "operationId": operation,
        "summary": f"Predict the {what} of rows with the model {served.name}.",
        "parameters": parameters(served),
        "requestBody": {"required": True, "content": body},
        "responses": {
            "200": {
                "description": "One prediction for each row, in the same order.",
                "headers": {"X-Model-Version": {"schema": {"type": "string"}}},
                "content": answers,
            },
            **faults,
        },
    }


RETRY: Schema = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}


def parameters(served: Served) -> list[Schema]:
    """The options that this model has."""
    found = []
    if served.is_classifier:
        found.append(_option("probabilities", "Add the probability of each class."))
    most = served.largest_coverage
    if most is not None:
        text = "Add a set of classes" if served.is_classifier else "Add an interval"
        share = {"type": "number", "exclusiveMinimum": 0, "maximum": most, "example": min(0.9, most)}
        found.append(_option("interval", f"{text} that holds the true value with this share.", share))
        found.append(_option("far", "Mark rows that are far from all training data."))
    if served.importances is not None:
        found.append(_option("importances", "Add the importance of each column, as a share of all."))
    return found


def _option(name: str, text: str, schema: Schema | None = None) -> Schema:
    what = {"type": "boolean", "default": False} if schema is None else schema
    return {"name": name, "in": "query", "description": text, "required": False, "schema": what}


def rows_schema(served: Served, limits: Limits) -> Schema:
    """Rows as objects or as arrays; columns that the model does not know are ignored."""
    columns = {
        name: {
            "anyOf": [
                *({"type": "string"} for _ in range(written)),
                *JSON_VALUES[kind],
                {"type": "null"},
            ]
        }
        for name, kind, written in expected(served)
    }
    row = {"type": "object", "required": list(columns), "properties": columns}
    values = {
        "type": "array",
        "prefixItems": list(columns.values()),
        "minItems": len(columns),
        "maxItems": len(columns),
    }
    some = {"type": "array", "minItems": 1, "maxItems": limits.rows}
    return {"anyOf": [{**some, "items": row}, {**some, "items": values}, row]}


def answer_schema(served: Served) -> Schema:
    """The answer in JSON."""
    value: Schema = {"type": "number"}
    if isinstance(served.model, KernelClassifier):
        kinds = {"b": "boolean", "i": "integer", "u": "integer", "f": "number"}
        label = {"type": kinds.get(served.model.classes_.dtype.kind, "string")}
        value = label if served.single else {"type": "integer"}
    if not served.single:
        value = {"type": "array", "items": value}
    row: Schema = {PREDICTION: value}
    if served.is_classifier:
        share = {"type": "number", "minimum": 0, "maximum": 1}
        row["probabilities"] = {"type": "object", "additionalProperties": share}
        row[LABEL_SET] = {"type": "array", "items": value}
    else:
        end = {"type": ["number", "null"]} if served.single else {"type": "array"}
        row[LOWER], row[UPPER] = end, end
    row[FAR] = {"type": "boolean"}
    return {
        "type": "object",
        "required": ["model", "version", "rows"],
        "additionalProperties": False,
        "properties": {
            "model": {"const": served.name},
            "version": {"type": "string"},
            "rows": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "required": [PREDICTION],
                    "additionalProperties": False,
                    "properties": row,
                },
            },
            "importances": {"type": "object", "additionalProperties": {"type": "number"}},
            "notes": {"type": "array", "items": {"type": "string"}},
        },
    }


EXAMPLES: Mapping[Kind, Any] = {
    "boolean": True,
    "date": "2024-01-31",
    "duration": 3600.0,
    "time": "13:45:00",
}


def example(served: Served) -> dict[str, Any]:
    """A row with values such as the training data had."""
    columns = served.columns
    if not isinstance(columns, Columns):
        means = served.model.machine_.inputs.means
        values = [0.0] * len(columns.names) if means is None else means.tolist()
        return {name: _short(value) for name, value in zip(columns.names, values, strict=True)}
    found: dict[str, Any] = {}
    for column in columns.columns:
        if column.kind == "text":
            found[column.name] = next(iter(column.levels), "text")
        elif column.kind == "number":
            found[column.name] = _short(column.fill)
        else:
            found[column.name] = EXAMPLES[column.kind]
    return found


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def csv_example(served: Served) -> str:
    import polars as pl

    return pl.DataFrame([example(served)]).write_csv()
