"""Search of an indexed folder through a live service by the own API."""

import shutil
from io import BytesIO

import httpx
import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from limner.apps.photos.index import FolderIndex
from limner.apps.server.settings import ServerSettings
from limner.inference.captioner import Captioner

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
