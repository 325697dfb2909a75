"""One S3 server for the whole run, and a way around the store to what it holds."""

from __future__ import annotations

import itertools
from pathlib import Path

import boto3
from botocore.config import Config

from hicache_storage.backends.s3 import S3Options
from hicache_storage.backends.s3.names import object_name
from hicache_storage.config import from_mapping, resolve
from hicache_storage.testing.services.seaweedfs import SeaweedFS

BUCKET = "hicache-tests"
PATIENT_S = 60.0
"""A deadline that a busy machine does not reach."""


class S3Service:
    """The server, and the SDK's own client as the back door."""

    def __init__(self, server: SeaweedFS, ca_bundle: Path) -> None:
        self.server = server
        self.ca_bundle = ca_bundle
        self._numbers = itertools.count()
        self.client = boto3.client(
            "s3",
            endpoint_url=server.endpoint_url,
            region_name="us-east-1",
            aws_access_key_id=server.access_key_id,
            aws_secret_access_key=server.secret_access_key,
            config=Config(
                s3={"addressing_style": "path"},
                max_pool_connections=32,
                read_timeout=PATIENT_S,
                request_checksum_calculation="when_required",
            ),
        )
        self.client.create_bucket(Bucket=BUCKET)

    def options(self, *, tls: bool = False, **given: object) -> S3Options:
        """Return options for a store that is empty: under a prefix that no other has."""
        values: dict[str, object] = {
            "bucket": BUCKET,
            "prefix": f"t{next(self._numbers)}",
            "endpoint_url": self.server.tls_endpoint_url if tls else self.server.endpoint_url,
            "ca_bundle": str(self.ca_bundle),
            "region": "us-east-1",
            "access_key_id": self.server.access_key_id,
            "secret_access_key": self.server.secret_access_key,
            "io_threads": 8,
            "deadline_s": PATIENT_S,
        }
        return resolve(S3Options, "s3", [from_mapping(values | given, "test")], environ={})[0]

    def plant(self, options: S3Options, key: str, body: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=f"{options.prefix}/{object_name(key.encode())}", Body=body)

    def observe(self, options: S3Options, key: str) -> bytes | None:
        name = f"{options.prefix}/{object_name(key.encode())}"
        try:
            body: bytes = self.client.get_object(Bucket=BUCKET, Key=name)["Body"].read()
        except self.client.exceptions.NoSuchKey:
            return None
        return body

    def names(self, options: S3Options) -> list[str]:
        """Return every name below the store's prefix, also those that are no key's."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{options.prefix}/")
        return [entry["Key"].removeprefix(f"{options.prefix}/") for page in pages for entry in page.get("Contents", [])]
