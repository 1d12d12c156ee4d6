"""A page of a report in a headless browser."""

import json
import re
import shutil
import time
from contextlib import contextmanager

import pytest

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")


@contextmanager
def headless():
    """A driver of the system's Chromium; skips the test where there is none."""
    if not (BROWSER and DRIVER):
        pytest.skip("chromium is not installed (Debian: apt-get install chromium chromium-driver)")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


def page_data(path):
    """The text of a page, and what its scripts show."""
    text = path.read_text(encoding="utf-8")
    return text, json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])


CUT = """const right = (one) => one.getBoundingClientRect().right;
return [...document.querySelectorAll("body *")].filter((one) => !one.closest(".scroll"))
    .filter((one) => right(one) > right(one.parentElement.closest("section, html")) + 1)
    .map((one) => one.outerHTML.slice(0, 99));"""
"""What lies beyond the right edge of its card or of the page, and does not scroll in its card."""


class Page:
    """A page in the browser, by its path; elements by CSS."""

    def __init__(self, driver, path):
        self.driver, self.path = driver, path
        self.show(1280, "light")

    def show(self, width, scheme):
        """Open the page anew in a window of this width, on a system of this colour scheme."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        preferred = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in preferred.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.get("about:blank")  # nothing of an earlier page is read
        self.driver.get(self.path.as_uri())
        until(lambda: self.run("return document.readyState") == "complete")

    def run(self, script):
        return self.driver.execute_script(script)

    def texts(self, css):
        return self.run(
            f"return [...document.querySelectorAll({json.dumps(css)})].map((one) => one.textContent)"
        )

    def click(self, css):
        self.driver.find_element("css selector", css).click()

    def choose(self, css, text):
        from selenium.webdriver.support.select import Select

        Select(self.driver.find_element("css selector", css)).select_by_visible_text(text)

    def shown(self):
        """(AP in percent, identity, camera, rank of the first hit) of the rank lists on all pages of them."""
        rows = []
        while True:
            for text in self.texts("#rank-list .query figcaption"):
                ap, rest = text.removeprefix("AP ").split(" %id\u00a0")
                identity, rest = rest.split(", camera\u00a0")
                camera, first = rest.split("first hit at rank ")
                rows.append((float(ap), int(identity), int(camera), int(first)))
            if self.driver.find_element("id", "next").get_property("disabled"):
                return rows
            self.click("#next")

    def errors(self):
        return [entry for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]


def until(condition, seconds=30):
    """What `condition` returns as soon as that is true, or at the end of the time."""
    end = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.1)
    return value
