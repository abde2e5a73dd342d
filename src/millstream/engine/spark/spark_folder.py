"""Where Spark keeps its own log of a checkpoint, in the words of Hadoop's file systems, which are not those of obstore."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from millstream.errors import DefinitionError

#: Of the schemes that both know: what Hadoop calls each.
_SCHEMES = {"s3": "s3a", "s3a": "s3a", "gs": "gs", "abfs": "abfs", "abfss": "abfss"}
_AZURE = ("az", "azure", "adl")
_ACCOUNT = ("account_name", "azure_storage_account_name", "AZURE_STORAGE_ACCOUNT_NAME", "storage_account_name")


def spark_folder(url: str, options: Mapping[str, Any] | None = None) -> str:
    """The folder `spark` of a checkpoint in an object store. Raises DefinitionError where Hadoop has no word for it.

    >>> spark_folder("s3://bucket/shop"), spark_folder("gs://bucket/shop")
    ('s3a://bucket/shop/spark', 'gs://bucket/shop/spark')
    >>> spark_folder("az://box/shop", {"account_name": "acme"})
    'abfss://box@acme.dfs.core.windows.net/shop/spark'
    """
    parts = urlsplit(url)
    if parts.scheme in ("abfs", "abfss") and "@" not in parts.netloc:  # obstore takes the account from its options, Hadoop does not
        return _azure(parts.scheme, parts.netloc, parts.path, options, url)
    if parts.scheme in _SCHEMES:
        return f"{_SCHEMES[parts.scheme]}://{parts.netloc}{parts.path}/spark"
    if parts.scheme in _AZURE:
        return _azure("abfss", parts.netloc, parts.path, options, url)
    raise DefinitionError(f"{url}: Spark may not know {parts.scheme}://: say where its own offsets go, with spark_checkpoint=")


def _azure(scheme: str, container: str, path: str, options: Mapping[str, Any] | None, url: str) -> str:
    account = next((str(options[name]) for name in _ACCOUNT if options and name in options), os.environ.get("AZURE_STORAGE_ACCOUNT_NAME"))
    if account is None:
        raise DefinitionError(
            f"{url}: Spark wants the name of the storage account: give account_name in storage_options, or say where its own offsets go, with "
            f"spark_checkpoint="
        )
    return f"{scheme}://{container}@{account}.dfs.core.windows.net{path}/spark"
