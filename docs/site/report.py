"""The picture of the report, light and dark, in a headless Chromium: python docs/site/report.py runs/demo/report.html"""

import argparse
import io
import shutil
import time
from pathlib import Path

from PIL import Image

from demo_sdtps.commands import cli

IMAGES = Path(__file__).resolve().parents[1] / "images"
SIZE = {"width": 1080, "height": 640, "deviceScaleFactor": 1, "mobile": False}
SCRIPT = """
for (const [css, text] of [["#kept", "stage 1"], ["#sort", "order"]]) {
  const list = document.querySelector(css);
  list.value = [...list.options].find(one => one.text.includes(text)).value;
  list.dispatchEvent(new Event("change", {bubbles: true}));
}
document.querySelector("#rank-list").scrollIntoView();
"""
"""Kept patches are shown; queries stand in the order of the split, good and bad ones."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Draw the rank lists of a report, with the patches that slimming drops covered, into docs/images."
    )
    parser.add_argument("report", type=Path, metavar="REPORT.html")
    page = cli.read_arguments(parser).report.resolve().as_uri()
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    for scheme, name in (("light", "report.png"), ("dark", "report_dark.png")):
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", SIZE)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        driver.get(page)
        driver.execute_script(SCRIPT)
        time.sleep(1)  # images are decoded when they come into view
        image = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
        image.quantize(192).save(IMAGES / name, optimize=True)  # a third of the bytes
        cli.print_lines(IMAGES / name)
    driver.quit()


if __name__ == "__main__":
    cli.run(main)
