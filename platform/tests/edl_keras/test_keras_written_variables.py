"""Which variables and tables a graph writes: lookups read their table, what is unknown counts as a write."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

pytestmark = pytest.mark.tensorflow

import tensorflow as tf  # noqa: E402

from edl.keras.written_variables import find_written_variables  # noqa: E402


@cache
def read() -> Any:
    with tf.init_scope():
        return tf.Variable(2.0)


@cache
def written() -> Any:
    with tf.init_scope():
        return tf.Variable(0.0)


@cache
def table() -> Any:
    with tf.init_scope():
        return tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)


def look_up(words: Any) -> Any:
    return table().lookup(words) + tf.cast(read(), tf.int64) + tf.cast(table().size(), tf.int64)


def count(words: Any) -> Any:
    written().assign_add(read())
    return look_up(words)


def insert(words: Any) -> Any:
    table().insert(words, tf.ones_like(look_up(words)))
    return look_up(words)


def directly(function: Callable[[Any], Any], words: Any) -> Any:
    return function(words)


def in_a_function(function: Callable[[Any], Any], words: Any) -> Any:
    return tf.function(lambda given: tf.function(function, autograph=False)(given), autograph=False)(words)


def in_a_condition(function: Callable[[Any], Any], words: Any) -> Any:
    return tf.cond(tf.size(words) > 1, lambda: look_up(words) + 1, lambda: function(words))


def in_a_switch(function: Callable[[Any], Any], words: Any) -> Any:
    return tf.switch_case(tf.size(words), [lambda: function(words), lambda: look_up(words)])


def in_a_loop(function: Callable[[Any], Any], words: Any) -> Any:
    return tf.map_fn(function, words, fn_output_signature=tf.int64)


def in_a_condition_of_a_loop(function: Callable[[Any], Any], words: Any) -> Any:
    return in_a_loop(lambda word: in_a_condition(function, word), words)


PLACES = [directly, in_a_function, in_a_condition, in_a_switch, in_a_loop, in_a_condition_of_a_loop]


def find_in(function: Callable[[Any], Any]) -> set[int]:
    traced = tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec([None], tf.string))
    return {handle for _, handle in find_written_variables(traced.graph)}


@pytest.mark.parametrize("place", PLACES)
def test_a_lookup_only_reads_its_table(place: Callable[..., Any]) -> None:
    assert find_in(lambda words: place(look_up, words)) == set()


@pytest.mark.parametrize("place", PLACES)
def test_writes_are_found_wherever_they_stand(place: Callable[..., Any]) -> None:
    assert find_in(lambda words: place(count, words)) == {id(written().handle)}
    assert find_in(lambda words: place(insert, words)) == {id(table().resource_handle)}


def test_an_operation_that_is_not_known_to_read_counts_as_a_write() -> None:
    def function(words: Any) -> Any:
        with tf.control_dependencies(
            [tf.raw_ops.LookupTableRemoveV2(table_handle=table().resource_handle, keys=words)]
        ):
            return words

    assert find_in(function) == {id(table().resource_handle)}
