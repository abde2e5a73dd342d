"""Who may see the page, and what it gives away: nothing to strangers, nothing that runs, nothing that was pickled."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pagekit import Shop

import millstream as ms
from millstream.errors import DefinitionError, NetworkError
from millstream.monitoring.observer import Observer
from millstream.monitoring.web_server import COOKIE, PageServer
from millstream.state.manifest_log import ManifestLog
from millstream.state.storage import open_storage
from millstream.status.narrator import Narrator
from taskkit import Given

HOSTILE = "<script>alert('gotcha')</script>"


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: str = "") -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (self.path, "w")) if self.path else (Trap, ())

    def __eq__(self, other: object) -> bool:
        return False


class Pickled(ms.Computation):
    State = dict
    codec = ms.codecs.pickle

    def process_record(self, record: ms.Record) -> None:
        self.state["trap"] = record.value["do"]
        self.state["long"] = "x" * 100_000


def pickling(work: Path) -> tuple[ms.Pipeline, Given]:
    p, source = ms.Pipeline("pickled"), Given()
    rows = p.inject("rows", source, timestamp="at", id="id")
    p.compute(Pickled, rows, key="key", name="Pickled", produces="none")
    return p, source


def ask(server: PageServer, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection(server.address, timeout=10)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()
    connection.close()
    return found


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with Shop(tmp_path_factory.mktemp("shop"), ui="127.0.0.1:0") as shop:
        shop.give(60)
        shop.give(1, key=HOSTILE)
        shop.wait()
        yield shop


@pytest.fixture
def server(shop: Shop) -> PageServer:
    page = shop.handle._page
    assert page is not None
    return page


def guarded(shop: Shop, token: str = "") -> PageServer:
    return PageServer([Observer(ManifestLog(open_storage(str(shop.checkpoint))))], "127.0.0.1:0", token)


def test_without_a_token_only_this_machine_may_look(shop: Shop) -> None:
    for listen in ("0.0.0.0:0", "[::]:0"):
        with pytest.raises(DefinitionError, match="MILLSTREAM_COOKIE"):
            PageServer([], listen)


def test_a_token_is_asked_for_once_and_then_kept_in_a_cookie_that_no_script_reads(shop: Shop) -> None:
    server = guarded(shop, "s3cret")
    try:
        for path in ("/", "/api/pipelines", "/static/page.js", "/?token=wrong", "/?token=s3cret", "/api/pipelines?token=s3cret"):
            assert ask(server, path)[0] == 401, path
        address = server.url.removeprefix(f"http://{server.address}")
        assert "s3cret" not in address  # nor does the secret stand in logs
        status, headers, _ = ask(server, address)
        cookie = headers["set-cookie"]
        assert status == 303 and headers["location"] == "/" and "s3cret" not in cookie
        assert "httponly" in cookie.lower() and "samesite=strict" in cookie.lower()
        kept = cookie.split(";")[0]
        assert ask(server, "/api/pipelines", cookie=kept)[0] == 200 and ask(server, "/", cookie=f"other=1; {kept}")[0] == 200
        assert ask(server, "/api/pipelines", cookie=f"{COOKIE}=s3cret")[0] == 401  # the cookie is not the secret
        assert ask(server, "/api/pipelines", cookie=f"{COOKIE}=\xe9")[0] == 401
    finally:
        server.stop()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example", ""])
def test_a_name_that_somebody_has_made_to_point_here_is_not_answered(server: PageServer, host: str) -> None:
    assert ask(server, "/api/pipelines", host=host)[0] == 421


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "127.0.0.1:4080", "[::1]:80", "[::1]"])
def test_names_of_this_machine_are(server: PageServer, host: str) -> None:
    assert ask(server, "/api/pipelines", host=host)[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(server: PageServer, method: str) -> None:
    assert ask(server, "/api/pipelines/0", method)[0] == 405


def test_another_site_gets_no_data(server: PageServer) -> None:
    assert ask(server, "/api/pipelines/0", sec_fetch_site="cross-site")[0] == 403
    assert ask(server, "/", sec_fetch_site="cross-site")[0] == 200  # a link to the page is all right


@pytest.mark.parametrize("path", ["/", "/static/page.js", "/api/pipelines/0", "/api/pipelines/7", "/nowhere", "/static/../web_server.py"])
def test_everything_comes_with_a_policy_that_lets_nothing_else_run(server: PageServer, path: str) -> None:
    status, headers, _ = ask(server, path)
    policy = headers["content-security-policy"]
    assert (
        "default-src 'none'" in policy and "script-src 'self';" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
    )
    assert headers["x-content-type-options"] == "nosniff"
    assert (status == 200) == (path in ("/", "/static/page.js", "/api/pipelines/0"))


def test_hostile_keys_leave_as_data(server: PageServer) -> None:
    status, headers, body = ask(server, "/api/pipelines/0/state?computation=Totals&key=%3Cscript%3Ealert('gotcha')%3C/script%3E")
    assert status == 200 and headers["content-type"].startswith("application/json")
    (row,) = json.loads(body)["rows"]
    assert row["key"] == HOSTILE


@pytest.mark.crash
def test_what_was_pickled_stays_so_and_what_is_long_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Shop(tmp_path, build=pickling, ui="127.0.0.1:0") as shop:
        shop.give(1, key="k", do=str(tmp_path / "sprung"))
        shop.wait()
        page = shop.handle._page
        assert page is not None
        loaded: list[Any] = []
        monkeypatch.setattr("pickle.loads", lambda *given, **named: loaded.append(given))
        status, _, body = ask(page, "/api/pipelines/0/state?computation=Pickled")
        (row,) = json.loads(body)["rows"]
        assert status == 200 and '"codec": "pickle"' in row["state"] and len(body) < 10_000 and not loaded
    assert not (tmp_path / "sprung").exists()


def test_long_values_are_cut() -> None:
    from millstream.monitoring.browsing import MOST_TEXT, text

    assert len(text("x" * 1_000_000)) < MOST_TEXT + 100 and "1,000,000 characters" in text("x" * 1_000_000)
    assert text({"a": [1, None]}) == '{"a": [1, null]}'


def test_the_state_of_a_computation_a_view_and_a_sink_can_be_looked_at(server: PageServer) -> None:
    found = json.loads(ask(server, "/api/pipelines/0/state?computation=Totals&key=k1")[2])
    assert found["rows"][0]["key"] == "k1" and json.loads(found["rows"][0]["state"]) == {"total": sum(range(1, 60, 7))}
    view = json.loads(ask(server, "/api/pipelines/0/view?name=by-name&key=k1")[2])
    assert view["kind"] == "view" and json.loads(view["rows"][0]["value"]) == {"n": 1} and view["origins"] == [["k1", "[[1, 1]]"]]
    table = json.loads(ask(server, "/api/pipelines/0/view?name=names")[2])
    assert table["kind"] == "table" and len(table["rows"]) == 8
    rows = json.loads(ask(server, "/api/pipelines/0/rows?sink=totals")[2])["rows"]
    assert len(rows) == 61 and HOSTILE in {row["key"] for row in rows}
    assert "look at them there" in json.loads(ask(server, "/api/pipelines/0/rows?sink=Totals.dead-letters")[2])["why"]


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("state?computation=Nobody", "Nobody"),
        ("view?name=Totals", "computation"),
        ("rows?sink=nothing", "nothing"),
        ("state?computation=../../etc", "etc"),
    ],
)
def test_what_is_not_there_is_told_by_name(server: PageServer, path: str, word: str) -> None:
    status, _, body = ask(server, f"/api/pipelines/0/{path}")
    assert status == 409 and word in json.loads(body)["error"]


def test_news_come_at_most_once_a_second(server: PageServer, shop: Shop) -> None:
    connection = http.client.HTTPConnection(server.address, timeout=10)
    connection.request("GET", "/api/pipelines/0/events")
    answer = connection.getresponse()
    assert answer.headers["content-type"].startswith("text/event-stream")
    arrived: list[float] = []
    began = time.monotonic()
    while len(arrived) < 3:
        shop.give(5)
        line = answer.readline()
        if line.startswith(b"data: "):
            arrived.append(time.monotonic() - began)
            assert json.loads(line[6:])["pipeline"] == "shop"
    connection.close()
    assert arrived[2] - arrived[0] > 1.5


def test_a_taken_port_is_named(server: PageServer) -> None:
    with pytest.raises(NetworkError, match=server.address):
        PageServer([], server.address)


@pytest.mark.crash
def test_a_checkpoint_that_is_removed_is_told_and_what_was_seen_stays(tmp_path: Path) -> None:
    with Shop(tmp_path / "a") as shop:
        shop.give(10)
        shop.wait()
    server = PageServer(
        [Observer(ManifestLog(open_storage(str(shop.checkpoint)))), Observer(ManifestLog(open_storage(str(tmp_path / "none"))))],
        "127.0.0.1:0",
    )
    try:
        one, other = json.loads(ask(server, "/api/pipelines")[2])
        assert (one["word"], other["word"]) == ("stopped", "unreadable") and one["pipeline"] == "shop"
        shutil.rmtree(shop.checkpoint)
        deadline = time.monotonic() + 20
        found: dict[str, Any] = {}
        while found.get("word") != "unreadable" and time.monotonic() < deadline:
            found = json.loads(ask(server, "/api/pipelines/0")[2])
            time.sleep(0.1)
        assert found["word"] == "unreadable" and found["records"] == 10 and str(shop.checkpoint) in found["sentence"]
    finally:
        server.stop()


def test_the_modules_of_others_are_there_with_their_licences() -> None:
    import millstream.monitoring.web_server as module

    vendor = module.STATIC / "vendor"
    said = (vendor / "README.md").read_text()
    for file in os.listdir(vendor):
        assert file.startswith("LICENSE") or file == "README.md" or file in said
    assert {"LICENSE.htm", "LICENSE.preact", "LICENSE.uPlot", "LICENSE.dagre"} <= set(os.listdir(vendor))
    for script in [*module.STATIC.glob("*.js"), *vendor.glob("*.mjs")]:
        text = script.read_text()
        assert "innerHTML" not in text or script.parent == vendor, script
        assert "http://" not in text.replace("http://www.w3.org", "") or script.parent == vendor, script


def test_connections_that_ask_for_nothing_are_few_and_do_not_last(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    import millstream.monitoring.web_server as module

    monkeypatch.setattr(module, "_PATIENCE", 0.3)
    monkeypatch.setattr(module, "_MOST_CONNECTIONS", 20)
    host, port = server.address.split(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(60)]
    try:
        for one in idle:
            one.settimeout(10)
            assert one.recv(1) == b""  # it has hung up
        assert ask(server, "/api/pipelines")[0] == 200
    finally:
        for one in idle:
            one.close()


def test_of_a_large_file_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from millstream.monitoring import browsing

    monkeypatch.setattr(browsing, "_MOST_BYTES", 1_000)
    storage = open_storage(str(tmp_path))
    rows = "".join(json.dumps({"key": f"k{n}", "timestamp": n, "value": {"n": n}}) + "\n" for n in range(500))
    storage.put("p-s-0000-0000000001.jsonl", rows.encode())
    read: list[int | None] = []
    whole = type(storage).read

    def counted(self: Any, name: str, offset: int = 0, length: int | None = None) -> bytes:
        read.append(length)
        return whole(self, name, offset, length)

    monkeypatch.setattr(type(storage), "read", counted)
    found = browsing._last_rows(storage, "p-s-0000-0000000001.jsonl")
    assert [row["timestamp"] for row in found] == list(range(500 - len(found), 500)) and 10 < len(found) < 40 and read == [1_000]


def test_an_address_that_cannot_be_served_is_refused_before_anything_is_begun(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from millstream.handle import launch

    begun: list[str] = []
    monkeypatch.setattr("millstream.engine.spark.start.start", lambda *given, **asked: begun.append("Spark"))
    program, narrator = pickling(Path("nowhere"))[0].program(), Narrator("p", quiet=True)
    for asked, error in (
        ({"ui": "0.0.0.0:4080"}, DefinitionError),
        ({"ui": "4080"}, DefinitionError),
        ({"metrics": "80x"}, DefinitionError),
        ({"ui": server.address}, NetworkError),
        ({"metrics": server.address}, NetworkError),
    ):
        with pytest.raises(error):
            launch(program, narrator, checkpoint="nowhere", **asked)
    assert not begun
