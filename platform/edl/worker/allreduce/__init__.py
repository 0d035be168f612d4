"""Strategy AllReduce in a worker: the rounds, the step that all ranks take together, evaluation and export."""
