"""Fills the fuzzer's corpus: the first packets of each sample capture, plain and compressed, and hand-made headers.

    python rust/pcapscan/fuzz/seeds.py [CAPTURES]     default: ../shared/data/captures beside the checkout

The corpus is not committed; captures never are.
"""

from __future__ import annotations

import gzip
import struct
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
LARGEST = 16 * 1024


def head(path: Path) -> bytes:
    """The first bytes of a capture; the engine takes a cut file."""
    if path.suffix == ".zst":
        with subprocess.Popen(["zstd", "-dqc", str(path)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            content = process.stdout.read(LARGEST)
            process.kill()
        return content
    return path.read_bytes()[:LARGEST]


def main() -> None:
    captures = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parents[3] / "shared" / "data" / "captures"
    corpus = HERE / "corpus"
    (corpus / "file").mkdir(parents=True, exist_ok=True)
    (corpus / "segments").mkdir(parents=True, exist_ok=True)
    for order, magic in ((order, magic) for order in "<>" for magic in (0xA1B2C3D4, 0xA1B23C4D)):
        name = f"empty-{'little' if order == '<' else 'big'}-{magic:x}"
        (corpus / "file" / name).write_bytes(struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, 65535, 1))
    for path in sorted(captures.glob("*.pcap*")) if captures.is_dir() else ():
        content = head(path)
        (corpus / "file" / path.name).write_bytes(content)
        (corpus / "file" / f"{path.name}.gz").write_bytes(gzip.compress(content[:2048]))
        (corpus / "segments" / path.name).write_bytes(content[:2048])
    print(f"{len(list((corpus / 'file').iterdir()))} seeds in {corpus}")


if __name__ == "__main__":
    main()
