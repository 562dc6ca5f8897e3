"""Objects in an S3-compatible store. Endpoint and credentials are those of boto3: `AWS_ENDPOINT_URL`,
`AWS_ACCESS_KEY_ID` and so on, or its own files.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import boto3
from boto3.s3.transfer import TransferConfig
from botocore import exceptions as botocore_errors
from botocore.config import Config

from secureafl.server.record.objects import PIECE_BYTES
from secureafl.text import one_line

CONNECT_SECONDS = 10
WHOLE_BYTES = 8 << 20  # at most this is sent in one piece
_IN_PARTS = TransferConfig(multipart_threshold=WHOLE_BYTES, use_threads=False)
MOST_REMOVED = 1000  # in one call, which is S3's own bound
_UNREACHABLE = (
    botocore_errors.ConnectionError,
    botocore_errors.HTTPClientError,
    botocore_errors.IncompleteReadError,
)


class S3Objects:
    """Objects in a bucket, under a prefix."""

    def __init__(self, location: str) -> None:
        """`location` is `s3://BUCKET/PREFIX`."""
        self.where = location
        self._bucket, _, prefix = location.removeprefix("s3://").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        with self._explained():
            self._client: Any = boto3.client("s3", config=Config(connect_timeout=CONNECT_SECONDS))

    def prepare(self) -> None:
        """A bucket is its owner's to make."""

    def reach(self) -> None:
        with self._explained():
            self._client.head_bucket(Bucket=self._bucket)

    def write(self, name: str, content: BinaryIO) -> None:
        key, first = self._prefix + name, content.read(WHOLE_BYTES + 1)
        with self._explained():
            if len(first) <= WHOLE_BYTES:
                self._client.put_object(Bucket=self._bucket, Key=key, Body=first)
            else:
                content.seek(0)
                self._client.upload_fileobj(content, self._bucket, key, Config=_IN_PARTS)

    def read(self, name: str) -> Iterator[bytes]:
        with self._explained():
            body = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)["Body"]
            with contextlib.closing(body):
                yield from body.iter_chunks(PIECE_BYTES)

    def names(self, prefix: str, after: str = "") -> list[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._prefix + prefix, StartAfter=self._prefix + after
        )
        with self._explained():
            keys = [found["Key"] for page in pages for found in page.get("Contents", [])]
        return sorted(key.removeprefix(self._prefix) for key in keys)

    def remove(self, names: Iterable[str]) -> None:
        keys = [{"Key": self._prefix + name} for name in names]
        for first in range(0, len(keys), MOST_REMOVED):
            some = {"Objects": keys[first : first + MOST_REMOVED], "Quiet": True}
            with self._explained():
                said = self._client.delete_objects(Bucket=self._bucket, Delete=some)
            for failed in said.get("Errors", []):
                raise OSError(errno.EIO, f"{failed.get('Key')} cannot be removed: {failed.get('Message')}")

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except botocore_errors.ClientError as error:
            code, status = error.response["Error"].get("Code"), error.response["ResponseMetadata"]["HTTPStatusCode"]
            if code == "NoSuchKey":
                raise FileNotFoundError(errno.ENOENT, "there is no such object") from None
            kind = ConnectionError if status >= 500 else OSError
            raise kind(errno.EIO, one_line(str(error))) from None
        except _UNREACHABLE as error:
            raise ConnectionError(errno.EIO, one_line(str(error))) from None
        except botocore_errors.BotoCoreError as error:
            raise OSError(errno.EIO, one_line(str(error))) from None
