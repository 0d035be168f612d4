"""The ``feed`` of a model module that defines none, as ``data.schema`` of the job describes it.

Rows of a table and records of ``tf.train.Example`` are parsed by ``table_feed``, images by ``image_feed``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from edl.api.job_spec import SchemaSpec
from edl.keras.feed_schema import ModelInput
from edl.keras.image_feed import make_image_parser
from edl.keras.table_feed import explain_bad_record, make_table_parser


def make_default_feed(schema: SchemaSpec, model: Any, origin: Callable[..., Any]) -> Callable[..., Any]:
    """``feed(dataset, mode, metadata)`` for a schema.

    Args:
        schema: of the job.
        model: the model, whose inputs are read now: ``feed`` is traced, and no model can be made in a graph.
        origin: a function of the user's module, for the places in messages.
    """
    inputs = read_inputs(model)

    def feed(dataset: Any, mode: str, metadata: Any) -> Any:
        if metadata.format == "images":
            parse = make_image_parser(schema, inputs, metadata.class_names, mode)
        else:
            parse = make_table_parser(schema, inputs, metadata, dataset.element_spec, mode)
        if mode == "prediction":
            return dataset.map(lambda record: parse(record)[0])
        return dataset.map(parse)

    # messages about feed name the user's module; its arguments stay those of the contract
    feed.__signature__ = inspect.signature(feed)  # type: ignore[attr-defined]
    feed.__wrapped__ = origin  # type: ignore[attr-defined]
    feed.explain_bad_record = lambda record, metadata: explain_bad_record(  # type: ignore[attr-defined]
        schema, inputs, record, metadata
    )
    return feed


def read_inputs(model: Any) -> Mapping[str, ModelInput]:
    """The declared inputs of a model by name; none of a subclass, or of a Sequential without Input."""
    try:
        declared = list(model.inputs or ())
    except (AttributeError, ValueError):
        return {}
    return {each.name: ModelInput(tf.as_dtype(each.dtype), tuple(each.shape[1:])) for each in declared}
