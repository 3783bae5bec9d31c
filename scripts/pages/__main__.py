"""Writes all generated documents; says which changed."""

import sys

from scripts.pages import PAGES, REPOSITORY


def main() -> None:
    for name, make in PAGES.items():
        path, text = REPOSITORY / name, make(REPOSITORY)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {name}\n")


if __name__ == "__main__":
    main()
