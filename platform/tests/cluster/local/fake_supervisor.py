"""``python -m edl.cluster.local`` with fake roles: the same program with another command.

``EDL_TEST_NO_PARENT_DEATH_SIGNAL`` makes it behave as on a system whose kernel does not kill the children of the dead.
"""

import os
import sys
from pathlib import Path

from edl.cluster.local import parent_death
from edl.cluster.local.__main__ import main

ROLE = Path(__file__).with_name("fake_role.py")

if __name__ == "__main__":
    parent_death.HAS_PARENT_DEATH_SIGNAL = (
        parent_death.HAS_PARENT_DEATH_SIGNAL and "EDL_TEST_NO_PARENT_DEATH_SIGNAL" not in os.environ
    )
    sys.exit(main(sys.argv[1:], command=lambda role, index: [sys.executable, "-I", "-S", str(ROLE)]))
