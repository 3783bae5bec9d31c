"""One HTTPS download over TCP by GNU Wget2, as the published code made it: arguments in, one JSON document out.

wget2 looks up names itself, follows redirects, and offers HTTP/2, compression and TLS as it likes. Times are from the
moments at which its debug log and the body reach us, through pipes: after the system call for the first packet, not
before it, so up to a millisecond is missing. There is no time of TCP's handshake, and nothing of the kernel's.

Source: src/downloading/lib/dl_file.py of the published code.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import resource
import selectors
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from core.domain import Failure
from core.system import process
from downloader.programs.common import Document, Options, argument_parser, options_from, print_document

CHUNK = 1 << 18

EXIT_S = 5.0
"""How long wget2 may take to end after it has closed its log and its output."""

_STAMP = re.compile(rb"^\d\d\.\d{6}\.\d{3} ")
_TRYING = re.compile(rb"trying (\S+):(\d+)\.\.\.$")
_TLS = re.compile(rb"^(ALPN: Server accepted protocol|Protocol:|Cipher:|Ephemeral ECDH using curve) '?([^' ]+)'?$")
_TLS_FIELDS = {
    b"ALPN: Server accepted protocol": "alpn",
    b"Protocol:": "tls_version",
    b"Cipher:": "tls_cipher",
    b"Ephemeral ECDH using curve": "tls_group",
}
_ISOLATED = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
"""Run in a mount namespace of its own: the name servers of the vantage point, not those of the host."""


class _Log:
    """What wget2's debug log tells, line by line."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._others = set(_connections())
        self._rest = b""
        self._header: list[tuple[str, str]] | None = None
        self._status = 0
        self.started = False
        """Whether it has sent its first packet, save for look-ups."""
        self.causes: list[tuple[Failure, str]] = []
        """What went wrong, in order."""

    def take(self, data: bytes) -> None:
        """Takes in more of the log."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(line)

    def _line(self, line: bytes) -> None:
        text = _STAMP.sub(b"", line).strip()
        values = self._document.values
        if self._header is not None:
            self._header_line(text.decode("latin-1"))
        elif text.startswith((b":status:", b"HTTP/1.")):
            self._header = []
            self._header_line(text.decode("latin-1"))
        elif match := _TRYING.search(text):
            if not self.started:
                self._document.start()
                self.started = True
            values["server_ip"], values["server_port"] = match[1].decode("ascii").strip("[]"), int(match[2])
        elif match := _TLS.search(text):
            values[_TLS_FIELDS[match[1]]] = match[2].decode("ascii", "replace").replace("TLS1", "TLSv1")
        elif text == b"Handshake completed":
            self._document.mark("tls_s")
            # The process may have ended by now, and closed its connection.
            new = [end for end, port in _connections().items() if port == values["server_port"]]
            for end in set(new) - self._others:
                values["local_ip"], values["local_port"] = _readable(end)
            self._others.update(new)
        elif text.startswith(b"Failed to resolve "):
            self.causes.append((Failure.DNS_ERROR, text.decode("utf-8", "replace")))
        elif b"certificate is NOT trusted" in text or b"certificate's owner does not match" in text:
            self.causes.append((Failure.TLS_CERTIFICATE, text.decode("utf-8", "replace")))
        elif b"(errno=111)" in text:
            self.causes.append((Failure.CONNECTION_REFUSED, "connection refused"))
        elif b"(errno=101)" in text or b"(errno=113)" in text:
            self.causes.append((Failure.NETWORK_UNREACHABLE, text.decode("utf-8", "replace")))
        elif text.startswith(b"gnutls_handshake: "):
            self.causes.append((Failure.TLS_ERROR, text.decode("utf-8", "replace")))

    def _header_line(self, text: str) -> None:
        assert self._header is not None  # noqa: S101 - the caller has checked it
        # A header of HTTP/1.1 ends with an empty line, one of HTTP/2 with what the log says of its frame.
        if not text or text.startswith("[FRAME "):
            header, self._header = self._header, None
            is_redirect = 300 <= self._status < 400 and any(name == "location" for name, _ in header)
            if not is_redirect and self._document.values["http_status"] is None:
                # What wget2 has decompressed is not as long as announced.
                is_encoded = any(name == "content-encoding" and value != "identity" for name, value in header)
                left_out = "content-length" if is_encoded else ""
                self._document.take_headers(self._status, [one for one in header if one[0] != left_out])
        elif text.startswith("HTTP/"):
            version, _, rest = text.partition(" ")
            self._document.values["http_version"] = version.removeprefix("HTTP/")
            self._status = _number(rest[:3])
        elif text.startswith(":status:"):
            self._document.values["http_version"] = "2"
            self._status = _number(text.removeprefix(":status:").strip())
        else:
            name, _, value = text.partition(":")
            self._header.append((name.strip().lower(), value.strip()))


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() else 0


def _connections() -> dict[str, int]:
    """The TCP connections of this network namespace, also closed ones: local end -> server's port; by proc(5)."""
    ports = {}
    for table in ("tcp", "tcp6"):
        for line in (Path("/proc/self/net") / table).read_text(encoding="ascii").splitlines()[1:]:
            _, local, remote, *_ = line.split()
            ports[local] = int(remote.rpartition(":")[2], 16)
    return ports


def _readable(end: str) -> tuple[str, int]:
    """Address and port of a local end as proc(5) has it: groups of four bytes in the host's order."""
    address, _, port = end.partition(":")
    groups = [int(address[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(address), 8)]
    return str(ipaddress.ip_address(b"".join(groups))), int(port, 16)


def command(options: Options, *, log: int, home: Path) -> list[str]:
    """The command line, as published, save for the certificates, one attempt, and no request to OCSP servers."""
    fixed = ["--https-enforce=hard", "--no-cache", "-S", f"--output-file=/proc/self/fd/{log}"]
    ours = [
        "-O",
        "-",
        "-d",
        "--no-config",
        "--tries=1",
        "--no-ocsp",
        f"--hsts-file={home}/hsts",
        f"--hpkp-file={home}/hpkp",
    ]
    who = [f"--ca-certificate={options.ca}", f"--user-agent={options.user_agent}"]
    return ["wget2", *fixed, *ours, *who, f"https://{options.authority}{options.path}"]


def download(options: Options, nameservers: Sequence[str]) -> Document:
    """One download; whatever happens is in the document."""
    document = Document("wget2", "wget2", options, handshake="tls_s", confined=False)
    document.values["client_version"] = _version()
    if document.refused():
        return document
    before_s = _children_cpu_s()
    with tempfile.TemporaryDirectory(prefix="upshift-wget2-") as name:
        home = Path(name)
        written, end = os.pipe()
        log = _Log(document)
        argv = command(options, log=end, home=home)
        if nameservers:
            resolv = home / "resolv.conf"
            resolv.write_text("".join(f"nameserver {server}\n" for server in nameservers), encoding="ascii")
            argv = ["unshare", "--mount", "sh", "-c", _ISOLATED, str(resolv), *argv]
        with (
            os.fdopen(written, "rb", buffering=0) as messages,
            process.start(argv, stdout=True, binary=True, pass_fds=[end], env={"HOME": name, "LC_ALL": "C"}) as running,
        ):
            os.close(end)
            _follow(running, messages.fileno(), log, document)
    document.ran_elsewhere(cpu_s=_children_cpu_s() - before_s)
    return document


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _follow(running: process.Child, messages: int, log: _Log, document: Document) -> None:
    assert running.stdout is not None  # noqa: S101 - it was started with a pipe
    body = running.stdout.fileno()
    called = time.monotonic()
    with selectors.DefaultSelector() as ready, contextlib.ExitStack() as stack:
        stack.callback(running.stop, signal.SIGKILL)
        for number in (messages, body):
            ready.register(number, selectors.EVENT_READ)
        while ready.get_map() and not document.is_over():
            deadline = document.deadline if log.started else called + document.options.budget_s
            events = ready.select(max(deadline - time.monotonic(), 0.0))
            if not events:
                _spent(document, log)
                return
            # The log is first: what it says of a response was written before its body.
            for key, _ in sorted(events, key=lambda event: event[0].fd == body):
                data = os.read(key.fd, CHUNK)
                if not data:
                    ready.unregister(key.fd)
                elif key.fd != body:
                    log.take(data)
                elif not document.is_over():
                    document.take_body(data)
        if document.is_over():
            return
        _ended(document, log, running.wait(EXIT_S))


def _spent(document: Document, log: _Log) -> None:
    if log.started:
        document.spent()
    else:
        document.fail(Failure.DNS_ERROR, f"no address within {document.options.budget_s:g} s")


def _ended(document: Document, log: _Log, status: int) -> None:
    if document.values["http_status"] is not None:
        document.end_of_body()
    elif log.causes:
        document.fail(*log.causes[0])
    elif log.started:
        document.fail(Failure.CONNECTION_RESET, f"wget2 ended without a response (exit code {status})")
    else:
        document.fail(Failure.UNKNOWN, f"wget2 ended before it sent a packet (exit code {status})")


def _version() -> str | None:
    version = re.match(r"GNU Wget2 (\S+)", process.run(["wget2", "--version"]).stdout)
    return version[1] if version else None


def main(argv: Sequence[str]) -> int:
    """One download. Exit code 0 when a document was printed, 2 for wrong use."""
    parser = argument_parser("wget2_get", "One HTTPS download by wget2, one JSON document on standard output.")
    parser.add_argument("--nameserver", action="append", default=[], metavar="ADDRESS", help="may be repeated")
    arguments = parser.parse_args(argv)
    return print_document("wget2_get", lambda: download(options_from(arguments), arguments.nameserver))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
