"""Runs once inside a campaign's namespace to set it up: `python -m vantage.host.inside`.

Reads one JSON document on standard input, `{"sysctls": {name: value}, "interface": name}`: applies those settings
and turns off the interface's offloads, so that captures show the packets on the wire. Prints
`{"refused": {name: reason}}`.
"""

from __future__ import annotations

import json
import sys

from core.errors import PlaceError
from vantage.linux import sysctls
from vantage.linux.offloads import features, set_features, wire_features


def set_up(wanted: dict[str, str], interface: str) -> dict[str, str]:
    """Applies the settings that differ; returns those that could not be applied, with the reason."""
    refused: dict[str, str] = {}
    for name, value in wanted.items():
        present = sysctls.read(name)
        if present is None or present == value:
            continue  # not per namespace, or already set
        try:
            sysctls.write(name, value)
        except (PlaceError, OSError) as error:
            refused[name] = str(error)
    for name in set_features(interface, wire_features(features(interface))):
        refused[f"{interface} {name}"] = "the driver does not switch it off"
    return refused


def main() -> int:
    """The program."""
    request = json.load(sys.stdin)
    print(json.dumps({"refused": set_up(request["sysctls"], request["interface"])}))  # noqa: T201 - its answer
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
