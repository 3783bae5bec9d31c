"""What every part of Upshift uses: words, files, processes, progress. Imports nothing else of Upshift."""

__version__ = "0.1.0"
