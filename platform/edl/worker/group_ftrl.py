"""``GroupFtrl`` under its former name: ``from edl.worker.group_ftrl import GroupFtrl``.

Users' model modules written for earlier versions import it from here, so this name must stay.
"""

from edl.keras.group_ftrl import GroupFtrl

__all__ = ["GroupFtrl"]
