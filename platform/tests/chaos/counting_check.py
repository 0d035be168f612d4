"""Whether a counting job kept its promises: from its journal, its last checkpoint and its summary.

Shares no code with the master. The journal is read by
:mod:`support.journal_bytes` and counted by :mod:`edl.simulation.ledger_recount`; the parameters are the arrays
of the last checkpoint's shards, read with safetensors.

What must hold, for each parameter server (PS) by itself, since each lost or kept updates by itself:

1. the ledger has each record of each epoch exactly once;
2. all elements of one record agree on one PS: a push is applied whole or not at all;
3. no record has more applications than the ledger says, but for *partial* steps, which the journal names;
4. what records lack are whole minibatches of updates that went back with a lost PS, and the summary's
   ``updates_rolled_back`` is their number;
5. with one PS nothing is missing and nothing is partial: parameters and ledger go back together;
6. the summary's counts are those of the journal.

Under AllReduce one worker has written the only shard, and what holds for one PS must hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from chaos.counting_job import DENSE, MINIBATCH, TABLE
from numpy.typing import NDArray
from safetensors import safe_open
from support.run_recount import recount

from edl.simulation.ledger_recount import LedgerRecount, find_ledger_problems

Counts = NDArray[np.float64]


@dataclass(frozen=True)
class ShardCounts:
    """How often one PS applied each record: ``applied`` has one number for each record, NaN where it owns none of its
    elements; ``torn`` are the records whose elements disagree."""

    applied: Counts
    torn: list[int]


def read_shard(shard: Path, records: int) -> ShardCounts:
    """Read one PS's shard of a checkpoint."""
    columns: list[Counts] = []
    with safe_open(shard, framework="np") as arrays:
        for name in arrays.keys():  # noqa: SIM118  not a mapping
            kind, _, rest = name.partition("/")
            if kind == "dense" and rest.split("/")[0] in (*DENSE, TABLE):
                columns += list(arrays.get_tensor(name).astype(np.float64).reshape(records, -1).T)
            elif kind == "rows" and TABLE in name and name.endswith("/values"):
                ids = arrays.get_tensor(name.removesuffix("values") + "ids")
                for values in arrays.get_tensor(name).astype(np.float64).T:
                    column = np.full(records, np.nan)
                    column[ids] = values
                    columns.append(column)
    table = np.stack(columns)
    with np.errstate(invalid="ignore"):
        lowest, highest = np.fmin.reduce(table), np.fmax.reduce(table)
    return ShardCounts(highest, np.flatnonzero(highest - lowest > 1e-3).tolist())


def violations(run_dir: Path, summary: Mapping[str, Any], *, records: int, epochs: int, ps: int) -> list[str]:
    """What does not hold, one line each; nothing if all does."""
    counted = recount(run_dir)
    newest = max(path.parent for path in run_dir.glob("checkpoints/cut-*/manifest.json"))
    shards = [read_shard(newest / f"ps-{index}.safetensors", records) for index in range(ps or 1)]
    wrong = [f"ledger: {text}" for text in find_ledger_problems(counted, epochs)]
    wrong += [f"ledger: {counted.quarantined_ranges} were given up"] if counted.quarantined_ranges else []
    if counted.cuts[int(newest.name.removeprefix("cut-"))] != counted.counted_steps:
        wrong.append(f"{newest.name}, the newest checkpoint, is not of the end of training")
    wrong += check_parameters(shards, counted, records=records, epochs=epochs, told=summary["updates_rolled_back"])
    if ps <= 1 and counted.partial_steps:
        wrong.append(f"one PS cannot apply a step in part: {counted.partial_steps[:5]}")
    expected = {
        "records_done": records * epochs,
        "records_total": records * epochs,
        "records_lost": 0,
        "records_repeated": counted.repeated_records,
        "records_rolled_back": counted.rolled_back_records,
        "updates_rolled_back": counted.updates_rolled_back,
    }
    wrong += [f"summary: {k} is {summary[k]}, {v} is right" for k, v in expected.items() if summary[k] != v]
    return wrong


def check_parameters(
    shards: list[ShardCounts], found: LedgerRecount, *, records: int, epochs: int, told: int
) -> list[str]:
    """Compare the applications of each record on each PS with the ledger."""
    partial = np.zeros(records)
    for step in found.partial_steps:
        partial[[record for _, record in step.source_records()]] += 1
    wrong, missing, uncertain = [], 0.0, 0.0
    for index, shard in enumerate(shards):
        if shard.torn:
            wrong.append(f"ps-{index}: the elements of records {shard.torn[:10]} disagree")
        owned = ~np.isnan(shard.applied)
        if not owned.all():
            wrong.append(
                f"ps-{index} holds no whole dense variable: the check would be blind for {(~owned).sum()} records"
            )
        applied = np.where(owned, shard.applied, epochs)
        odd = np.flatnonzero(np.abs(applied - np.round(applied)) > 1e-3)
        # In sync mode an element that was applied twice is no whole number: records of partial steps may be.
        odd = odd[partial[odd] == 0]
        if len(odd):
            wrong.append(f"ps-{index}: records {odd[:10].tolist()} count {applied[odd[:10]].tolist()}")
        more = np.flatnonzero(applied > epochs + partial + 1e-3)
        if len(more):
            wrong.append(f"ps-{index}: records {more[:10].tolist()} were applied {applied[more[:10]].tolist()} times")
        sure = owned & (partial == 0)
        lack = np.maximum(epochs - np.round(applied), 0)
        missing += float(lack[sure].sum()) / MINIBATCH
        # A record of a partial step may lack an update and have the partial one instead: each may hide one.
        uncertain += float(partial[owned].sum() + lack[owned & (partial > 0)].sum()) / MINIBATCH
    if not missing - 1e-6 <= told <= missing + uncertain + 1e-6:
        wrong.append(
            f"updates_rolled_back is {told}; the parameters lack {missing:g} updates"
            + (f", and {uncertain:g} are in steps that were partial" if uncertain else "")
        )
    return wrong
