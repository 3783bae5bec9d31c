"""`upshift fleet bundle`: all that a vantage point needs, in one archive per Python version.

checkout.py   the checkout that bundles are built from, and how uv is called there
locked.py     what `uv.lock` names for an extra and a Python version                          (pure)
wheels.py     wheels: ours built, the others downloaded by hash
archive.py    wheels -> manifest -> archive, the same bytes for the same files
install.py    travels in the bundle and installs it; standard library only
build.py      one after the other
"""
