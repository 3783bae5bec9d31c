"""Captures in S3, to read: `upshift inspect --captures s3://BUCKET/PREFIX`, by pyarrow's own file system.

The keys below PREFIX are the paths in the campaign's folder: what `rclone copy DIR REMOTE:BUCKET/PREFIX --files-from
DIR/snapshot/captures.list` makes. Credentials are those of the AWS SDK (environment, or `~/.aws`), in each process that
reads; endpoint and region are taken from the environment of this command.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from core import reach
from core.errors import PlaceError, UsageError
from core.untrusted import scrub

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

SCHEME = "s3://"

CONNECT_S, REQUEST_S = 10.0, 60.0
"""Longest time of a connection, and of a request that nothing arrives for."""

_DENIED = re.compile(
    "ACCESS_DENIED|INVALID_ACCESS_KEY|INVALID_CLIENT_TOKEN|SIGNATURE|HTTP status 40[13]", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InS3:
    """Captures below a prefix of a bucket."""

    bucket: str
    prefix: str
    """Without a slash at its end; empty: the whole bucket."""
    endpoint: str
    """Address of the service, with scheme; empty: that of AWS for the region."""
    region: str

    @classmethod
    def of(cls, url: str, environ: Mapping[str, str] = os.environ) -> InS3:
        """From `s3://BUCKET/PREFIX` and the SDKs' variables AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_REGION,
        AWS_DEFAULT_REGION.

        Raises:
            UsageError: the URL, or that of the endpoint, is not one.
        """
        bucket, _, prefix = url.removeprefix(SCHEME).partition("/")
        if not url.startswith(SCHEME) or not re.fullmatch(r"[a-z0-9][a-z0-9.-]+", bucket):
            raise UsageError(f"{url!r} names no bucket", where="--captures", remedy="write s3://BUCKET/PREFIX")
        endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or ""
        if endpoint and (urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).hostname):
            raise UsageError(f"{endpoint!r} is no URL", where="AWS_ENDPOINT_URL", remedy="write https://HOST:PORT")
        region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        return cls(bucket=bucket, prefix=prefix.strip("/"), endpoint=endpoint, region=region)

    @property
    def where(self) -> str:
        """For people."""
        url = f"{SCHEME}{self.bucket}/{self.prefix}".rstrip("/")
        return f"{url} at {self.endpoint}" if self.endpoint else url

    def require(self) -> None:
        """Raises PlaceError where the service, the bucket, the rights or all below the prefix are missing."""
        from pyarrow.fs import FileSelector, FileType

        files, missing = _files(self.endpoint, self.region), "there are no captures"
        try:
            if files.get_file_info(FileSelector(self._key("vantage"), allow_not_found=True)):
                return
            if files.get_file_info(self.bucket).type == FileType.NotFound:
                missing = "there is no such bucket"
        except OSError as error:
            raise self._fault(error) from None
        raise PlaceError(missing, where=self.where, remedy="name what was given to rclone copy")

    @contextmanager
    def opened(self, name: str) -> Iterator[Path]:
        """A copy without a name in the temporary folder: nothing is left of it, even after SIGKILL."""
        with tempfile.TemporaryFile(prefix="upshift-") as copy:
            path = Path(f"/proc/self/fd/{copy.fileno()}")
            try:
                with _files(self.endpoint, self.region).open_input_stream(self._key(name)) as capture:
                    shutil.copyfileobj(capture, copy, 1 << 20)
                copy.flush()
            except FileNotFoundError:
                path = Path("/proc/self/fd/missing")
            except OSError as error:
                raise self._fault(error) from None
            yield path

    def _key(self, name: str) -> str:
        return "/".join(filter(None, (self.bucket, self.prefix, name)))

    def _fault(self, error: OSError) -> PlaceError:
        if error.errno == errno.ENOSPC:
            folder = tempfile.gettempdir()
            return PlaceError("the disk is full", where=folder, remedy="free some space there, or set TMPDIR")
        text = str(error)
        if _DENIED.search(text):
            remedy = "check the credentials; they need s3:ListBucket and s3:GetObject"
            return PlaceError("access is denied", where=self.where, remedy=remedy)
        if "NETWORK_CONNECTION" in text or "curlCode" in text:
            return PlaceError("the service does not answer", where=self.where, remedy="check AWS_ENDPOINT_URL")
        return PlaceError(f"it cannot be read ({scrub(text, most=200)})", where=self.where, remedy="inspect again")


@functools.cache
def _files(endpoint: str, region: str) -> S3FileSystem:
    from pyarrow.fs import S3FileSystem

    parts = urlsplit(endpoint or f"https://s3.{region}.amazonaws.com")
    reach.check_host(str(parts.hostname))
    if reach.environment_prefixes() is not None:
        # Without credentials the SDK asks 169.254.169.254 for those of a virtual machine.
        os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    options: dict[str, Any] = {"endpoint_override": parts.netloc, "scheme": parts.scheme} if endpoint else {}
    return S3FileSystem(region=region, connect_timeout=CONNECT_S, request_timeout=REQUEST_S, **options)
