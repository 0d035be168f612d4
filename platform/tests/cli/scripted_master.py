"""A master that plays ``$EDL_TEST_SCRIPT``: a JSON list of steps, each ``[what, value]``.

``event`` and ``status`` are written as the real master writes them; ``text`` is ``[name,
content]`` of a file in the run directory; ``pause`` waits until a signal ends it.
"""

import json
import os
import signal
import time
from pathlib import Path

RUN = Path(os.environ["EDL_RUN_DIR"])


def play(what: str, value: object) -> None:
    if what == "event":
        with (RUN / "events.jsonl").open("a") as file:
            file.write(json.dumps({"time": time.time(), **value}) + "\n")
    elif what == "status":
        known = {"run": RUN.name, "run_dir": str(RUN), "updated": time.time()}
        (RUN / "status.tmp").write_text(json.dumps({**known, **value}))
        (RUN / "status.tmp").rename(RUN / "status.json")
    elif what == "text":
        (RUN / value[0]).write_text(value[1])
    elif what == "pause":
        signal.pause()


for step in json.loads(os.environ["EDL_TEST_SCRIPT"]):
    play(*step)
