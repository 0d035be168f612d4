"""The kernels of the native table: NumPy's bits on every instruction set, Keras' numbers, the reference's."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numerics.dense_problem import DIM, ROWS, TABLE, DenseProblem, close, rates
from numerics.lazy_reference import LazyReference
from numerics.optimizer_cases import CASES
from support.repetition import repetition, repetitions
from support.table_contract import PATIENT, array, declared

from edl.api.errors import BadInputError
from edl.api.tables import TableSpec
from edl.api.variables import VariableSpec
from edl.numerics.initializers import initial_rows
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.numpy_table import NumpyTable
from edl.numerics.optimizer_spec import OPTIMIZER_DEFINITIONS, OptimizerSpec
from edl.numerics.optimizers import make_rule
from edl.numerics.parameter_store import FlatParameters, PushGradients

if importlib.util.find_spec("edl.numerics._native") is not None:
    from edl.numerics.native_table import NATIVE_OPTIMIZERS, NativeTable, make_flat_rule

pytestmark = pytest.mark.native
SERVED = {name: spec for name, spec in CASES.items() if spec.name != "lamb"}
ISAS = ("baseline", "avx2", "avx512")
RANDOM = [
    {"name": "uniform", "minval": -0.05, "maxval": 0.05},
    {"name": "normal", "mean": 0.1, "stddev": 0.7},
    {"name": "truncated_normal", "mean": 0.1, "stddev": 0.7},
]


@pytest.fixture(params=SERVED)
def spec(request) -> OptimizerSpec:
    return SERVED[request.param]


def natives(table: TableSpec, spec: OptimizerSpec) -> Iterator[NativeTable]:
    """One for each instruction set of this processor."""
    for isa in ISAS:
        try:
            yield NativeTable(table, spec, isa=isa)
        except ValueError:
            continue


def same_bits(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("dim", [5, *repetitions([8, 32, 64]), 16])
@pytest.mark.first_cases(26)
def test_two_hundred_steps_have_the_bits_of_numpy(spec, dim):
    """Values that are no round numbers, ids that do not repeat within a push: no sum leaves its order open."""
    random = np.random.default_rng(8)
    shape = declared({"name": "normal", "mean": 0.0, "stddev": 0.05}, dim=dim)
    numpy = NumpyTable(shape, spec.slot_starts, make_rule(spec, spec.weight_decay_for(shape.name)))
    tables = [*natives(shape, spec), numpy]
    for step in range(1, 201):
        ids = array(random.permutation(shape.rows)[:100])
        gradients = random.standard_normal((100, dim)).astype(np.float32)
        gradients[:10] = 0
        for table in tables:
            table.apply_gradients(ids, gradients, 0.03 / step if step != 7 else 0.0, step)
    expected = numpy.take_snapshot().read_all()
    for table in tables[:-1]:
        native_rows = table.take_snapshot().read_all()
        in_order = expected.select_rows(expected.find_positions(native_rows.ids))
        same_bits(native_rows.values, in_order.values)
        for name, slot in native_rows.slots.items():
            same_bits(slot, in_order.slots[name])


@st.composite
def specs(draw: st.DrawFn) -> OptimizerSpec:
    """Any optimizer with a kernel, and any hyperparameters."""
    name = draw(st.sampled_from(sorted({spec.name for spec in SERVED.values()})))
    small, fractions = st.floats(1e-6, 10), st.floats(0, 0.999)
    kinds = {
        key: st.booleans()
        if parameter.bound is None
        else st.one_of(st.just(0.0), small.map(lambda value: -value))
        if parameter.describe_violation(-1.0) is None
        else st.one_of(
            st.just(parameter.default), st.just(0.0), fractions if parameter.describe_violation(2.0) else small
        )
        for key, parameter in OPTIMIZER_DEFINITIONS[name].parameters.items()
    }
    return OptimizerSpec(name, draw(st.fixed_dictionaries(kinds)))


numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
pushes = st.lists(
    st.tuples(st.floats(0, 4), st.lists(numbers, min_size=3 * DIM, max_size=3 * DIM)), min_size=1, max_size=5
)


@PATIENT
@given(specs(), pushes)
def test_whatever_the_hyperparameters_and_gradients_the_bits_are_those_of_numpy(spec, pushes):
    """Overflow included: where NumPy has infinity or no number, so has the kernel."""
    shape, ids = declared(), array([5, 17, 2])
    numpy = NumpyTable(shape, spec.slot_starts, make_rule(spec, spec.weight_decay_for(shape.name)))
    tables = [*natives(shape, spec), numpy]
    for step, (rate, gradients) in enumerate(pushes, start=1):
        with np.errstate(all="ignore"):
            for table in tables:
                table.apply_gradients(ids, np.array(gradients, np.float32).reshape(3, DIM), rate, step)
    for table in tables[:-1]:
        np.testing.assert_array_equal(table.read(ids), numpy.read(ids))


@pytest.mark.parametrize("size", [0, 1, 7, 1279, 1280, 1281, 5000])
def test_dense_parameters_have_the_bits_of_numpy_however_many_they_are(spec, size):
    """Those of a table of one row, and of the rule in NumPy; 1,280 are moved at a time."""
    random = np.random.default_rng(9)
    declaration = ModelDeclaration((VariableSpec("w", (size,)), VariableSpec("mean", (3,), True)), (), spec, "model")
    numpy, native = (
        FlatParameters(declaration, np.ones(size + 3, np.float32), make) for make in (make_rule, make_flat_rule)
    )
    for step in range(1, 21):
        gradient = random.standard_normal(size + 3).astype(np.float32)
        push = PushGradients(gradient, {}, 0.03 / step if step != 7 else 0.0, 0.5)
        for slab in (numpy, native):
            slab.apply_gradients(push, step)
    same_bits(native.values, numpy.values)
    for name, slot in numpy.slots.items():
        same_bits(native.slots[name], slot)


def test_a_group_lasso_finds_the_rows_of_dense_embeddings():
    spec = OptimizerSpec("ftrl", {"group_lasso_regularization_strength": 5.0})
    shapes = (VariableSpec("emb/embeddings", (40, 4)), VariableSpec("w", (9,)))
    declaration = ModelDeclaration(shapes, (), spec, "model")
    numpy, native = (
        FlatParameters(declaration, np.ones(169, np.float32), make) for make in (make_rule, make_flat_rule)
    )
    gradient = np.random.default_rng(10).standard_normal(169).astype(np.float32)
    for slab in (numpy, native):
        slab.apply_gradients(PushGradients(gradient, {}, 0.1, 1.0), 1)
    moved = numpy.values[:160].reshape(40, 4).any(axis=1)
    assert moved.any()
    assert not moved.all(), "rows whose pull is short are zero"
    same_bits(native.values, numpy.values)


# Each optimizer once. Its options move NumPy's rows as in Keras, and these rows have NumPy's bits.
@pytest.mark.tensorflow
@pytest.mark.parametrize("spec", [repetition(name) if "," in name else name for name in SERVED], indirect=True)
@pytest.mark.first_cases(2)
def test_where_every_row_is_touched_rows_move_as_in_keras(spec):
    problem = DenseProblem(spec, np.random.default_rng(11))
    close(problem.rows_of(NativeTable(TABLE, spec)), problem.in_keras()[-1])


def test_sparse_access_equals_a_float64_reference_in_which_untouched_rows_stand_still(spec):
    random, table = np.random.default_rng(12), NativeTable(TABLE, spec)
    reference = LazyReference(spec, table.read(np.arange(ROWS)))
    for step, rate in enumerate(rates(), start=1):
        ids = np.minimum(random.zipf(1.5, 6) - 1, ROWS - 1)
        gradients = random.normal(size=(6, DIM)).astype(np.float32)
        table.apply_gradients(ids, gradients, rate, step)
        reference.apply(ids, gradients, rate, step)
    close(table.read(np.arange(ROWS)), reference.values)


@pytest.mark.parametrize("initializer", RANDOM, ids=lambda initializer: initializer["name"])
@pytest.mark.parametrize("dim", [1, 7, 8, 16, 33])
def test_initial_values_have_the_bits_of_numpy(initializer, dim):
    shape = declared(initializer, dim=dim)
    ids = array(np.random.default_rng(2).integers(-(2**63), 2**63 - 1, 1000))
    for table in natives(shape, CASES["sgd"]):
        same_bits(table.read(ids), initial_rows(initializer, shape.seed, ids, dim))


def test_weight_decay_spares_the_tables_that_the_optimizer_names():
    spec = OptimizerSpec("rmsprop", {"weight_decay": 0.5}, (TABLE.name,))
    spared, plain = (NativeTable(TABLE, optimizer) for optimizer in (spec, OptimizerSpec("rmsprop")))
    for table in (spared, plain):
        table.apply_gradients(np.arange(ROWS), np.ones((ROWS, DIM), np.float32), 0.1, 1)
    same_bits(spared.read(np.arange(ROWS)), plain.read(np.arange(ROWS)))


def test_an_optimizer_without_a_kernel_is_refused_by_name():
    with pytest.raises(BadInputError, match="'lamb' has no native kernel") as refused:
        NativeTable(TABLE, OptimizerSpec("lamb"))
    assert all(name in str(refused.value.hint) for name in NATIVE_OPTIMIZERS)


def test_every_other_optimizer_has_one():
    assert set(NATIVE_OPTIMIZERS) == {spec.name for spec in SERVED.values()}
