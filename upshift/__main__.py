"""`upshift` and `python -m upshift`: the command line. Ctrl-C is quiet while modules are imported, too."""

from __future__ import annotations

import gc


def main() -> None:
    """Runs the command line, see `upshift.cli.main`."""
    # Until a command is imported (`cli.load`): modules stay, and to look for garbage takes a tenth of a start.
    gc.disable()
    try:
        from upshift import cli

        cli.main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
