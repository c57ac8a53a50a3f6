"""The report in a real browser: the system's Chromium, driven by its own chromedriver."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedkeep.report import write_report

CHROMIUM, DRIVER = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no Chromium with chromedriver on this machine"),
]

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}", "--window-size=1280,900"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    yield made
    made.quit()


@pytest.fixture(scope="module")
def address(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_report([runs], tmp_path_factory.mktemp("report") / "report.html").as_uri()


@pytest.fixture
def page(driver: Any, address: str) -> Any:
    """The report, opened anew at 1280 pixels in the light, every figure drawn."""
    show(driver, width=1280, dark=False)
    for kind in ("browser", "performance"):
        driver.get_log(kind)
    driver.get(address)
    until(driver, "return document.documentElement.dataset.drawn !== undefined")
    return driver


def show(driver: Any, width: int, dark: bool) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def until(driver: Any, script: str, patience: float = 60) -> None:
    end = time.monotonic() + patience
    while not driver.execute_script(script):
        assert time.monotonic() < end, f"never true: {script}; log: {driver.get_log('browser')}"
        time.sleep(0.05)


def cells(driver: Any, card: str) -> list[list[float | None]]:
    box = f"""document.querySelector('[data-card="{card}"].plot')"""
    return driver.execute_script(f"return {box}._fullData[0].z.map((row) => Array.from(row))")


def complaints(driver: Any) -> list[str]:
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def test_the_page_opens_without_an_error(page: Any) -> None:
    assert complaints(page) == []


def test_no_request_leaves_the_page(page: Any, address: str) -> None:
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert address in asked
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


def test_no_figure_is_blank(page: Any) -> None:
    script = """return [...document.querySelectorAll('.plot[data-card]')].map((box) => {
        const drawn = box.querySelectorAll('.scatterlayer path.js-line, .barlayer path, .heatmaplayer image').length;
        const size = box.getBoundingClientRect();
        return [box.dataset.card, drawn, size.width, size.height];
    })"""
    figures = page.execute_script(script)
    assert len(figures) >= 10
    for card, drawn, width, height in figures:
        assert drawn > 0, f"{card} is blank"
        assert width > 150 and height > 100, f"{card} is too small: {width} x {height}"


def test_the_slider_moves_every_heatmap_to_the_records_of_its_round(page: Any, runs: Path) -> None:
    from fedkeep.report.load import load_runs
    from fedkeep.report.matrices import matrix

    (run,), _ = load_runs([runs / "fedavg-0"])
    last = cells(page, "heat-forgetting-0")
    page.execute_script(
        "const range = document.getElementById('round'); range.value = 1; range.dispatchEvent(new Event('input'))"
    )
    until(page, "return document.getElementById('round-shown').textContent === 'round 2'")
    page.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")  # it has been drawn
    found = matrix(run, 2)
    assert found is not None
    moved = cells(page, "heat-forgetting-0")
    assert moved != last
    assert moved == [[pytest.approx(value, abs=2e-4) for value in row] for row in found.forgetting.tolist()]
    accuracy = cells(page, "heat-accuracy-0")
    assert accuracy == [[pytest.approx(value, abs=1e-4) for value in row] for row in found.local.tolist()]
    assert complaints(page) == []


def test_the_slider_listens_to_the_keyboard(page: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    page.find_element("id", "round").send_keys(Keys.ARROW_LEFT)
    until(page, "return document.getElementById('round-shown').textContent === 'round 3'")


def test_another_seed_shows_other_cells(page: Any) -> None:
    first = cells(page, "heat-accuracy-0")
    page.execute_script(
        "const s = document.getElementById('seed'); s.value = '1'; s.dispatchEvent(new Event('change'))"
    )
    until(page, "return document.querySelector('[data-card=\"heat-accuracy-0\"].plot')._fullData[0].z[0].length === 3")
    assert cells(page, "heat-accuracy-0") != first, "seed 1 measured the cohort only"


def test_a_switch_changes_the_metric_and_the_words_under_it(page: Any) -> None:
    page.execute_script(
        "const s = document.querySelector('select[data-card=forgets]');"
        "s.selectedIndex = [...s.options].findIndex((o) => o.text === 'Forgettable examples');"
        "s.dispatchEvent(new Event('change'))"
    )
    title = "document.querySelector('.plot[data-card=forgets]')._fullLayout.yaxis.title.text"
    until(page, f"return {title} === 'Forgettable examples (examples)'")
    assert "FedWAvg" in page.find_element("id", "text-forgets").text


def test_a_method_can_be_switched_off_everywhere(page: Any) -> None:
    page.execute_script("document.querySelector('.legend button[data-series=fedavg]').click()")
    script = """return [...document.querySelectorAll('.plot')].flatMap((box) => box.data)
        .filter((trace) => trace.legendgroup).map((trace) => [trace.legendgroup, trace.visible])"""
    visible = page.execute_script(script)
    assert len(visible) >= 12
    assert all(shown == (label != "fedavg") for label, shown in visible)


def test_figures_follow_the_dark(page: Any) -> None:
    colour = "document.querySelector('.plot[data-card=well]')._fullLayout.font.color"
    light = page.execute_script(f"return {colour}")
    show(page, width=1280, dark=True)
    until(page, f"return {colour} !== '{light}'")
    assert page.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(20, 22, 26)"


@pytest.mark.parametrize("dark", [False, True])
def test_nothing_sticks_out_on_a_phone(page: Any, address: str, dark: bool) -> None:
    show(page, width=390, dark=dark)
    page.get(address)
    until(page, "return document.documentElement.dataset.drawn !== undefined")
    assert page.execute_script("return document.documentElement.scrollWidth") == 390
    script = """return [...document.querySelectorAll('.plot, select, .legend button, pre')]
        .filter((one) => one.getBoundingClientRect().right > innerWidth + 0.5)
        .map((one) => one.outerHTML.slice(0, 60))"""
    assert page.execute_script(script) == []
    assert complaints(page) == []


def test_the_page_prints_with_all_figures(page: Any) -> None:
    page.execute_script("dispatchEvent(new Event('beforeprint'))")
    widths = page.execute_script("return [...document.querySelectorAll('.plot')].map((box) => box._fullLayout.width)")
    assert set(widths) <= {320, 660}
    assert page.execute_script("return [...document.querySelectorAll('details')].every((one) => one.open)")
    page.execute_script("dispatchEvent(new Event('afterprint'))")
    until(page, "return document.querySelector('.plot[data-card=partition]')._fullLayout.width > 700")
    assert complaints(page) == []
