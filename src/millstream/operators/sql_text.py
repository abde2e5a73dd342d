"""SQL texts to expressions: a small part of Spark's SQL.

Rules
1. Precedence, quotes and escapes are Spark's. What is not here is refused with its place, never guessed.
2. What can be said by other operations is: `a between b and c` is `a >= b and a <= c`, `if` and `nullif` are a case, `a <> b` is `not a = b`.
3. Words of the grammar are no names: a column that is called like one, or has another character in it, is written in backquotes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from millstream.errors import DefinitionError

from .expressions import TYPES, Expression, NotUnderstood
from .row_values import LEAST

_TOKEN = re.compile(
    r"""(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\w*)
      | (?P<name>[^\W\d]\w*) | (?P<quoted>`(?:[^`]|``)+`) | (?P<text>'(?:[^'\\]|''|\\.)*'|"(?:[^"\\]|""|\\.)*")
      | (?P<sign><=>|<=|>=|<>|!=|==|\|\||[-+*/%=<>(),.])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "\\": "\\", "'": "'", '"': '"', "%": "\\%", "_": "\\_"}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))|(''|\"\")", re.DOTALL)
#: How strongly operators bind.
_BINDS = {"or": 1, "and": 2, **dict.fromkeys(("is", "in", "between", "like", "not"), 4)}
_BINDS |= {**dict.fromkeys(("=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>"), 5), **dict.fromkeys(("+", "-", "||"), 6)}
_BINDS |= dict.fromkeys(("*", "/", "%"), 7)
_NOT, _MINUS = 3, 8
_WORDS = {*_BINDS, "case", "when", "then", "else", "end", "null", "true", "false", "cast", "as"}
#: Functions, by the least and greatest number of arguments.
_FUNCTIONS = {
    **dict.fromkeys(("lower", "upper", "length", "crc32", "trim", "ltrim", "rtrim", "abs", "floor", "ceil"), (1, 1)),
    **dict.fromkeys(("startswith", "endswith", "contains", "nullif"), (2, 2)),
    **dict.fromkeys(("coalesce", "concat"), (1, 99)),
    **dict.fromkeys(("greatest", "least"), (2, 99)),
    "substring": (2, 3),
    "if": (3, 3),
}
_ALIASES = {"substr": "substring", "starts_with": "startswith", "ceiling": "ceil"}
_NULL = Expression("literal", None)


class Token(NamedTuple):
    kind: str
    text: str
    at: int

    @property
    def word(self) -> str:
        return self.text.lower() if self.kind in ("name", "sign") else ""


class SqlParser:
    """Reads one text."""

    def __init__(self, text: str) -> None:
        self._text, self._next = text, 0
        self._tokens: list[Token] = []
        at = 0
        while at < len(text):
            if text[at].isspace():
                at += 1
                continue
            found = _TOKEN.match(text, at)
            if found is None:
                self._refuse(f"{text[at]!r}", at)
            self._tokens.append(Token(found.lastgroup or "", found[0], at))
            at = found.end()
        self._tokens.append(Token("end", "the end", len(text)))

    def parsed(self) -> Expression:
        found = self._expression(0)
        if self._ahead.kind != "end":
            self._refuse(f"{self._ahead.text!r}", self._ahead.at)
        return found

    # --- tokens

    @property
    def _ahead(self) -> Token:
        return self._tokens[self._next]

    def _take(self) -> Token:
        self._next += 1
        return self._tokens[self._next - 1]

    def _skip(self, *words: str) -> bool:
        """Takes these words if they come next."""
        ahead = [token.word for token in self._tokens[self._next : self._next + len(words)]]
        if ahead != list(words):
            return False
        self._next += len(words)
        return True

    def _want(self, word: str) -> None:
        if not self._skip(word):
            shown = self._ahead.text if self._ahead.kind == "end" else repr(self._ahead.text)
            self._refuse(f"{shown} stands where {word!r} should be", self._ahead.at, "")

    def _refuse(self, what: str, at: int, why: str = " is not understood") -> NoReturn:
        raise NotUnderstood(self._text, f"at position {at + 1}: {what}{why}")

    def _made(self, at: int, make: Callable[..., Expression], *args: Any) -> Expression:
        """An expression whose types fit, or a refusal with its place."""
        try:
            return make(*args)
        except NotUnderstood:
            raise
        except DefinitionError as error:
            self._refuse(str(error), at, "")

    # --- the grammar

    def _expression(self, least: int) -> Expression:
        left = self._prefix(least)
        while True:
            token = self._ahead
            binds = _BINDS.get(token.word, 0)
            if not binds or binds < least or (token.word == "not" and self._tokens[self._next + 1].word not in ("in", "between", "like")):
                return left
            self._take()
            left = self._made(token.at, self._infix, token, left, binds)

    def _infix(self, token: Token, left: Expression, binds: int) -> Expression:
        word = token.word
        if word == "not":
            return Expression("not", self._infix(self._take(), left, binds))
        if word == "is":
            negated = self._skip("not")
            self._want("null")
            return Expression("not", left.is_null()) if negated else left.is_null()
        if word == "between":
            low = self._expression(binds + 2)
            self._want("and")
            return Expression("and", Expression(">=", left, low), Expression("<=", left, self._expression(binds + 2)))
        if word == "like":
            return Expression("like", left, self._constant("a text in quotes", str))
        if word == "in":
            self._want("(")
            items = [self._constant("a value, no expression,", object)]
            while self._skip(","):
                items.append(self._constant("a value, no expression,", object))
            self._want(")")
            return left.is_in(items)
        right = self._expression(binds + 1)
        if word in ("<>", "!="):
            return Expression("not", Expression("=", left, right))
        return Expression({"==": "=", "||": "concat"}.get(word, word), left, right)

    def _constant(self, what: str, kind: type) -> Any:
        at = self._ahead.at
        found = self._expression(6)
        if found.op != "literal" or not isinstance(found.args[0], kind):
            self._refuse(f"here only {what} can stand", at, "")
        return found.args[0]

    def _prefix(self, least: int) -> Expression:
        token = self._take()
        word = token.word
        if token.kind == "number":
            return self._number(token, "")
        if token.kind == "text":
            return Expression("literal", self._unescaped(token))
        if token.kind == "quoted" or (token.kind == "name" and word not in _WORDS and self._ahead.word != "("):
            return self._column(token)
        if word == "(":
            found = self._expression(0)
            self._want(")")
            return found
        if word == "-":
            if self._ahead.kind == "number":
                return self._number(self._take(), "-")
            return self._made(token.at, Expression, "negative", self._expression(_MINUS))
        if word == "not" and least <= _NOT:
            return self._made(token.at, Expression, "not", self._expression(_NOT))
        if word in ("true", "false", "null"):
            return Expression("literal", {"true": True, "false": False}.get(word))
        if word == "case":
            return self._made(token.at, self._case)
        if word == "cast" or (token.kind == "name" and word not in _WORDS):
            return self._made(token.at, self._call, token)
        self._refuse(token.text if token.kind == "end" else repr(token.text), token.at)

    def _number(self, token: Token, sign: str) -> Expression:
        digits = re.fullmatch(r"([0-9]+)[lL]?", token.text)
        if digits:
            value = int(sign + digits[1])
            if not LEAST <= value < -LEAST:
                self._refuse(f"{value} does not fit into a long", token.at, "")
            return Expression("literal", value)
        number = re.fullmatch(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)[dD]?", token.text)
        if number is None or float(number[1]) == float("inf"):
            self._refuse(f"the number {token.text!r}", token.at)
        return Expression("literal", float(sign + number[1]))

    def _unescaped(self, token: Token) -> str:
        quote = token.text[0]

        def plain(found: re.Match[str]) -> str:
            if found[1]:
                return chr(int(found[1], 16))
            if found[3]:
                return quote if found[3][0] == quote else found[3]
            if found[2] not in _ESCAPED:
                self._refuse(f"the escape {found[0]!r}", token.at + 1 + found.start())
            return _ESCAPED[found[2]]

        return _ESCAPE.sub(plain, token.text[1:-1])

    def _column(self, token: Token) -> Expression:
        path = [token]
        while self._skip("."):
            path.append(self._take())
            if path[-1].kind not in ("name", "quoted"):
                self._refuse(f"{path[-1].text!r} after a '.'", path[-1].at)
        return Expression("column", *(one.text[1:-1].replace("``", "`") if one.kind == "quoted" else one.text for one in path))

    def _case(self) -> Expression:
        subject = None if self._ahead.word == "when" else self._expression(0)
        parts: list[Expression] = []
        while self._skip("when"):
            condition = self._expression(0)
            self._want("then")
            parts += [condition if subject is None else Expression("=", subject, condition), self._expression(0)]
        otherwise = self._expression(0) if self._skip("else") else _NULL
        if not parts:
            self._want("when")
        self._want("end")
        return Expression("case", *parts, otherwise)

    def _call(self, token: Token) -> Expression:
        self._want("(")
        if token.word == "cast":
            found = self._expression(0)
            self._want("as")
            to = self._take()
            if to.word not in TYPES:
                self._refuse(f"the type {to.text!r} (of {', '.join(TYPES)})", to.at)
            self._want(")")
            return found.cast(to.word)
        name = _ALIASES.get(token.word, token.word)
        if name not in _FUNCTIONS:
            self._refuse(f"the function {token.text!r} (of {', '.join(sorted(_FUNCTIONS))}, cast)", token.at)
        args: list[Any] = []
        if self._ahead.word != ")":
            args.append(self._expression(0))
            while self._skip(","):
                args.append(self._constant("a whole number", int) if name == "substring" else self._expression(0))
        self._want(")")
        least, most = _FUNCTIONS[name]
        if not least <= len(args) <= most:
            self._refuse(f"{name} does not take {len(args)} arguments", token.at, "")
        if name == "if":
            return Expression("case", *args)
        if name == "nullif":
            return Expression("case", Expression("=", *args), _NULL, args[0])
        if any(isinstance(limit, bool) or (isinstance(limit, int) and abs(limit) >= 2**31) for limit in args):
            self._refuse("a limit of substring is no int", token.at, "")
        return Expression(name, *args)
