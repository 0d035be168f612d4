"""How a run is shown, wherever it runs: to people on a terminal, to files and pipes, to programs."""
