"""Expressions: what a record, a column and Spark make of the same text is the same.

The Spark session shows what is right; records and columns are compared with each other for many more expressions.
"""

from __future__ import annotations

import math
import pickle
import random
from collections import Counter
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from expressionkit import KINDS, table, text
from hypothesis import given, settings
from hypothesis import strategies as st

import millstream as ms
from effort import first_seed, some
from millstream.core.keys import key_text
from millstream.engine.columns.keying import Keying
from millstream.errors import DefinitionError, HookError, InputError
from millstream.operators.column_values import OperandRows, worked_out
from millstream.operators.expressions import Expression, NotInColumns, as_expression, as_text, col, parse

TABLE = table(random.Random(3), 40)
RECORDS = TABLE.to_pylist()


def seen(value: Any) -> str:
    """A value with its type and the sign of its zero."""
    return repr(value)


def by_row(expression: Expression, record: dict[str, Any]) -> str:
    try:
        return seen(expression.row(record))
    except HookError as error:
        return f"! {error}"


def by_columns(expression: Expression, rows: Any) -> list[str] | str:
    try:
        return [seen(one) for one in expression.columns(rows.column, len(rows)).to_pylist()]
    except HookError as error:
        return f"! {error}"


@settings(max_examples=some(4000, 200), deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from(KINDS), st.integers(0, 3))
def test_oracle_records_and_columns_agree_in_values_and_errors(draw: random.Random, kind: str, depth: int) -> None:
    expression = pickle.loads(pickle.dumps(parse(text(draw, kind, depth))))
    rows = TABLE.slice(draw.randrange(30), draw.randrange(11))
    wanted = [by_row(expression, record) for record in rows.to_pylist()]
    failed = [one for one in wanted if one.startswith("!")]
    assert by_columns(expression, rows) == (failed[0] if failed else wanted)
    for at, one in enumerate(wanted):
        assert by_columns(expression, rows.slice(at, 1)) == (one if one.startswith("!") else [one])
    good = pa.array([not one.startswith("!") for one in wanted], pa.bool_())
    at_once = worked_out(expression, OperandRows(rows.filter(good).column, good.true_count))  # not record by record: none of these fails
    assert [seen(one) for one in at_once.to_pylist()] == [one for one in wanted if not one.startswith("!")]
    assert at_once.type in (pa.null(), {"long": pa.int64(), "double": pa.float64(), "string": pa.string(), "boolean": pa.bool_()}[kind])
    assert by_columns(expression, rows.slice(0, 0)) == []


@settings(max_examples=some(1000, 100), deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from(KINDS), st.integers(0, 3))
def test_what_is_written_for_spark_reads_as_the_same_expression(draw: random.Random, kind: str, depth: int) -> None:
    expression = parse(text(draw, kind, depth))
    for written in (expression.sql, expression.describe()):
        again = parse(written)
        assert again.fields == expression.fields
        for record in RECORDS[:10]:
            first, second = by_row(expression, record), by_row(again, record)
            assert first == second or (first[0] == second[0] == "!")


def test_operators_say_what_texts_say() -> None:
    price, country = col("price"), col("country")
    both = [
        (price * 2 + 1 > 7, "price * 2 + 1 > 7"),
        ((price > 3) & country.is_in(["DE", "IS"]), "price > 3 and country in ('DE', 'IS')"),
        (~(price == 3) | price.is_null(), "not price = 3 or price is null"),
        (price != 3, "price <> 3"),
        (1 - price % 4 / 2, "1 - price % 4 / 2"),
        (-abs(price), "- abs(price)"),
        (price.cast("long"), "cast(price as bigint)"),
        (col("a.b") <= 1.5, "a.b <= 1.5"),
        (country == "it's", "country = 'it''s'"),
        (True & (price >= 3), "true and price >= 3"),
    ]
    for made, said in both:
        assert made.sql == parse(said).sql
    assert repr(price > 3) == "Expression('price > 3')" and (price > 3).fields == {"price"}
    assert as_expression("price").sql == as_expression(price).sql == "`price`" and ms.col("price").sql == "`price`"
    assert as_text([price, price + 1, 7, "x"]) == ["price", "((`price` - 0L) + 1L)", 7, "x"] and as_text(col("a.b")) == "`a`.`b`"


def test_an_expression_is_no_truth_and_cannot_be_changed() -> None:
    with pytest.raises(DefinitionError, match="price > 3 is neither true nor false: use &"):
        bool(col("price") > 3)
    with pytest.raises(DefinitionError, match="use is_null"):
        col("price") == None  # noqa: B015, E711
    with pytest.raises(AttributeError):
        col("price").op = "x"
    with pytest.raises(DefinitionError, match="cannot stand in an expression"):
        col("price") + b"x"
    with pytest.raises(DefinitionError, match="only to string"):
        col("price").cast("decimal")


class Item:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


def test_a_record_is_a_mapping_or_an_object() -> None:
    expression = parse("price * quantity")
    assert expression.row({"price": 2, "quantity": 3}) == expression.row(Item(price=2, quantity=3)) == 6
    assert parse("a.b.c").row({"a": Item(b={"c": 1})}) == 1 and parse("a.b.c").row({"a": None}) is None
    with pytest.raises(HookError, match=r"price \* quantity: there is no field 'quantity'; it has: price \(in a record with price = 2\)"):
        expression.row({"price": 2})


@pytest.mark.parametrize(
    ("said", "record", "why"),
    [
        ("a + 1", {"a": 2**63 - 1}, r"9223372036854775807 \+ 1 overflows a long"),
        ("a / b", {"a": 1, "b": 0}, "1 / 0 is a division by zero"),
        ("a % b", {"a": 1.5, "b": 0.0}, "1.5 % 0.0 is a division by zero"),
        ("a + b", {"a": 1, "b": "x"}, r"\+ takes no string, only long or double"),
        ("a = b", {"a": 1, "b": "x"}, "= of a long and a string: cast one of them"),
        ("a and b", {"a": True, "b": 1}, "and takes no long"),
        ("coalesce(a, 'x')", {"a": 1}, "coalesce of a long and a string"),
        ("cast(a as int)", {"a": 2**31}, "2147483648 does not fit into int"),
        ("cast(a as long)", {"a": "1.5"}, "the text '1.5' is no bigint"),
        ("cast(a as string)", {"a": 1.5}, "cast of a double as string is not the same everywhere"),
        ("a > 1", {"a": 2**63}, "does not fit into a long"),
        ("a > 1", {"a": b"x"}, "> takes no bytes"),
        ("upper(a)", {"a": "\u0378"}, "depends on the version of Unicode"),
    ],
)
def test_an_error_names_the_expression_the_operands_and_the_record(said: str, record: dict[str, Any], why: str) -> None:
    with pytest.raises(HookError, match=why) as error:
        parse(said).row(record)
    assert parse(said).describe() in str(error.value) and "(in a record with a = " in str(error.value)


@pytest.mark.parametrize(
    ("said", "place", "why"),
    [
        ("price >", 8, "the end is not understood"),
        ("price @ 3", 7, "'@' is not understood"),
        ("price 3", 7, "'3' is not understood"),
        ("sha2(user)", 1, "the function 'sha2' (of abs,"),
        ("cast(a as decimal)", 11, "the type 'decimal' (of string,"),
        ("a in (b)", 7, "here only a value, no expression, can stand"),
        ("a like b", 8, "here only a text in quotes can stand"),
        ("a + 'x'", 3, "+ takes no string"),
        ("a and 1", 3, "and takes no long"),
        ("case when a then 1 else 'x' end", 1, "case of a long and a string"),
        ("a like 'x\\\\y'", 3, "a backslash stands only before"),
        ("'\\q'", 2, "the escape '\\\\q' is not understood"),
        ("1.5BD", 1, "the number '1.5BD' is not understood"),
        ("9223372036854775808", 1, "does not fit into a long"),
        ("(a", 3, "the end stands where ')' should be"),
        ("round(a)", 1, "the function 'round'"),
        ("substring(a, b)", 14, "here only a whole number can stand"),
        ("a. + 1", 4, "'+' after a '.' is not understood"),
        ("if(a, b)", 1, "if does not take 2 arguments"),
        ("interval 1 day", 10, "'1' is not understood"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_place_and_the_way_out(said: str, place: int, why: str) -> None:
    with pytest.raises(DefinitionError) as error:
        parse(said)
    told = str(error.value)
    assert told.startswith(f"the SQL text {said!r}, at position {place}: ") and why in told
    assert "give a Python function where one is taken" in told and "without resident=True" in told and told.count("at position") == 1


def test_words_bind_as_in_sql() -> None:
    for said, shown in (
        ("a + b * c", "a + (b * c)"),
        ("not a = b and c", "(not (a = b)) and c"),
        ("a or b and c", "a or (b and c)"),
        ("a = b is null", "(a = b) is null"),
        ("- a * b", "(- a) * b"),
        ("a between 1 and 2 and c", "((a >= 1) and (a <= 2)) and c"),
        ("a not in (1, -2) or not b", "(not (a in (1, -2))) or (not b)"),
        ("a - b - c", "(a - b) - c"),
        ("a || b = c", "concat(a, b) = c"),
        ("CASE WHEN `A b` IS NOT NULL THEN 1 END", "case when (not (`A b` is null)) then 1 else null end"),
    ):
        assert parse(said).describe() == shown


def test_types_that_do_not_fit_are_found_without_rows() -> None:
    empty = pa.table(
        {
            "n": pa.array([], pa.int64()),
            "x": pa.array([], pa.float64()),
            "s": pa.array([], pa.string()),
            "t": pa.array([], pa.timestamp("us")),
        }
    )
    for said in (
        "n + s",
        "coalesce(n, x)",
        "t > 1",
        "cast(x as string)",
        "coalesce(n, s)",
        "case when n then 1 end",
        "s in (1)",
        "greatest(n, x)",
        "s.a",
        "coalesce(t, n)",
    ):
        with pytest.raises(NotInColumns, match=r".: "):
            parse(said).columns(empty.column, 0)
    assert parse("coalesce(n, 0.5)").columns(empty.column, 0).type == pa.float64()
    assert parse("coalesce(t, t)").columns(empty.column, 0).type == pa.timestamp("us")


FACTS: dict[str, Any] = {  # what Spark 4.3 said
    "minus % three": -1,
    "least % minus_one": 0,
    "minus / 2": -3.5,
    "(most + 1) / nil": None,  # the divisor comes first
    "nil + (most + 1)": None,
    "nil / 0": None,
    "nan = nan": True,
    "nan > 1e308": True,
    "below < 0.0": False,
    "-7.5 % three": -1.5,
    "most > 9223372036854775807.0": False,  # as doubles they are equal
    "floor(nan)": 0,
    "cast(9223372036854775808.0 + three * 0 as bigint)": 2**63 - 1,
    "three in (1, null)": None,
    "three in (3, null)": True,
    "greatest(nil, three, minus)": 3,
    "least(nan, 1.0)": 1.0,
    "substring(abc, -5, 3)": "a",
    "substring(abc, 0, 2)": "ab",
    "abc like 'a_c'": True,
    "three <=> nil": False,
    "nil = 1 and three = 4": False,
    "nil = 1 or three = 3": True,
    "cast(' 12 ' || trim(' ') as bigint) + three": 15,
}
FACTS_OF = pa.table(
    {
        **{name: pa.array([value], pa.int64()) for name, value in {"minus": -7, "minus_one": -1, "three": 3, "nil": None}.items()},
        **{name: pa.array([value], pa.int64()) for name, value in {"most": 2**63 - 1, "least": -(2**63)}.items()},
        **{name: pa.array([value], pa.float64()) for name, value in {"nan": math.nan, "below": -0.0}.items()},
        "abc": ["abc"],
    }
)


@pytest.mark.parametrize(("said", "wanted"), FACTS.items(), ids=FACTS)
def test_facts_that_are_easily_got_wrong(said: str, wanted: Any) -> None:
    assert seen(parse(said).row(FACTS_OF.to_pylist()[0])) == seen(wanted)
    assert by_columns(parse(said), FACTS_OF) == [seen(wanted)]


# --- keys


class Unread(ms.sources.Source):
    """A source that nobody reads here."""

    def describe(self) -> str:
        return "a table"


class Seen(ms.Computation):
    """Passes its key on."""

    State = int

    def process_record(self, record: ms.Record) -> None:
        self.produce(record.value["at"])


KEYS: list[Any] = [
    "lower(s)",
    "coalesce(s, u, '?')",
    ["i % 7", "b and c", "s || '\\u0000'"],
    "cast(l as string)",
    col("o.n") > 3,
    [col("s"), col("m") - 1 > col("l")],
    "case when d > e then s else u end",
]


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_oracle_keys_without_spark_are_those_of_the_local_engine(key: Any) -> None:
    def made() -> ms.Pipeline:
        p = ms.Pipeline("p")
        rows = p.inject("in", Unread(), timestamp="at * 1000 + 1", id="cast(at as string) || '!'")
        p.compute(Seen, rows, key=key, produces="out", on_error=ms.DEAD_LETTER)
        return p

    at = pa.array(range(len(TABLE)), pa.int64())
    safe = TABLE.append_column("at", at).filter(pa.array([one["m"] != -(2**63) for one in RECORDS]))
    program = made().program()
    keyed = Keying(program, program.topology.injectors["in"], safe.schema, 4).keyed(safe, 0)
    assert keyed.column("ts").to_pylist() == [one * 1000 + 1 for one in safe.column("at").to_pylist()]
    assert keyed.column("id").to_pylist() == [f"{one}!" for one in safe.column("at").to_pylist()]
    wanted = {
        one: text for text, one in zip(keyed.column("key").to_pylist(), safe.column("at").to_pylist(), strict=True) if text is not None
    }
    runner = ms.testing.LocalRunner(made())
    runner.push("in", *safe.to_pylist())
    runner.run()
    assert {value: key_text(key) for key, value, *_ in runner.output("out")} == wanted and len(wanted) > 5


@pytest.mark.parametrize(
    "key", ["lower(word)", col("word").cast("string"), ["n % 2", "word"], [col("n") > 1, "lower(word)"], "a - n"], ids=repr
)
def test_keys_of_internal_streams_may_be_expressions(key: Any) -> None:
    class Words(ms.Computation):
        State = int

        def process_record(self, record: ms.Record) -> None:
            self.produce({"word": record.value["word"], "n": record.value["n"], "a": 7})

    class Count(ms.Computation):
        State = int

        def process_record(self, record: ms.Record) -> None:
            self.state += 1

    p = ms.Pipeline("p")
    words = p.compute(Words, p.inject("in", ms.sources.files("in/", schema="word string, n long")), key="n")
    p.compute(Count, words, key=key)
    program = pickle.loads(pickle.dumps(p.topology().routes[-1].key))
    assert repr(program) == ", ".join(as_expression(one).describe() for one in (key if isinstance(key, list) else [key]))
    runner = ms.testing.LocalRunner(p)
    rows = [{"word": "Tea", "n": 1}, {"word": "tea", "n": 2}, {"word": "Tea", "n": 3}]
    runner.push("in", *rows)
    runner.run()
    parts = [[as_expression(one).row({**row, "a": 7}) for one in (key if isinstance(key, list) else [key])] for row in rows]
    wanted = Counter(tuple(one) if isinstance(key, list) else one[0] for one in parts)
    assert runner.state("Count") == dict(wanted)


def test_a_key_of_an_internal_stream_that_is_not_understood_is_refused() -> None:
    def made(key: Any) -> Any:
        p = ms.Pipeline("p")
        p.compute(Seen, p.compute(Seen, p.inject("in", Unread()), key="at", name="A"), key=key, name="B")
        return p.topology().routes[-1].key

    with pytest.raises(
        DefinitionError,
        match=r"computation 'B': the key 'md5\(x\)' of the internal stream 'A' is no expression .*at position 1: the function",
    ):
        made("md5(x)")
    assert [made(key) for key in ("x", "user-id", "user name", ["x", "y"], "a.b")] == ["x", "user-id", "user name", ("x", "y"), "a.b"]


def test_a_row_that_fails_names_itself_in_the_local_engine() -> None:
    p = ms.Pipeline("p")
    p.compute(Seen, p.inject("in", Unread(), id="cast(1 / n as boolean)"), key="n")
    runner = ms.testing.LocalRunner(p)
    runner.push("in", {"n": 0})
    with pytest.raises(InputError, match=r"stream 'in', id: the expression .* 1 / 0 is a division by zero .*row \{'n': 0\}"):
        runner.run()


# --- against Spark


class Case(NamedTuple):
    said: str
    expression: Expression
    wanted: list[str]  # of every record; an error begins with "!"


def cases(seed: int, count: int, literals: bool) -> list[Case]:
    draw = random.Random(seed)
    found = []
    for at in range(count):
        said = text(draw, KINDS[at % 4], 1 + at % 3, literals=literals)
        expression = parse(said)
        found.append(Case(said, expression, [by_row(expression, record) for record in RECORDS]))
    return found


@pytest.mark.spark
def test_the_facts_are_sparks(spark: Any) -> None:
    found = spark.createDataFrame(FACTS_OF).selectExpr(*(f"{parse(said).sql} as x{at}" for at, said in enumerate(FACTS))).collect()[0]
    assert list(map(seen, found)) == list(map(seen, FACTS.values()))


@pytest.mark.spark
def test_oracle_spark_gives_what_records_give(spark: Any) -> None:
    numbered = TABLE.append_column("at", pa.array(range(len(TABLE)), pa.int32()))
    frame = spark.createDataFrame(numbered).repartition(1).cache()
    differs = []
    tried = cases(first_seed(), some(1200, 100), literals=True)
    for begin in range(0, len(tried), 50):
        batch = tried[begin : begin + 50]
        columns = ["at"]
        for number, case in enumerate(batch):
            good = [at for at, one in enumerate(case.wanted) if not one.startswith("!")]
            columns.append(f"case when at in ({', '.join(map(str, [-1, *good]))}) then {case.expression.sql} end as x{number}")
        for row in frame.selectExpr(*columns).collect():
            for number, case in enumerate(batch):
                wanted = case.wanted[row["at"]]
                if not wanted.startswith("!") and seen(row[f"x{number}"]) != wanted:
                    differs.append((case.said, case.expression.sql, RECORDS[row["at"]], wanted, row[f"x{number}"]))
    assert not differs


@pytest.mark.spark
def test_oracle_spark_fails_where_records_fail(spark: Any) -> None:
    numbered = TABLE.append_column("at", pa.array(range(len(TABLE)), pa.int32()))
    frame = spark.createDataFrame(numbered).repartition(1).cache()
    draw, calm, tried, failed = random.Random(first_seed()), [], 0, 0
    for case in cases(first_seed() + 1, some(400), literals=False):
        bad = [at for at, one in enumerate(case.wanted) if one.startswith("!")]
        if (
            not bad or tried == some(120, 10) or " is " in case.said or "<=>" in case.said
        ):  # of what cannot be null Spark knows that without a look
            continue
        tried += 1
        at = draw.choice(bad)
        try:
            found = frame.where(f"at = {at}").selectExpr(f"{case.expression.sql} as x").collect()
            if found[0]["x"] is not None:  # a null decides for Spark, on whichever side it stands
                calm.append((case.said, RECORDS[at], case.wanted[at], found))
        except Exception as error:
            failed += 1
            assert any(word in str(error) for word in ("OVERFLOW", "BY_ZERO", "CAST_INVALID_INPUT")), str(error)[:300]
    assert failed > tried / 2 and not calm
