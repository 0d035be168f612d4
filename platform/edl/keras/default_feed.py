"""The ``feed`` of a model module that defines none, as ``data.schema`` of the job describes it.

Rows of a table and records of ``tf.train.Example`` are parsed by ``table_feed``, images by ``image_feed``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from edl.api.job_spec import SchemaSpec
from edl.keras.feed_schema import ModelInput, SchemaFeed
from edl.keras.image_feed import decoding_threads, explain_bad_image, make_image_parser, make_minibatch_parser
from edl.keras.table_feed import explain_bad_record, make_table_parser


class DefaultFeed(SchemaFeed):
    """``feed(dataset, mode, metadata)`` for a schema.

    Args:
        schema: of the job.
        model: the model, whose inputs are read now: the feed is traced, and no model can be made in a graph.
        origin: a function of the user's module, for the places in messages.
    """

    def __init__(self, schema: SchemaSpec, model: Any, origin: Callable[..., Any]) -> None:
        self._schema = schema
        self._inputs = read_inputs(model)
        # messages about feed name the user's module; its arguments stay those of the contract
        self.__wrapped__ = origin
        self.__signature__ = inspect.signature(self.__call__)

    def __call__(self, dataset: Any, mode: str, metadata: Any) -> Any:
        threads = None
        if metadata.format == "images":
            parse = make_image_parser(self._schema, self._inputs, metadata.class_names, mode)
            threads = decoding_threads()
        else:
            parse = _parse_one(make_table_parser(self._schema, self._inputs, metadata, dataset.element_spec, mode))
        if mode == "prediction":
            return dataset.map(lambda record: parse(record)[0], num_parallel_calls=threads)
        return dataset.map(parse, num_parallel_calls=threads)

    def feed_minibatch(self, records: Any, mode: str, metadata: Any) -> Any:
        if metadata.format == "images" or _has_lists(records):
            return None
        features, labels = make_table_parser(self._schema, self._inputs, metadata, records, mode)(records)
        return features if mode == "prediction" else (features, labels)

    def without_graph(self, mode: str, metadata: Any) -> Callable[[Any], Any] | None:
        if metadata.format != "images":
            return None
        return make_minibatch_parser(self._schema, self._inputs, metadata.class_names, mode)

    def windows_at_once(self, metadata: Any) -> int:
        # Of one minibatch, threads wait for the last image while nothing is read and no other one is decoded.
        return 2 if metadata.format == "images" and decoding_threads() else 1

    def explain_bad_record(self, record: Any, mode: str, metadata: Any) -> tuple[str, str] | None:
        if metadata.format == "images":
            return explain_bad_image(record, mode)
        fault = explain_bad_record(self._schema, self._inputs, record, metadata)
        return None if fault is None else (fault, "mend the data, or leave the column out of data.schema.features")


def _parse_one(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A parser of minibatches as one of single records."""

    def parse_one(record: Any) -> Any:
        made = parse(tf.nest.map_structure(lambda part: tf.expand_dims(part, 0), record))
        return tf.nest.map_structure(_first, made)

    return parse_one


def _first(part: Any) -> Any:
    """The first record. Lists of lists become a tensor, as ``train.batches.pad`` pads these."""
    record = None if part is None else part[0]
    return record.to_tensor() if isinstance(record, tf.RaggedTensor) else record


def _has_lists(records: Any) -> bool:
    """Whether a column has lists of different lengths, which ``train.batches.pad`` may have to make equal."""
    return isinstance(records, dict) and any(isinstance(column, tf.RaggedTensor) for column in records.values())


def read_inputs(model: Any) -> Mapping[str, ModelInput]:
    """The declared inputs of a model by name; none of a subclass, or of a Sequential without Input."""
    try:
        declared = list(model.inputs or ())
    except (AttributeError, ValueError):
        return {}
    return {each.name: ModelInput(tf.as_dtype(each.dtype), tuple(each.shape[1:])) for each in declared}
