"""What of a table or a view works on columns, and why the rest does not, for `pipeline.explain()`."""

from __future__ import annotations

from millstream.columnviews.mapping import reason
from millstream.views.aggregate import Aggregate
from millstream.views.operator import ViewOperator
from millstream.views.table import DocumentTable


def explained_relation(operator: ViewOperator) -> list[tuple[str, str]]:
    """By part, why it is done row by row; "" where it is not."""
    found = []
    if isinstance(operator, DocumentTable):
        found.append(("documents", "" if operator.rules.said is not None else "their version or deletion is no field"))
        found += [(f"what it tells {one.consumer}", reason(one)) for one in operator.downstreams]
    if isinstance(operator, Aggregate):
        found.append(("groups", "values are counted by reference" if operator.index else ""))
        if not operator.index and not operator.inverts:
            found.append(("groups with leaves", "the reducer has no inverse"))
        found += [(f"what it tells {one.consumer}", "it is told by changed groups alone") for one in operator.downstreams]
    return found
