"""`python -m upshift`: the command line, for programs that know the interpreter rather than the PATH."""

from upshift.cli import main

main()
