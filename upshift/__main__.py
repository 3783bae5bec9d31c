"""`upshift` and `python -m upshift`: the command line. Ctrl-C is quiet while modules are imported, too."""

from __future__ import annotations


def main() -> None:
    """Runs the command line, see `upshift.cli.main`."""
    try:
        from upshift import cli

        cli.main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
