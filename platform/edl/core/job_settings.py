"""What of the JobSpec matters to decisions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobSettings:
    """What of the JobSpec matters to decisions; units are records and steps.

    Attributes:
        task_records: records a lease.
        evaluation_steps, checkpoint_steps: None switches the periodic one off.
        describe: the data set is described by a worker (a user's own reader).
        shuffle: window of training records that are mixed; 0 shuffles ranges only, None as far as the reader can.
        max_corrupt: corrupt records that one pass over a data set may skip, by all workers together.
        skip_crashing: a range that makes workers crash is skipped instead of failing the job.
        workers, workers_min: as the spec says; somebody may want others (``State.workers_max``).
        elevated_share: of the workers that get the higher class of a divided priority; 0: it is not divided.
        oom_memory_factor: what the memory of workers is multiplied with after one ran out of it; 1: the job ends then.
        worker_memory, ps_memory: what the spec asks for, for people.
        grace: seconds between telling a pod to go and killing it.
        checkpoint_full_timeout: seconds that training waits for room for a checkpoint before the job fails.
        durable: checkpoints outlive the pods. Otherwise none is made, and what a lost PS held is lost.
    """

    minibatch: int
    task_records: int
    epochs: int = 1
    seed: int | None = 0
    max_steps: int | None = None
    evaluation_steps: int | None = None
    checkpoint_steps: int | None = None
    checkpoint_full_timeout: float = 1800.0
    export: bool = False
    predict: bool = False
    describe: bool = False
    skip_crashing: bool = False
    shuffle: int | None = None
    max_corrupt: int = 0
    ps: int = 1
    workers: int = 1
    workers_min: int = 1
    elevated_share: float = 0.0
    oom_memory_factor: float = 1.0
    worker_memory: str = ""
    ps_memory: str = ""
    grace: float = 5.0
    durable: bool = True
