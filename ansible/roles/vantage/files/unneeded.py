"""Prints which of the packages in its arguments nothing else needs, one per line. By python3-apt; changes nothing.

A package stays where a person marked it as manually installed, or where one that stays depends on it.
"""

from __future__ import annotations

import sys

import apt


def main(names: list[str]) -> None:
    installed = {package.name: package for package in apt.Cache() if package.is_installed}
    going = {name for name in names if name in installed and installed[name].is_auto_installed}
    stay = [package for name, package in installed.items() if name not in going]
    while stay:
        for wanted in stay.pop().installed.get_dependencies("PreDepends", "Depends"):
            able = {version.package.name for version in wanted.installed_target_versions}
            if able and able <= going:
                going -= able
                stay += [installed[name] for name in sorted(able)]
    print("\n".join(sorted(going)))


if __name__ == "__main__":
    main(sys.argv[1:])
