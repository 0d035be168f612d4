"""What the commands of a statement's job on a cluster must know: see ``cluster_commands``. It has no credentials."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from edl.api.errors import BadInputError


@dataclass(frozen=True, slots=True)
class ClusterRequest:
    """A statement, and where its pods find what it needs.

    Attributes:
        statement: its text.
        database: its address, as the pods of the job see it.
        models: the folder of models on the volume.
        replaces: a model that exists gets a new version, and a table that exists is replaced.
        query_seconds: what the query may take in the database; None: no limit.
        settings: ``FIELD=VALUE`` as of ``--set``, which count more than the statement.
        train: fields of ``train`` that the user's job file has, which count more than what the rows suggest.
        modules: the folder on the volume with the module that ``TO TRAIN`` names; empty: it names none.
        definition: of that module's model.
        chooses_strategy: the number of ids decides it.
    """

    statement: str
    database: str
    models: str
    replaces: bool = False
    query_seconds: float | None = None
    settings: tuple[str, ...] = ()
    train: Mapping[str, Any] = field(default_factory=dict)
    modules: str = ""
    definition: str = ""
    chooses_strategy: bool = False

    def to_text(self) -> str:
        """One line, as an argument of a command."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_text(cls, text: str) -> ClusterRequest:
        """Read what ``to_text`` wrote.

        Raises:
            BadInputError: another version of EDL wrote it.
        """
        try:
            content = json.loads(text)
            return cls(**{**content, "settings": tuple(content.get("settings", ()))})
        except (ValueError, TypeError, AttributeError) as error:
            raise BadInputError(
                f"the request of the statement cannot be read: {error}",
                hint="edl sql and the image of the job must be of one version of EDL",
            ) from error
