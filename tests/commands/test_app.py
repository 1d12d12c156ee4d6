"""demo-sdtps app in a real browser: images are dropped, hits and kept patches are seen, and nothing is asked for elsewhere."""

import csv
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from importlib.util import find_spec

import pytest
from browser import Page, headless, until
from commands import CONFIG, checkpoint_file, cli_args_for, copy
from launch import free_port
from PIL import Image

from demo_sdtps.commands import search
from demo_sdtps.config import UserError, load_cfg
from demo_sdtps.reports.app import check_image

PROGRAM = """
import socket, sys
connect = socket.socket.connect
def noted(self, address):
    if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "localhost", "::1"):
        sys.stderr.write(f"asked for {address}\\n")
    return connect(self, address)
socket.socket.connect = noted
resolve = socket.getaddrinfo
def resolved(host, *rest, **more):
    if host not in ("127.0.0.1", "localhost", None):
        sys.stderr.write(f"asked for {host}\\n")
    return resolve(host, *rest, **more)
socket.getaddrinfo = resolved
from demo_sdtps.commands import main
main()
"""
"""The command, which says what it asks for outside of this machine."""
WORDS = ("--weight", "last.pth", "--gallery", "gallery")
TEXTS = (
    "return ['figcaption b', 'figcaption a', '.query figcaption']"
    ".map((css) => [...document.querySelectorAll(css)].map((one) => one.textContent))"
)


needs_gradio = pytest.mark.skipif(
    not find_spec("gradio"), reason="gradio is not installed (pip install -e '.[app]')"
)


@pytest.fixture
def place(tiny_root, files, tmp_path, monkeypatch):
    """The current folder: a checkpoint and a `gallery`."""
    monkeypatch.chdir(tmp_path)
    checkpoint_file(tmp_path / "last.pth", load_cfg(CONFIG, cli_args_for(tiny_root)[2:]))
    for name, paths in files.items():
        for path in paths:
            copy(path, tmp_path / "gallery" / name.upper() / path.name)
    return tmp_path


@contextmanager
def serve(place, *words):
    """The address that the command serves, in a process of its own."""
    start = [sys.executable, "-c", PROGRAM, "app", *map(str, words)]
    environment = os.environ | {"MPLBACKEND": "Agg"}
    with open(place / "output.txt", "w") as output:
        process = subprocess.Popen(start, cwd=place, stdout=output, stderr=output, env=environment)
    try:
        while " searches in " not in (text := (place / "output.txt").read_text()):
            assert process.poll() is None, text
            time.sleep(0.2)
        yield text.splitlines()[-1].split()[0]
    finally:
        process.terminate()
        process.wait(20)


def list_requests(driver):
    """Addresses that the pages asked for, but for those that are the data themselves."""
    events = (json.loads(entry["message"])["message"] for entry in driver.get_log("performance"))
    actual = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    return [url for url in actual if not url.startswith(("data:", "blob:"))]


@needs_gradio
@pytest.mark.slow
def test_a_browser_shows_hits_and_kept_patches_of_dropped_images(place, command):
    shown = min((place / "gallery" / "RGB").iterdir())
    shutil.copytree(place / "gallery", place / "query")
    query = [place / "query" / name / shown.name for name in ("RGB", "TI")]
    shutil.rmtree(place / "query" / "NI")
    words = (*WORDS, "--index", "kept", "--top", 3, "--pattern", r"_cam(?P<camera>\d)")
    place_words = ("--gallery", place / "gallery", "--port", free_port())
    with headless(log=True) as driver, serve(place, *words, *place_words) as address:
        page = Page(driver, address)
        page.show(1400, "light")
        slots = until(lambda: driver.find_elements("css selector", "input[type=file]"))
        assert driver.title == "Search in gallery"
        slots[0].send_keys(str(query[0]))
        assert until(lambda: driver.find_elements("css selector", "iframe[title=hits]"))
        driver.find_elements("css selector", "input[type=file]")[-1].send_keys(str(query[1]))

        def titles():
            driver.switch_to.default_content()
            driver.switch_to.frame(driver.find_element("css selector", "iframe[title=hits]"))
            # at once, as the page may be replaced in between
            numbers, names, query = page.run(TEXTS)
            return (numbers, names) if "".join(query).endswith("without NI") else None

        numbers, names = until(titles)
        # the frame is as high as its page
        assert page.run("return document.documentElement.scrollHeight <= window.innerHeight")
        assert numbers[0] == "query" and len(numbers) == 4
        assert page.texts("h1") == ["Hits in gallery"]
        assert page.texts("#kept option") == ["off", "SDTPS"]
        page.click(".near .triplet")
        assert until(lambda: page.run("return document.querySelector('dialog .file').naturalWidth"))
        driver.switch_to.default_content()
        # the picture of the scores
        picture = "return document.querySelector('picture img')?.naturalWidth > 400"
        assert until(lambda: page.run(picture))
        assert page.texts("h1") == ["Search in gallery"] and "drop" in page.texts("p")[0].lower()
        enabled = (
            "return [...document.querySelectorAll('button:enabled')]"
            ".map((one) => one.textContent.trim())"
        )
        assert {"Download as page", "Download as CSV"} <= {*page.run(enabled)}
        for width in (1400, 400):
            page.show(width, "light")
            assert page.run("return document.documentElement.scrollWidth") <= width
        # a file that is no image is told of; an example is searched for
        (place / "bad.jpg").write_text("no image")
        driver.find_element("css selector", "input[type=file]").send_keys(str(place / "bad.jpg"))
        alert = until(lambda: page.texts("[role=alert]"))
        assert alert and alert[0].startswith("The image bad.jpg cannot be read (")
        page.run("document.querySelector('tbody td').click()")
        assert until(lambda: driver.find_elements("css selector", "iframe[title=hits]"))
        # a wrong filter is told of; another one leaves its hits alone, of a query by a camera that is chosen
        box = driver.find_element("css selector", "[data-testid=textbox]")
        box.send_keys("camra = 2\n")
        alert = until(lambda: page.texts("[role=alert]"))
        assert alert[0].startswith("The filter 'camra = 2' cannot be used")
        assert "camera (int64)" in alert[0]
        box.clear()
        box.send_keys("camera = 2\n")
        assert until(lambda: driver.find_elements("css selector", "iframe[title=hits]"))
        driver.switch_to.frame(driver.find_element("css selector", "iframe[title=hits]"))
        assert until(lambda: page.texts("p code") == ["camera = 2"])
        assert all("camera 2" in text for text in page.texts(".near figcaption"))
        driver.switch_to.default_content()
        asked = list_requests(driver)
        assert len(asked) > 5 and all(url.startswith(address) for url in asked), asked
    assert "asked for" not in (place / "output.txt").read_text()
    code, _, stderr = command(search.main, *words, "--query", "query", "--csv", "x.csv")
    assert code == 0, stderr
    with open("x.csv") as file:
        hits = [row for row in csv.reader(file) if row[0] == f"query/RGB/{shown.name}"]
    assert [name.strip() for name in names[1:]] == [
        os.path.splitext(os.path.basename(row[2]))[0] for row in hits
    ]
    assert [float(title.split("= ")[1]) for title in numbers[1:]] == pytest.approx(
        [float(row[3]) for row in hits], abs=1e-3
    )


@needs_gradio
@pytest.mark.parametrize("port", ["taken", "70000"])
def test_a_port_that_cannot_be_served_is_one_sentence(place, refusal, port):
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1] if port == "taken" else port
        message = refusal(search.app, *WORDS, "--port", number)
    assert message.startswith(f"127.0.0.1:{number} cannot be served") and "--port" in message


@pytest.mark.skipif(bool(find_spec("gradio")), reason="gradio is installed")
def test_without_gradio_the_extra_is_named(place, refusal):
    message = refusal(search.app, *WORDS)
    assert message == "demo-sdtps app needs gradio; install them by pip install -e '.[app]'."


def test_an_upload_that_is_too_large_is_told_with_the_limit(tmp_path):
    Image.new("1", (16000, 12000)).save(tmp_path / "x.png")
    with pytest.raises(
        UserError, match=r"The image x\.png cannot be read \(.* limit of \d+ pixels"
    ):
        check_image(str(tmp_path / "x.png"))
