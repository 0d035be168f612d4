"""Strategy Local: every epoch in one process, without a master and without parameter servers."""
