"""The client programs that we write ourselves; each runs alone too: `python -m downloader.programs.requests_get`.

Importing this package configures OpenSSL for the process (openssl.cnf beside this file). Python's `ssl` cannot select
groups before 3.15, and OpenSSL reads its configuration only when it is loaded, so this must precede any `import ssl`.
"""

import os
from pathlib import Path

os.environ["OPENSSL_CONF"] = str(Path(__file__).with_name("openssl.cnf"))
