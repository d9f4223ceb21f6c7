"""Search of an indexed folder through a live service: the own API, and the page in a browser."""

import shutil
from io import BytesIO
from pathlib import Path

import httpx
import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from limner.apps.photos.index import FolderIndex
from limner.apps.server.settings import ServerSettings
from limner.inference.captioner import Captioner

CHROMIUM = next((path for path in map(Path, ("/usr/bin/chromium", "/usr/bin/chromium-browser")) if path.exists()), None)
QUERY = "There is a red ball."


@pytest.fixture(scope="module")
def index(runs, tmp_path_factory):
    """Index of a folder with a subfolder."""
    folder = tmp_path_factory.mktemp("searched") / "photographs"
    (folder / "more").mkdir(parents=True)
    for number, image in enumerate(runs.images):
        shutil.copy(image, folder / ("more" if number % 2 else "") / image.name)
    (folder / "secret.txt").write_text("not an image")
    captioner = Captioner.load(runs.captioner)
    FolderIndex(folder).update(captioner)
    return FolderIndex.open(folder)


@pytest.fixture(scope="module")
def searched(runs, index, run_service):
    """Address of a service with the index."""
    yield from run_service(ServerSettings(models=(str(runs.captioner),), indexes=(str(index.folder),), port=0))


def names(index, found):
    return [match.path.relative_to(index.folder).as_posix() for match in found]


def test_search_finds_what_the_index_finds(searched, index, runs):
    with httpx.Client(base_url=searched, timeout=60) as client:
        assert client.get("/v1/models").json()["indexes"] == [{"name": "photographs", "images": len(runs.images)}]
        by_sentence = client.post("/v1/search", json={"query": QUERY, "limit": 3}).json()
        assert by_sentence["index"] == "photographs"
        assert [hit["name"] for hit in by_sentence["hits"]] == names(index, index.search(QUERY, 3))
        expected = [match.score for match in index.search(QUERY, 3)]
        assert [hit["score"] for hit in by_sentence["hits"]] == pytest.approx(expected, abs=1e-4)
        by_image = client.post("/v1/search", json={"image": runs.base64, "limit": 2}).json()
        assert by_image["hits"][0]["name"] == runs.image.name  # the same image
        for hit in by_sentence["hits"]:
            assert hit["caption"]
            thumbnail = client.get(f"/{hit['thumbnail']}")
            assert thumbnail.headers["content-type"] == "image/jpeg"
            assert min(Image.open(BytesIO(thumbnail.content)).size) > 0
        for name in ("secret.txt", "../secret.txt", str(runs.image)):
            assert client.get("/v1/thumbnail", params={"name": name}).status_code == 404
        assert client.post("/v1/search", json={"query": QUERY, "index": "others"}).status_code == 404


@pytest.mark.skipif(CHROMIUM is None, reason="no /usr/bin/chromium; install it with: apt-get install chromium")
def test_the_page_searches_by_sentence_and_by_image(searched, index, runs):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    expect, problems = playwright.expect, []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(reduced_motion="reduce")
        page.on("console", lambda message: message.type == "error" and problems.append(message.text))
        page.goto(f"{searched}/#search")
        page.get_by_role("searchbox").fill(QUERY)
        page.keyboard.press("Enter")
        expect(page.locator(".hit")).to_have_count(len(runs.images), timeout=60_000)
        assert page.locator(".hit img").first.evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
        shown = [text.split(" · ")[0] for text in page.locator(".hit small").all_inner_texts()]
        assert shown == names(index, index.search(QUERY, len(runs.images)))
        page.set_input_files("#view-search .choose >> nth=0", runs.image)
        found = f"{len(runs.images)} best images for your image"
        expect(page.get_by_role("status")).to_have_text(found, timeout=60_000)
        expect(page.locator(".hit small").first).to_contain_text(runs.image.name)
        browser.close()
    assert problems == []
