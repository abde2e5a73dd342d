"""What the source and the sink of PostgreSQL have in common: how they connect, what a server says of a table, and what its errors say.

Rules
1. A connection finds out within a minute that the machine at the other end is gone, as those of `network.py` do: by keepalives and time-outs, where the
   user has said nothing of them.
2. The source has values as texts, of queries and of replication alike. What they look like must not depend on the settings of the server, so both have `TEXTS`.
3. Credentials that are refused are not tried again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg

_SOON = {
    "connect_timeout": "10",
    "keepalives_idle": "20",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "60000",
}
TEXTS = ("timezone=UTC", "datestyle=ISO", "intervalstyle=postgres", "bytea_output=hex", "extra_float_digits=3")
_REFUSALS = (
    "authentication failed",
    "no pg_hba.conf entry",
    "no password supplied",
    " does not exist",
)  # of a connection, which has no SQLSTATE
_PRIMARY_KEY = (
    "select a.attname from pg_index i, unnest(i.indkey) with ordinality k(number, at) join pg_attribute a on a.attnum = k.number "
    "where i.indrelid = %s and i.indisprimary and a.attrelid = i.indrelid order by k.at"
)


def conninfo(dsn: str, *settings: str, **more: str) -> str:
    """A connection string with what rule 1 adds. settings: of the session, behind those that the user gives.

    >>> conninfo("dbname=shop connect_timeout=3 options='-c lock_timeout=5'", "timezone=UTC").split(" keepalives")[0]
    "connect_timeout=3 dbname=shop options='-c lock_timeout=5 -c timezone=UTC'"
    """
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
    from psycopg.pq import Conninfo

    given = {one.keyword.decode(): one.val.decode() for one in Conninfo.get_defaults() if one.val}  # of the environment
    given |= {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
    more |= {name: value for name, value in _SOON.items() if name not in given}
    if settings:
        more["options"] = " ".join([given.get("options", ""), *(f"-c {one}" for one in settings)]).strip()
    return str(make_conninfo(dsn, **more))


def passes(error: BaseException) -> bool:
    """Whether it is worth trying again after this error."""
    import psycopg

    if not isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
        return False
    if error.sqlstate is not None:
        return not error.sqlstate.startswith("28")
    return not any(words in str(error) for words in _REFUSALS)


def primary_key(session: psycopg.Connection[Any], oid: int) -> list[str]:
    return [name for (name,) in session.execute(_PRIMARY_KEY, [oid]).fetchall()]


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def said(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".")
