"""The place of ``GroupFtrl`` in users' model modules: ``from edl.worker.group_ftrl import GroupFtrl``.

Models written for earlier layouts import it from here, so this name stays.
"""

from edl.keras.group_ftrl import GroupFtrl

__all__ = ["GroupFtrl"]
