"""Strategy Local: trains all epochs in one process, without a master and parameter servers."""
