"""Settings of a node's server programs, which they read for each new connection."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from core.errors import LabError, use_one_of
from core.files.atomic import write_json
from vantage.lab.plan import ProgramPlan
from vantage.lab.servers import ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSetting:
    """A setting of a server program, e.g. `congestion_control` = `bbr2`; its `ServerKind` says which ones it has."""

    name: str
    value: str


class ServerSettings:
    """Changes settings of the programs of one node, and restores the original values."""

    def __init__(self, node: str, programs: Sequence[ProgramPlan]) -> None:
        self._node = node
        self._programs = [(program, program.settings_file) for program in programs if program.settings_file is not None]
        self._first: dict[Path, dict[str, str]] = {}

    def apply(self, settings: Sequence[ServerSetting]) -> None:
        """Applies these settings to connections that start afterwards.

        Raises LabError if no program of the node has the setting, or the value is not valid; then nothing is changed.
        """
        changes: dict[Path, dict[str, str]] = {}
        for setting in settings:
            file = self._file_of(setting)
            changes.setdefault(file, {})[setting.name] = setting.value
        for file, values in changes.items():
            present = json.loads(file.read_text(encoding="utf-8"))
            self._first.setdefault(file, present)
            write_json(file, present | values)

    def restore(self) -> None:
        """Restores the values that the first `apply` found. May be called twice."""
        for file, values in self._first.items():
            write_json(file, values)
        self._first.clear()

    def _file_of(self, setting: ServerSetting) -> Path:
        for program, file in self._programs:
            known = ALL[program.kind].settings.get(setting.name)
            if known is None:
                continue
            if fault := known.fault(setting.value):
                raise LabError(
                    f"{setting.value!r} is not a valid {setting.name} for {program.kind}",
                    where=self._node,
                    remedy=fault,
                )
            return file
        names = sorted({name for program, _ in self._programs for name in ALL[program.kind].settings})
        raise LabError(
            f"no server program here has the setting {setting.name!r}",
            where=self._node,
            remedy=use_one_of(setting.name, names) if names else None,
        )
