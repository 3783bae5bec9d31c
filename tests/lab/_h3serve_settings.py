"""Settings of the lab's QUIC server h3serve, which it reads for each new connection."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from core.files.disk import write_json
from vantage.lab.lab import Lab


def settings_file(lab: Lab, server: str) -> Path:
    """The file that h3serve on this server's node was started with."""
    [argv] = [plan.argv for plan in lab.plan.programs if plan.name == f"{server}-quic"]
    return Path(argv[argv.index("--settings") + 1])


@contextmanager
def h3serve_settings(lab: Lab, server: str, **values: str) -> Iterator[None]:
    """Connections that start during the block have these settings; only names that h3serve has may be set."""
    file = settings_file(lab, server)
    before = json.loads(file.read_text())
    assert values.keys() <= before.keys(), f"h3serve has the settings {', '.join(before)}"
    write_json(file, before | values)
    try:
        yield
    finally:
        write_json(file, before)
