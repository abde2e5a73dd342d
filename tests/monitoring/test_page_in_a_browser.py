"""The page in a real browser: every picture is there with right numbers, follows new epochs, and bears whatever a pipeline has in it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pagekit import BEGIN, Shop

from millstream.monitoring.observer import Observer
from millstream.monitoring.web_server import PageServer
from millstream.state import heartbeat
from millstream.state.manifest_log import ManifestLog
from millstream.state.storage import open_storage

pytestmark = pytest.mark.crash

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no Chromium: scripts/chromium.sh installs it where it can")
    with playwright.sync_playwright() as tool:
        found = tool.chromium.launch(executable_path=program, args=FLAGS)
        yield found
        found.close()


class Looker:
    """A page, and what went wrong on it."""

    def __init__(self, browser: Any, url: str, width: int = 1400, scheme: str = "light") -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.wrong.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.page.on(
            "console",
            lambda said: self.wrong.append(said.text) if said.type == "error" and "Failed to load resource" not in said.text else None,
        )
        self.page.on(
            "request", lambda request: None if request.url.startswith((url, "data:")) else self.wrong.append(f"asks {request.url}")
        )
        self.page.goto(url)

    def __enter__(self) -> Any:
        return self.page

    def __exit__(self, *exc: object) -> None:
        self.context.close()
        if exc[0] is None:
            assert not self.wrong


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with Shop(tmp_path_factory.mktemp("shop"), ui="127.0.0.1:0") as shop:
        shop.give(700)
        shop.wait()
        shop.give(1, do="hold", key="the holder")
        shop.give(2, do="fail")
        shop.give(60)
        shop.wait()
        shop.give(1, key=HOSTILE)
        shop.give(3, at=BEGIN - 60_000, key="late")
        shop.give(1)
        shop.wait()
        yield shop


def url(shop: Shop) -> str:
    assert shop.handle.page is not None
    return shop.handle.page


def fact(page: Any, name: str) -> str:
    return str(page.locator("header.top dl div", has=page.locator(f'dt:text-is("{name}")')).locator("dd").inner_text())


def test_every_picture_is_there_with_the_numbers_of_the_run(browser: Any, shop: Shop) -> None:
    with Looker(browser, url(shop)) as page:
        page.wait_for_selector("svg .node")
        status = shop.handle.status()
        assert page.locator("h1").inner_text() == "shop" and page.locator("header .pill").inner_text() == "running"
        assert fact(page, "records") == f"{status.records:,}" and fact(page, "mode") == "resident"
        nodes = page.locator("svg .node").evaluate_all("all => all.map(one => one.getAttribute('aria-label'))")
        assert len(nodes) == 1 + 4 + 4  # a source, four computations, four sinks
        totals = next(one for one in nodes if one.startswith("computation Totals"))
        keys = next(one.keys for one in status.computations if one.name == "Totals")
        assert re.search("holding|failing|late records", totals) and "on the path" in totals and f"{keys} keys" in totals
        assert "the holder" in page.locator("p.holds").inner_text()
        held = page.locator("svg path.edge.holds").count()
        assert held >= 1
        assert page.locator("#epochs canvas").count() == 1 and page.locator("#time canvas").count() == 2
        assert page.locator("#shards .cell").count() == 4
        late = page.locator("#astray")
        assert "'late'" in late.inner_text() and late.locator("dd").first.inner_text() == "3"
        assert "ValueError: this record was to fail" in late.inner_text()
        assert page.locator("#tasks tbody tr").count() == 2
        assert "Totals" in page.locator("#upkeep").inner_text()


def test_the_charts_show_what_was_measured(browser: Any, shop: Shop) -> None:
    with Looker(browser, url(shop)) as page:
        page.wait_for_selector("#epochs canvas")
        page.locator("#epochs summary").click()
        first = page.locator("#epochs details tbody tr").first.inner_text()
        assert "step" in first and "commit" in first
        drawn = page.evaluate(
            "() => [...document.querySelectorAll('canvas')].map(c => new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size)"
        )
        assert all(colours > 8 for colours in drawn), drawn


def test_new_epochs_are_followed(browser: Any, shop: Shop) -> None:
    with Looker(browser, url(shop)) as page:
        page.wait_for_selector("svg .node")
        before = shop.handle.status().records
        shop.give(40)
        shop.wait()
        page.wait_for_function(f"() => document.querySelector('header.top').innerText.includes('{before + 40:,}')", timeout=5_000)


def test_hostile_keys_are_text(browser: Any, shop: Shop) -> None:
    with Looker(browser, url(shop)) as page:
        page.wait_for_selector("#rows tbody tr")
        page.locator("#rows select").select_option("totals")
        page.wait_for_function("() => document.querySelector('#rows').innerText.includes('onerror=alert(1)')")
        page.get_by_label("key, or nothing").fill(HOSTILE)
        page.get_by_role("button", name="Look").click()
        page.wait_for_selector("#state tbody tr")
        assert HOSTILE in page.locator("#state tbody").inner_text()
        assert page.locator("img").count() == 0 and page.locator("main script").count() == 0


def test_state_timers_and_what_makes_a_view_can_be_looked_up(browser: Any, shop: Shop) -> None:
    with Looker(browser, url(shop)) as page:
        page.wait_for_selector("#state select")
        page.get_by_label("key, or nothing").fill("the holder")
        page.get_by_role("button", name="Look").click()
        page.wait_for_selector("#state tbody tr")
        assert "holds 2023-11-14" in page.locator("#state tbody").inner_text()
        page.locator("#state select").select_option("by-name")
        page.get_by_label("key, or nothing").fill("k1")
        page.get_by_role("button", name="Look").click()
        page.wait_for_selector("#state h3:has-text('documents')")
        page.get_by_label("key, or nothing").fill("nobody")
        page.get_by_role("button", name="Look").click()
        page.wait_for_function("() => !document.querySelector('#state tbody tr')")


def test_a_keyboard_reaches_the_graph_and_opens_a_node(browser: Any, shop: Shop) -> None:
    with Looker(browser, url(shop)) as page:
        page.wait_for_selector("svg .node")
        for _ in range(40):
            page.keyboard.press("Tab")
            if "computation Totals" in str(page.evaluate("() => document.activeElement.getAttribute('aria-label') || ''")):
                break
        page.keyboard.press("Enter")
        details = page.get_by_role("region", name="details of Totals")
        assert "own" in details.inner_text() and "dead letters" in details.inner_text()
        unnamed = page.evaluate(
            "() => [...document.querySelectorAll('button, input, select, a, [role=img], [role=button], [role=group]')]"
            ".filter(one => !(one.getAttribute('aria-label') || one.textContent || (one.labels && one.labels.length))).map(one => one.outerHTML.slice(0, 200))"
        )
        assert unnamed == []


CONTRAST = """() => {
  const part = (v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const behind = (one) => {
    for (; one; one = one.parentElement) {
      const found = rgb(getComputedStyle(one).backgroundColor);
      if (found.length < 4 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  const ratio = (one) => {
    const [low, high] = [light(rgb(getComputedStyle(one).color)), light(behind(one))].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const texts = [...document.querySelectorAll('h1, h2, h3, p, dt, dd, td, th, a, .pill, label')].filter((one) => one.innerText && one.offsetParent);
  return texts.filter((one) => ratio(one) < 4.5).map((one) => `${ratio(one).toFixed(2)} ${one.innerText.slice(0, 40)}`);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_it_fits_a_phone_and_can_be_read_on_light_and_dark(browser: Any, shop: Shop, width: int, scheme: str) -> None:
    with Looker(browser, url(shop), width, scheme) as page:
        page.wait_for_selector("svg .node")
        page.wait_for_selector("#rows tbody tr")
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
        assert page.evaluate(CONTRAST) == []


def test_several_pipelines_are_a_choice_and_an_empty_one_says_so(browser: Any, shop: Shop, tmp_path: Path) -> None:
    log = ManifestLog(open_storage(str(tmp_path / "new")))
    log.identify("newcomer", 4, 4, ["rows"])
    server = PageServer([Observer(ManifestLog(open_storage(str(shop.checkpoint)))), Observer(log)], "127.0.0.1:0")
    try:
        with Looker(browser, server.url) as page:
            page.wait_for_selector(".cards a")
            assert page.locator(".cards a").count() == 2
            page.locator(".cards a", has_text="newcomer").click()
            page.wait_for_selector("header .pill")
            assert page.locator("header .pill").inner_text() == "new" and "Nothing is committed yet" in page.locator("#graph").inner_text()
            page.get_by_label("all pipelines").click()
            page.locator(".cards a", has_text="shop").click()
            page.wait_for_selector("svg .node")
    finally:
        server.stop()


def test_a_driver_that_is_killed_and_a_checkpoint_that_goes_are_told(browser: Any, tmp_path: Path) -> None:
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), str(here.parent), *sys.path])}
    driver = subprocess.Popen(
        [sys.executable, str(here / "pagekit.py"), str(tmp_path), "0"], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert driver.stdout is not None
        address = driver.stdout.readline().strip()
        assert re.match(r"http://127\.0\.0\.1:\d+/", address)
        checkpoint = tmp_path / "checkpoint"
        with Looker(browser, address) as page:
            page.wait_for_function("() => document.querySelectorAll('svg .node').length > 5", timeout=20_000)
            driver.send_signal(signal.SIGKILL)
            driver.wait()
            page.wait_for_selector(".lost", timeout=10_000)
        storage = open_storage(str(checkpoint))
        sign = heartbeat.last_sign(storage)
        assert sign is not None and sign.pid == driver.pid and sign.state == "running"
        heartbeat.say(storage, msgspec.structs.replace(sign, at=int(time.time() * 1000) - 60_000))  # instead of a minute's wait
        server = PageServer([Observer(ManifestLog(storage))], "127.0.0.1:0")
        try:
            with Looker(browser, server.url) as page:
                page.wait_for_selector("svg .node")
                assert (
                    page.locator("header .pill").inner_text() == "killed"
                    and "The next run goes on from here" in page.locator("header").inner_text()
                )
                records = fact(page, "records")
                shutil.rmtree(checkpoint)
                page.wait_for_selector("header .pill:has-text('unreadable')", timeout=10_000)
                assert fact(page, "records") == records and json.dumps(str(checkpoint))[1:-1] in page.locator("header").inner_text()
        finally:
            server.stop()
    finally:
        driver.kill()
        subprocess.run(["pkill", "-9", "-f", str(tmp_path)], check=False)
