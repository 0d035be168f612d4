"""What of the JobSpec matters to decisions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """What of the JobSpec matters to decisions; units are records and steps.

    Attributes:
        task_records: records a lease.
        evaluation_steps, checkpoint_steps: None switches the periodic one off.
        describe: the data set is described by a worker (a user's own reader).
        max_corrupt: corrupt records that one pass over a data set may skip, by all workers together.
        skip_crashing: a range that makes workers crash is skipped instead of failing the job.
    """

    minibatch: int
    task_records: int
    epochs: int = 1
    seed: int | None = 0
    max_steps: int | None = None
    evaluation_steps: int | None = None
    checkpoint_steps: int | None = None
    export: bool = False
    predict: bool = False
    describe: bool = False
    skip_crashing: bool = False
    max_corrupt: int = 0
    ps: int = 1
    workers: int = 1
    grace: float = 5.0
