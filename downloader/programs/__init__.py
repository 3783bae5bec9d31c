"""The client programs that we write ourselves; each runs alone too: `python -m downloader.programs.requests_get`."""
