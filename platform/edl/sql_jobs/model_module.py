"""Writes the Keras module of a plan, as a person would write it: constants first, then the functions of the contract.

Preprocessing is part of the model, which takes the columns as they are. Numbers of a kind are one layer, so that a
table with thousands of columns does not make thousands of layers. The model of a wide table trains on matrices, and
``serving_model`` makes the exported one, which takes the columns one by one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from edl.sql_jobs.column_plan import ColumnPlan, ColumnUse, FeaturePlan, IdSource, LabelKind
from edl.sql_jobs.model_inputs import NUMBER, ModelInputs, form_of
from edl.sql_jobs.user_module import COLUMNS_MODULE

_LONG_VOCABULARY = 32
"""Words up to which a vocabulary stands in the module; longer ones are in a file beside it."""
VOCABULARY_FILE = "vocabularies.json"


@dataclass(frozen=True, slots=True)
class Optimizer:
    """A class of ``keras.optimizers`` and its arguments."""

    name: str
    arguments: Mapping[str, object]


@dataclass
class _ModuleParts:
    """What the head of a module and its helpers need, collected while functions are written.

    ``names`` are those of the inputs.
    """

    names: Mapping[tuple[str, str], str]
    has_matrices: bool = False
    constants: dict[str, dict[str, object]] = field(default_factory=dict)
    lists: dict[str, list[str]] = field(default_factory=dict)
    vocabularies: dict[str, Sequence[str]] = field(default_factory=dict)
    helpers: set[str] = field(default_factory=set)

    def add_constant(self, table: str, name: str, value: object, vocabulary: Sequence[str] = ()) -> str:
        """Add what a column has to a table of constants; returns the name of the table, a new one if need be.

        ``COLUMN`` may name a column several times: what differs from an entry goes into a further table, such as
        ``RANGES_2``, and into a further entry of the vocabularies.
        """
        number = 1
        while True:
            chosen = table if number == 1 else f"{table}_{number}"
            entries, key = self.constants.get(chosen, {}), _vocabulary_key(name, number)
            has_other_words = bool(vocabulary) and self.vocabularies.get(key, vocabulary) != vocabulary
            if entries.get(name, value) == value and not has_other_words:
                break
            number += 1
        self.constants.setdefault(chosen, {})[name] = value
        if vocabulary:
            self.vocabularies[key] = vocabulary
        return chosen

    def list_name(self, table: str, name: str) -> None:
        names = self.lists.setdefault(table, [])
        if name not in names:
            names.append(name)


def _vocabulary_key(name: str, number: int) -> str:
    """Names of inputs have no space."""
    return name if number == 1 else f"{name} {number}"


def _split_table(table: str) -> tuple[str, int]:
    """The name of a table without its number, and the number: ``RANGES_2`` is the second one of ``RANGES``."""
    numbered = re.fullmatch(r"(\w+?)_(\d+)", table)
    return (table, 1) if numbered is None else (numbered[1], int(numbered[2]))


def write_module(
    plan: ColumnPlan, inputs: ModelInputs, estimator: str, optimizer: Optimizer, patience: int, query: str
) -> dict[str, str]:
    """The module and the files that it reads, by name.

    Args:
        plan: of the columns.
        inputs: of the model.
        estimator: ``dnn``, ``wide_and_deep``, ``deepfm`` or ``linear``.
        optimizer: that trains it.
        patience: evaluations without improvement after which training ends.
        query: for the module's description.
    """
    parts = _ModuleParts(inputs.names(), bool(inputs.matrices()))
    deep = [each for each in plan.used if each.part in ("", "deep")]
    functions = [_encode_function("encode", deep, parts, one_by_one=estimator == "deepfm")]
    if estimator == "wide_and_deep":
        wide = [each for each in plan.used if each.part in ("", "wide")]
        functions.append(_encode_function("encode_wide", wide, parts, is_wide=True))
    helpers = _HELPERS | (_MATRIX_HELPERS if parts.has_matrices else {})
    head = "\n\n".join((_description(plan, query), _imports(parts), _constants(plan, inputs, parts)))
    body = [
        head,
        *(helpers[name] for name in helpers if name in parts.helpers),
        *functions,
        _MODELS.get(estimator, _parts_of_a_model)(plan, _given_line(inputs)),
        *([_serving_model()] if parts.has_matrices else []),
        _training(plan, optimizer, patience),
    ]
    name = "model.py" if estimator in _MODELS else f"{COLUMNS_MODULE}.py"
    files = {name: "\n\n\n".join(part.strip("\n") for part in body) + "\n"}
    if parts.vocabularies:
        lines = (f"  {json.dumps(name)}: {json.dumps(list(words))}" for name, words in parts.vocabularies.items())
        files[VOCABULARY_FILE] = "{\n" + ",\n".join(lines) + "\n}\n"
    return files


def _description(plan: ColumnPlan, query: str) -> str:
    what = {
        LabelKind.BINARY: "whether {label} is {last}: a probability",
        LabelKind.CLASSES: "the class of {label}: a probability each",
        LabelKind.NUMBER: "{label}, a number",
    }[plan.label.kind].format(label=plan.label.name, last=(plan.label.classes or ("",))[-1])
    text = f"Predicts {what}.\n\nWritten by `edl sql` for the rows of:\n\n{query.strip()}\n"
    return '"""' + text.replace("\\", "\\\\").replace('"""', r"\"\"\"") + '"""'


def _imports(parts: _ModuleParts) -> str:
    lines = []
    if parts.vocabularies:
        lines.append("import json")
    if "date_parts" in parts.helpers:
        lines.append("import math")
    if parts.vocabularies:
        lines.append("from pathlib import Path")
    if lines:
        lines.append("")
    uses_ops = parts.helpers & {"known", "date_parts"} or "MISSING" in parts.lists or "LOGARITHMS" in parts.constants
    uses_ops = uses_ops or parts.has_matrices
    return "\n".join(
        [*lines, "import keras", "from keras import layers, ops" if uses_ops else "from keras import layers"]
    )


_DOCS = {
    "COLUMNS": "All columns that the model takes. A missing number is NaN, a missing text is empty; times are days "
    "since 1970.",
    "MATRICES": "What the model takes while it trains: columns side by side. Thousands of inputs would cost time in "
    "each step.",
    "PLACES": "The matrix of each column, and its place there.",
    "NUMBERS": "Mean and standard deviation of the columns that are scaled.",
    "LOGARITHMS": "Mean and standard deviation of log(1 + x), for columns with few high values.",
    "FLAGS": "Columns of 0 and 1.",
    "DATES": "Days since 1970.",
    "MISSING": "Columns whose missing values are an input of their own.",
    "WORDS": "Columns with one input for each of these values, and one for all others.",
    "VECTORS": "Columns with a vector for each value of their vocabulary, and the size of the vector.",
    "HASHED": "Columns of many values: the number of hashes, and the size of the vector for each.",
    "HASHED_WORDS": "Columns with one input for each hash, and the number of hashes.",
    "TEXTS": "Columns of language: the size of a word's vector.",
    "RANGES": "Columns with one input for each range between these boundaries.",
    "RANGE_VECTORS": "Boundaries of ranges, and the size of the vector for each range.",
    "IDS": "Columns of whole numbers from 0: the number of inputs.",
    "ID_VECTORS": "Columns of whole numbers from 0: how many there are, and the size of the vector for each.",
}


def _constants(plan: ColumnPlan, inputs: ModelInputs, parts: _ModuleParts) -> str:
    texts = [_table("COLUMNS", {each.name: each.dtype for each in inputs.inputs})]
    if parts.has_matrices:
        dtypes = {each.matrix: each.dtype for each in inputs.inputs}
        lists = (
            f'    "{name}": [name for name, dtype in COLUMNS.items() if dtype == "{dtypes[name]}"],\n'
            for name in inputs.matrices()
        )
        texts.append(f"MATRICES = {{\n{''.join(lists)}}}\n{_doc('MATRICES')}")
        texts.append(
            "PLACES = {name: (matrix, at) for matrix, names in MATRICES.items() for at, name in enumerate(names)}\n"
            + _doc("PLACES")
        )
    for name in _DOCS:
        texts += [_table(table, parts.constants[table]) for table in parts.constants if _split_table(table)[0] == name]
        if name in parts.lists:
            texts.append(f"{name} = {_tuple(parts.lists[name])}\n{_doc(name)}")
    if plan.label.classes:
        texts.append(
            f"CLASSES = {_tuple(plan.label.classes)}\n" + '"""Values of the label, in the order of their numbers."""'
        )
    texts.append(f"OUTPUTS = {'len(CLASSES)' if plan.label.kind is LabelKind.CLASSES else 1}")
    if plan.label.kind is LabelKind.NUMBER:
        facts = plan.label.facts
        texts.append(f"MEAN, DEVIATION = {facts.mean:.7g}, {facts.deviation:.7g}\n" + '"""Of the label."""')
    if parts.vocabularies:
        read = f'json.loads(Path(__file__).with_name("{VOCABULARY_FILE}").read_text(encoding="utf-8"))'
        texts.append(f"VOCABULARIES = {read}\n" + '"""Known values, or words, of columns with many."""')
    return "\n".join(texts)


def _table(name: str, entries: Mapping[str, object]) -> str:
    lines = "".join(f"    {_text(key)}: {_value(value)},\n" for key, value in entries.items())
    return f"{name} = {{\n{lines}}}\n{_doc(_split_table(name)[0])}"


def _doc(name: str) -> str:
    return f'"""{_DOCS[name]}"""'


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return _tuple(value)
    return _text(value) if isinstance(value, str) else f"{value:.7g}" if isinstance(value, float) else repr(value)


def _tuple(values: Sequence[object]) -> str:
    return f"({', '.join(map(_value, values))}{',' if len(values) == 1 else ''})"


def _text(value: str) -> str:
    """In double quotes, with escapes for all that could end it."""
    return json.dumps(value, ensure_ascii=False) if value.isprintable() else json.dumps(value)


# --------------------------------------------------------------------------------------------------
# Features.


def _encode_function(
    name: str,
    features: Sequence[FeaturePlan],
    parts: _ModuleParts,
    *,
    is_wide: bool = False,
    one_by_one: bool = False,
) -> str:
    """A function that returns a list of ``[rows, n]`` tensors.

    Args:
        is_wide: a category has a weight for each output, and no longer vector.
        one_by_one: each column is a tensor of its own.
    """
    groups: dict[str, list[str]] = {}
    lines = list[str]()
    for feature in features:
        _enter_feature(feature, parts, groups, lines, is_wide=is_wide)
    # Without FOR, a table has the columns of all functions.
    has_parts = any(each.part for each in features)
    written = list[str]()
    for group, names in groups.items():
        table = _tuple(names) if has_parts else group
        if one_by_one and group in _NUMERIC_GROUPS:
            written += [_group_line(group, _tuple([each]), parts) for each in names]
        else:
            written.append(_group_line(group, table, parts, is_wide=is_wide))
    doc = "All columns as numbers, for the linear part." if is_wide else "All columns as numbers."
    body = "".join(f"        {line},\n" for line in (*written, *lines))
    return f'def {name}(given):\n    """{doc}"""\n    return [\n{body}    ]'


_NUMERIC_GROUPS = ("NUMBERS", "LOGARITHMS", "FLAGS", "DATES", "MISSING")


def _enter_feature(
    feature: FeaturePlan,
    parts: _ModuleParts,
    groups: dict[str, list[str]],
    lines: list[str],
    *,
    is_wide: bool,
) -> None:
    """Turn a column into a layer: an entry of the group whose layer takes it, or a line of its own for a cross."""
    facts = feature.facts
    if feature.ids is IdSource.CROSS:
        lines.append(_cross_line(feature, parts, is_wide=is_wide))
        return
    name = parts.names[facts.name, form_of(feature)]

    def group(table: str, value: object = None, vocabulary: Sequence[str] = ()) -> None:
        if value is None:
            parts.list_name(table, name)
        else:
            table = parts.add_constant(table, name, value, vocabulary)
        groups.setdefault(table, []).append(name)

    # A date enters twice: as a number for its trend, and by its parts for what repeats.
    if feature.use in (ColumnUse.NUMBER, ColumnUse.DATE):
        group("NUMBERS", (facts.mean, facts.deviation))
    if feature.use is ColumnUse.DATE:
        group("DATES")
    elif feature.use is ColumnUse.LOG_NUMBER:
        group("LOGARITHMS", (facts.log_mean, facts.log_deviation))
    elif feature.use is ColumnUse.BOOLEAN:
        group("FLAGS")
    elif feature.use is ColumnUse.TEXT:
        group("TEXTS", feature.dimension, feature.vocabulary)
    elif feature.ids is not None:
        _enter_category(feature, group)
    if feature.has_indicator and form_of(feature) == NUMBER:
        group("MISSING")


def _enter_category(feature: FeaturePlan, group: Callable[..., None]) -> None:
    """Choose the group of a category by where its ids come from, and by whether it has a vector (``dimension`` > 0)."""
    size = feature.dimension
    if feature.ids is IdSource.VOCABULARY:
        # A long list of words would hide the rest of the module from its readers, so it goes to a file beside it.
        if not size and len(feature.vocabulary) <= _LONG_VOCABULARY + 1:
            group("WORDS", feature.vocabulary)
            return
        group("VECTORS", size, feature.vocabulary)  # 0: one-hot
    elif feature.ids is IdSource.HASH:
        group(*(("HASHED", (feature.bins, size)) if size else ("HASHED_WORDS", feature.bins)))
    elif feature.ids is IdSource.RANGES:
        bounds = feature.boundaries[0]
        group(*(("RANGE_VECTORS", (bounds, size)) if size else ("RANGES", bounds)))
    else:
        group(*(("ID_VECTORS", (feature.bins, size)) if size else ("IDS", feature.bins)))


def _group_line(group: str, names: str, parts: _ModuleParts, *, is_wide: bool = False) -> str:
    """An expression for all columns of a group."""
    base, number = _split_table(group)
    parts.helpers |= _NEEDED[base]
    if parts.has_matrices and "join" not in _NEEDED[base]:
        parts.helpers |= {"column"}
    at = f"for name in {names}"
    size = "OUTPUTS" if is_wide else "size"
    moments = f"{group}.values()" if names == group else f"[{group}[name] {at}]"
    one = "column(given, name)" if parts.has_matrices else "given[name]"
    line = {
        "NUMBERS": f"scaled(join(given, {names}), {moments})",
        "LOGARITHMS": f"scaled(ops.log1p(ops.maximum(join(given, {names}), 0.0)), {moments})",
        "FLAGS": f"known(join(given, {names}))",
        "DATES": f"date_parts(join(given, {names}))",
        "MISSING": f'ops.cast(ops.isnan(join(given, {names})), "float32")',
        "WORDS": f'*[layers.StringLookup(vocabulary=WORDS[name], output_mode="one_hot")({one}) {at}]',
        "VECTORS": f"*[look_up({one}, VOCABULARIES[name], {'OUTPUTS' if is_wide else 'VECTORS[name]'}) {at}]",
        "HASHED": f"*[hashed({one}, HASHED[name][0], {'OUTPUTS' if is_wide else 'HASHED[name][1]'}) {at}]",
        "HASHED_WORDS": f'*[layers.Hashing(HASHED_WORDS[name], output_mode="one_hot")({one}) {at}]',
        "TEXTS": f"*[words({one}, VOCABULARIES[name], {'OUTPUTS' if is_wide else 'TEXTS[name]'}) {at}]",
        "RANGES": f'*[layers.Discretization(RANGES[name], output_mode="one_hot")(known({one})) {at}]',
        "RANGE_VECTORS": f"*[range_vectors({one}, RANGE_VECTORS[name][0], "
        f"{size if is_wide else 'RANGE_VECTORS[name][1]'}) {at}]",
        "IDS": f'*[layers.CategoryEncoding(IDS[name], output_mode="one_hot")(ids({one}, IDS[name])) {at}]',
        "ID_VECTORS": f"*[embed(ids({one}, ID_VECTORS[name][0]), ID_VECTORS[name][0], "
        f"{size if is_wide else 'ID_VECTORS[name][1]'}) {at}]",
    }[base]
    if number == 1:
        return line
    key = f'VOCABULARIES[f"{_vocabulary_key("{name}", number)}"]'
    return line.replace("VOCABULARIES[name]", key).replace(f"{base}[name]", f"{group}[name]")


def _cross_line(feature: FeaturePlan, parts: _ModuleParts, *, is_wide: bool) -> str:
    crossed = []
    for number, facts in enumerate(feature.columns):
        name = parts.names[facts.name, form_of(feature, number)]
        parts.helpers |= {"column"} if parts.has_matrices else set()
        given = f"column(given, {_text(name)})" if parts.has_matrices else f"given[{_text(name)}]"
        if feature.boundaries[number]:
            parts.helpers.add("known")
            given = f"layers.Discretization({list(feature.boundaries[number])})(known({given}))"
        crossed.append(given)
    both = f"({', '.join(crossed)})"
    if not feature.dimension:
        return f'layers.HashedCrossing({feature.bins}, output_mode="one_hot")({both})'
    parts.helpers |= {"embed"}
    size = "OUTPUTS" if is_wide else feature.dimension
    return f"embed(layers.HashedCrossing({feature.bins})({both}), {feature.bins}, {size})"


_NEEDED: Mapping[str, set[str]] = {
    "NUMBERS": {"join", "known", "scaled"},
    "LOGARITHMS": {"join", "known", "scaled"},
    "FLAGS": {"join", "known"},
    "DATES": {"join", "known", "date_parts"},
    "MISSING": {"join"},
    "WORDS": set(),
    "VECTORS": {"embed", "look_up"},
    "HASHED": {"embed", "hashed"},
    "HASHED_WORDS": set(),
    "TEXTS": {"words"},
    "RANGES": {"known"},
    "RANGE_VECTORS": {"known", "embed", "range_vectors"},
    "IDS": {"known", "ids"},
    "ID_VECTORS": {"known", "ids", "embed"},
}
_HELPERS = {
    "join": '''
def join(given, names):
    """Columns side by side."""
    return layers.Concatenate()([given[name] for name in names])
''',
    "known": '''
def known(values):
    """Missing values become 0: of scaled numbers, the mean."""
    return ops.where(ops.isnan(values), 0.0, values)
''',
    "scaled": '''
def scaled(values, moments):
    """Mean 0 and deviation 1; a missing value becomes the mean."""
    means, deviations = zip(*moments, strict=True)
    return known(layers.Normalization(mean=means, variance=[each**2 for each in deviations])(values))
''',
    "date_parts": '''
def date_parts(days):
    """Where in the year, in the week and in the day times are, as angles."""
    turns = known(layers.Concatenate()([days / 365.2425, days / 7.0, days]))
    angles = 2.0 * math.pi * (turns - ops.floor(turns))
    return layers.Concatenate()([ops.sin(angles), ops.cos(angles)])
''',
    "embed": '''
def embed(ids, count, size):
    """A vector for each id."""
    return layers.Flatten()(layers.Embedding(count, size)(ids))
''',
    "look_up": '''
def look_up(values, vocabulary, size):
    """A vector for each value of the vocabulary, and one for all others; size 0: one input each."""
    if not size:
        return layers.StringLookup(vocabulary=vocabulary, output_mode="one_hot")(values)
    return embed(layers.StringLookup(vocabulary=vocabulary)(values), len(vocabulary) + 1, size)
''',
    "hashed": '''
def hashed(values, bins, size):
    """A vector for each hash."""
    return embed(layers.Hashing(bins)(values), bins, size)
''',
    "words": '''
def words(texts, vocabulary, size):
    """The sum of the vectors of the words that a text has."""
    found = layers.TextVectorization(vocabulary=vocabulary, output_mode="multi_hot")(texts)
    return layers.Dense(size, use_bias=False)(layers.Flatten()(found))
''',
    "range_vectors": '''
def range_vectors(values, boundaries, size):
    """A vector for each range."""
    return embed(layers.Discretization(boundaries)(known(values)), len(boundaries) + 1, size)
''',
    "ids": '''
def ids(values, count):
    """Whole numbers below count."""
    return ops.cast(ops.clip(known(values), 0.0, count - 1.0), "int32")
''',
}
_MATRIX_HELPERS = {
    "join": '''
def join(given, names):
    """Columns side by side, of their matrix."""
    matrix = PLACES[next(iter(names))][0]
    if list(names) == MATRICES[matrix]:
        return given[matrix]
    return ops.take(given[matrix], [PLACES[name][1] for name in names], axis=1)
''',
    "column": '''
def column(given, name):
    """One column of its matrix."""
    matrix, at = PLACES[name]
    return given[matrix][:, at : at + 1]
''',
}
"""In the module of a wide table."""

# --------------------------------------------------------------------------------------------------
# Models.


def _output(plan: ColumnPlan, logits: str) -> str:
    """The last layers, after a tensor or a sum of such."""
    if plan.label.kind is LabelKind.NUMBER:
        return f"layers.Rescaling(DEVIATION, MEAN)({logits})"
    activation = "sigmoid" if plan.label.kind is LabelKind.BINARY else "softmax"
    return f'layers.Activation("{activation}")({logits})'


_COLUMNS_GIVEN = "    given = {name: keras.Input([1], dtype=dtype, name=name) for name, dtype in COLUMNS.items()}\n"
_MATRICES_GIVEN = (
    "    given = {\n        name: keras.Input([len(names)], dtype=COLUMNS[names[0]], name=name)\n"
    "        for name, names in MATRICES.items()\n    }\n"
)


def _hidden(further: str = "") -> str:
    """The hidden layers. ``further``: arguments of each ``Dense``."""
    return (
        "    for units in hidden:\n"
        f'        x = layers.Dense(units, activation="relu"{further})(x)\n'
        "        x = layers.Dropout(dropout)(x)\n"
    )


def _given_line(inputs: ModelInputs) -> str:
    """What the model takes."""
    return _MATRICES_GIVEN if inputs.matrices() else _COLUMNS_GIVEN


def _serving_model() -> str:
    return (
        'def serving_model(model):\n    """What is exported: it takes the columns one by one."""\n'
        f"{_COLUMNS_GIVEN}"
        "    matrices = {\n"
        # The layer of this name compares all columns with all.
        "        matrix: ops.concatenate([given[each] for each in names], 1) for matrix, names in MATRICES.items()\n"
        "    }\n    return keras.Model(given, model(matrices))\n"
    )


def _dnn(plan: ColumnPlan, given: str) -> str:
    last = 'layers.Dense(OUTPUTS, kernel_initializer="zeros", kernel_regularizer=small)'
    return (
        "def custom_model(hidden=(64, 32), dropout=0.1, l2=0.0):\n"
        f'    """A network beside a linear model; without hidden layers, the linear model alone.\n\n'
        "    Both begin with zeros: of few rows, the mean is learnt first. The loss grows by l2 times the sum of\n"
        "    squared weights. With 0.5 / rows, weights are expected from a normal distribution of deviation 1, as\n"
        '    LogisticRegression of scikit-learn does.\n    """\n'
        f"{given}"
        "    small = keras.regularizers.L2(l2) if l2 else None\n"
        f"    x = features = layers.Concatenate()(encode(given))\n{_hidden(', kernel_regularizer=small')}"
        f"    total = {last}(features)\n"
        "    if hidden:\n"
        f"        total = {last}(x) + total\n"
        f"    return keras.Model(given, {_output(plan, 'total')})\n"
    )


def _parts_of_a_model(plan: ColumnPlan, given: str) -> str:
    """For a module of the user, which takes what it wants of them."""
    return (
        'def inputs():\n    """An input of the model for each column."""\n'
        f"{given.replace('given =', 'return', 1)}\n\n"
        'def features(given):\n    """All columns as numbers side by side."""\n'
        "    return layers.Concatenate()(encode(given))\n\n\n"
        'def output(x):\n    """The last layers, after the hidden ones."""\n'
        f"    return {_output(plan, 'layers.Dense(OUTPUTS)(x)')}\n"
    )


def _linear(plan: ColumnPlan, given: str) -> str:
    return (
        f"def custom_model():\n{given}"
        "    x = layers.Dense(OUTPUTS)(layers.Concatenate()(encode(given)))\n"
        f"    return keras.Model(given, {_output(plan, 'x')})\n"
    )


def _wide_and_deep(plan: ColumnPlan, given: str) -> str:
    return (
        f'def custom_model(hidden=(64, 32), dropout=0.1):\n    """Cheng et al., DLRS 2016."""\n{given}'
        "    wide = layers.Dense(OUTPUTS)(layers.Concatenate()(encode_wide(given)))\n"
        f"    x = layers.Concatenate()(encode(given))\n{_hidden()}"
        f"    return keras.Model(given, {_output(plan, 'layers.Dense(OUTPUTS)(x) + wide')})\n"
    )


def _deepfm(plan: ColumnPlan, given: str) -> str:
    return (
        f"def custom_model(factors=8, hidden=(64, 32), dropout=0.1):\n"
        f'    """Guo et al., IJCAI 2017: products of the columns\' vectors, beside a network over them."""\n{given}'
        "    parts = encode(given)\n"
        "    vectors = [layers.Dense(factors, use_bias=False)(part) for part in parts]\n"
        "    total = sum(vectors)\n"
        "    pairs = (total * total - sum(vector * vector for vector in vectors)) / 2.0\n"
        "    linear = layers.Dense(OUTPUTS)(layers.Concatenate()([*parts, pairs]))\n"
        f"    x = layers.Concatenate()(vectors)\n{_hidden()}"
        f"    return keras.Model(given, {_output(plan, 'layers.Dense(OUTPUTS)(x) + linear')})\n"
    )


_MODELS: Mapping[str, Callable[[ColumnPlan, str], str]] = {
    "dnn": _dnn,
    "wide_and_deep": _wide_and_deep,
    "deepfm": _deepfm,
    "linear": _linear,
}


def _training(plan: ColumnPlan, optimizer: Optimizer, patience: int) -> str:
    label = plan.label
    if label.kind is LabelKind.NUMBER:
        loss = (
            'def loss(labels, predictions):\n    """The squared error, in units of the label\'s variance."""\n'
            "    return keras.losses.mean_squared_error(labels / DEVIATION, predictions / DEVIATION)\n"
        )
        metrics = (
            '        "mean_absolute_error": keras.metrics.MeanAbsoluteError(),\n'
            '        "root_mean_squared_error": keras.metrics.RootMeanSquaredError(),\n'
            '        "r2": keras.metrics.R2Score(),\n'
        )
    elif label.kind is LabelKind.BINARY:
        loss = 'loss = "binary_crossentropy"\n'
        metrics = (
            '        "accuracy": keras.metrics.BinaryAccuracy(),\n        "auc": keras.metrics.AUC(),\n'
            '        "log_loss": keras.metrics.BinaryCrossentropy(),\n'
        )
    else:
        loss = 'loss = "sparse_categorical_crossentropy"\n'
        metrics = (
            '        "accuracy": keras.metrics.SparseCategoricalAccuracy(),\n'
            '        "log_loss": keras.metrics.SparseCategoricalCrossentropy(),\n'
        )
    weights = ""
    if label.class_weights:
        entries = ", ".join(f"{number}: {weight:g}" for number, weight in label.class_weights.items())
        weights = f'class_weight = {{{entries}}}\n"""Rare classes weigh more."""\n'
    rate = optimizer.arguments.get("learning_rate", 0.001)
    others = "".join(
        f", {name}={_value(value)}" for name, value in optimizer.arguments.items() if name != "learning_rate"
    )
    return (
        f"{loss}{weights}\n\n"
        f"def optimizer(learning_rate={_value(rate)}):\n"
        f"    return keras.optimizers.{optimizer.name}(learning_rate{others})\n\n\n"
        f"def eval_metrics_fn():\n    return {{\n{metrics}    }}\n\n\n"
        "def callbacks():\n"
        f'    return [keras.callbacks.EarlyStopping("val_loss", patience={patience}, restore_best_weights=True)]\n'
    )
