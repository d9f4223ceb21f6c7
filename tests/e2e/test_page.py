"""The page in a browser: streaming, heat maps, errors, keyboard, translation, search and accessibility."""

import base64
import re
import threading
from io import BytesIO
from pathlib import Path

import httpx
import pytest
from PIL import Image

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
pytest.importorskip("fastapi", reason="the extra serve is not installed")

from axe_playwright_python.sync_playwright import Axe
from page_service import SENTENCES, FakeService, running
from playwright.sync_api import expect, sync_playwright

CHROMIUM = next((path for path in map(Path, ("/usr/bin/chromium", "/usr/bin/chromium-browser")) if path.exists()), None)

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no /usr/bin/chromium; install it with: apt-get install chromium"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the web server's own dependencies
]


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    path = tmp_path_factory.mktemp("images") / "dog.png"
    picture = Image.radial_gradient("L").resize((320, 240))
    Image.merge("RGB", (picture, picture.rotate(90).resize((320, 240)), Image.new("L", (320, 240), 160))).save(path)
    return path


@pytest.fixture
def fake():
    return FakeService()


@pytest.fixture
def open_page(browser, fake):
    """Opens the page: open_page(view, width, scheme). A message of the console, or a request elsewhere, is an error."""
    contexts, problems = [], []
    with running(fake.app()) as address:

        def make(view="describe", width=1280, scheme="light", **options):
            size, is_phone = {"width": width, "height": 860}, width < 500
            phone = {"has_touch": is_phone, "is_mobile": is_phone}
            context = browser.new_context(viewport=size, color_scheme=scheme, **phone, **options)
            contexts.append(context)
            page = context.new_page()
            page.set_default_timeout(10_000)
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on("console", lambda message: message.type == "error" and problems.append(message.text))
            page.on("request", lambda request: outside(request.url))
            page.on("filechooser", lambda chooser: None)  # intercepted from now on: Enter may overtake a later request
            page.goto(f"{address}/#{view}")
            page.wait_for_selector("#served:not(:empty), #notice:not([hidden])")
            return page

        def outside(url):
            if not url.startswith((address, "blob:", "data:")):
                problems.append(f"request to {url}")

        yield make
        for context in contexts:
            context.close()
    unexpected = [problem for problem in problems if not re.search(r"status of (401|413|415|429|503)", problem)]
    assert unexpected == []


def upload(page, image, view="describe"):
    page.set_input_files(f"#view-{view} .choose >> nth=0", image)


def described(page, image):
    upload(page, image)
    expect(page.locator(".beams li")).to_have_count(3)
    return page


def words(page):
    return page.locator(".caption .words .word")


def coloured(page, view="describe"):
    """Mean opacity of the coloured image in the quarters upper left, upper right, lower left and lower right."""
    return page.evaluate(
        """view => {
            const canvas = document.querySelector(`#view-${view} .stage canvas`), side = canvas.getContext("2d");
            const half = [canvas.width / 2 | 0, canvas.height / 2 | 0];
            return [[0, 0], [1, 0], [0, 1], [1, 1]].map(([x, y]) => {
                const { data } = side.getImageData(x * half[0], y * half[1], ...half);
                return data.filter((_, place) => place % 4 === 3).reduce((sum, value) => sum + value, 0) / data.length;
            });
        }""",
        view,
    )


def test_words_appear_as_they_are_decided_with_their_attention(open_page, fake, image):
    fake.decisions = threading.Semaphore(0)
    page = open_page(reduced_motion="reduce")
    upload(page, image)
    expect(page.locator("#view-describe .progress")).to_be_visible()
    expect(words(page)).to_have_count(0)
    for number, word in enumerate(SENTENCES[0].split(), start=1):
        fake.decisions.release()
        expect(words(page)).to_have_count(number)
        expect(words(page).nth(number - 1)).to_contain_text(word)
        expect(page.locator("#view-describe .stage")).to_have_class(re.compile("attending"))
    upper_left, _, lower_left, lower_right = coloured(page)
    assert lower_left > 2 * max(upper_left, lower_right)  # the last word attends to row 8, column 2 of 10
    fake.decisions.release()
    expect(page.locator(".beams li")).to_have_count(3)
    expect(page.locator("#view-describe .progress")).to_be_hidden()
    expect(page.locator("#announcer")).to_have_text(f"Caption: {SENTENCES[0]}")


def test_a_click_keeps_the_attention_of_a_word(open_page, image):
    page = described(open_page(reduced_motion="reduce"), image)
    stage, second = page.locator("#view-describe .stage"), words(page).nth(1)
    expect(stage).not_to_have_class(re.compile("attending"))
    second.click()
    page.mouse.move(5, 5)
    expect(second).to_have_attribute("aria-pressed", "true")
    expect(stage).to_have_class(re.compile("attending"))
    upper_left, upper_right, lower_left, lower_right = coloured(page)
    assert upper_right > 2 * max(upper_left, lower_left, lower_right)
    expect(page.locator(".caption .detail")).to_have_text("brown probability 84 %, attention: upper right")
    second.click()
    page.mouse.move(5, 5)
    expect(stage).not_to_have_class(re.compile("attending"))


def test_candidates_tags_and_copying(open_page, image):
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    described(page, image)
    expect(page.locator(".tags li")).to_have_text(["golden retriever61 %", "seashore22 %"])
    page.get_by_label(SENTENCES[2]).check()
    expect(words(page)).to_have_count(len(SENTENCES[2].split()))
    page.get_by_role("button", name="Copy").click()
    assert page.evaluate("navigator.clipboard.readText()") == SENTENCES[2]


def test_a_change_of_a_setting_describes_again(open_page, fake, image):
    page = described(open_page(), image)
    assert fake.requests[-1]["beam_size"] == 5 and fake.requests[-1]["lang"] == "en"
    assert fake.requests[-1]["length_penalty"] == 0.7  # the default of the model
    page.get_by_label("Beam size").fill("2")
    expect(page.locator(".beams li")).to_have_count(2)
    page.get_by_label("Language").select_option("de")
    page.get_by_text("Sampling").click()
    page.get_by_label("Temperature").fill("0.5")
    expect(page.get_by_role("button", name="Sample again")).to_be_visible()
    body = fake.requests[-1]
    assert (body["sample"], body["temperature"], body["lang"]) == (True, 0.5, "de")
    assert "length_penalty" not in body and "temperature" not in fake.requests[0]


def test_abstention_is_shown_and_announced(open_page, fake, image):
    fake.abstained = ""
    page = described(open_page(), image)
    expect(page.locator(".unsure")).to_contain_text("Not sure. The model")
    expect(page.locator("#announcer")).to_have_text(f"Not sure. Best guess: {SENTENCES[0]}")


def test_images_are_dropped_and_pasted(open_page, fake, image):
    page = open_page()
    for kind, target, field in (
        ("drop", "document.querySelector('#view-describe .drop')", "dataTransfer"),
        ("paste", "document", "clipboardData"),
    ):
        page.evaluate(
            """async ([kind, field, target, bytes]) => {
                const transfer = new DataTransfer();
                transfer.items.add(new File([new Uint8Array(bytes)], "x.png", { type: "image/png" }));
                const made = kind === "drop" ? DragEvent : ClipboardEvent;
                (target === "document" ? document : document.querySelector("#view-describe .drop")).dispatchEvent(
                    new made(kind, { [field]: transfer, bubbles: true, cancelable: true }));
            }""",
            [kind, field, target, list(image.read_bytes())],
        )
        expect(page.locator(".beams li")).to_have_count(3)
        page.reload()
    assert len(fake.requests) == 2


def test_other_files_are_refused_where_they_were_given(open_page, tmp_path):
    (tmp_path / "notes.pdf").write_bytes(b"%PDF")
    page = open_page()
    upload(page, tmp_path / "notes.pdf")
    expect(page.locator("#view-describe [role=alert]")).to_contain_text(
        "notes.pdf: expected an image, got application/pdf"
    )


def test_a_busy_service_says_when_to_try_again(open_page, fake, image):
    page = open_page()
    fake.failures = [(429, {"Retry-After": "1"})]
    upload(page, image)
    alert = page.locator("#view-describe [role=alert]")
    expect(alert).to_contain_text("The service is busy. answer with status 429")
    expect(alert.get_by_role("button")).to_be_disabled()
    alert.get_by_role("button", name=re.compile("^Try again$")).click()
    expect(page.locator(".beams li")).to_have_count(3)
    expect(alert).to_be_hidden()


def test_a_smaller_copy_is_offered_for_an_image_that_is_too_large(open_page, fake, tmp_path):
    Image.new("RGB", (2400, 1200), (200, 80, 40)).save(tmp_path / "large.png")
    page = open_page()
    fake.failures = [(413, {})]
    upload(page, tmp_path / "large.png")
    page.get_by_role("button", name="Send a smaller copy").click()
    expect(page.locator(".beams li")).to_have_count(3)
    assert image_of(fake.requests[-1]).size == (1600, 800)


def image_of(request):
    return Image.open(BytesIO(base64.b64decode(request["image"].partition(",")[2])))


def test_a_service_that_asks_for_a_key_gets_it(open_page, fake, image):
    fake.key = "secret"
    page = open_page()
    page.get_by_label("API key").fill("secret")
    page.get_by_role("button", name="Use this key").click()
    expect(page.locator("#served")).to_contain_text("built-in")
    described(page, image)


def test_a_service_that_stops_in_the_middle_is_named(open_page, fake, image):
    fake.breaks = True
    page = open_page()
    upload(page, image)
    alert = page.locator("#view-describe [role=alert]")
    expect(alert).to_contain_text("not answered within 60 seconds")
    expect(alert.get_by_role("button", name="Try again")).to_be_enabled()


def test_the_keyboard_is_enough(open_page, image):
    page = open_page(reduced_motion="reduce")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator("#view-describe .drop .choose")).to_be_focused()
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files(image)
    expect(page.locator(".beams li")).to_have_count(3)
    while not page.evaluate("document.activeElement.matches('.caption .word')"):
        page.keyboard.press("Tab")
    for key, place in (("ArrowRight", 1), ("End", 7), ("ArrowLeft", 6), ("Home", 0), ("ArrowRight", 1)):
        page.keyboard.press(key)
        expect(words(page).nth(place)).to_be_focused()
    expect(page.locator("#view-describe .stage")).to_have_class(re.compile("attending"))
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")  # the words are one stop
    expect(page.get_by_role("button", name="Copy")).to_be_focused()
    expect(words(page).nth(1)).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Escape")
    expect(words(page).nth(1)).to_have_attribute("aria-pressed", "false")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    expect(words(page)).to_have_count(len(SENTENCES[1].split()))


def test_translation_with_and_without_the_image(open_page, fake, image):
    page = open_page("translate", reduced_motion="reduce")
    upload(page, image, "translate")
    page.get_by_label("Sentence", exact=True).fill("a bat is in the room")
    page.keyboard.press("Enter")
    cards = page.locator(".translation")
    expect(cards.get_by_role("heading")).to_have_text(
        ["With the image", "Image gate β of each word", "Without the image"]
    )
    expect(cards.nth(0).locator("button.word").nth(1)).to_contain_text("Schläger")
    expect(cards.nth(1).locator("button.word").nth(1)).to_contain_text("Fledermaus")
    expect(cards.get_by_text("its translation is a guess")).to_have_count(1)
    assert ["image" in request for request in fake.requests] == [True, False]
    cards.nth(0).locator("button.word").nth(1).click()
    aligned = cards.nth(0).locator(".source .word").nth(1)
    expect(aligned).to_have_text("bat")
    assert aligned.evaluate("word => word.style.getPropertyValue('--weight')") == "0.62"
    upper_left, upper_right, lower_left, lower_right = coloured(page, "translate")
    assert upper_right > 2 * max(upper_left, lower_left, lower_right)
    expect(cards.nth(0).locator(".gates li").nth(1)).to_have_text("Schläger0.92")
    cards.nth(1).get_by_text("Alignment as a table").click()
    expect(cards.nth(1).get_by_role("cell", name=".62").first).to_be_visible()
    expect(page.locator("#announcer")).to_contain_text("Without the image: eine Fledermaus ist im Zimmer")


def test_search_by_sentence_and_by_image(open_page, fake, image):
    page = open_page("search")
    page.get_by_role("searchbox").fill("a dog")
    page.keyboard.press("Enter")
    expect(page.locator(".hit")).to_have_count(7)
    expect(page.get_by_role("status")).to_have_text("7 best images for “a dog”")
    expect(page.locator(".hit p")).to_have_text([*(SENTENCES * 2), "Not sure"])
    assert page.locator(".hit img").first.evaluate("image => image.decode().then(() => image.naturalWidth)") == 160
    upload(page, image, "search")
    expect(page.get_by_role("status")).to_have_text("7 best images for your image")
    assert "query" not in fake.requests[-1] and image_of(fake.requests[-1]).size == (320, 240)


def test_what_is_not_served_says_what_to_start(open_page, fake):
    fake.models, fake.indexes = fake.models[:1], []
    page = open_page("translate")
    expect(page.locator("#view-translate .missing")).to_contain_text("limner serve --model demo/translation")
    page.get_by_role("link", name="Search").click()
    expect(page.locator("#view-search .missing")).to_contain_text("limner serve --index FOLDER")


def test_the_page_with_models(browser, service, runs):
    page = browser.new_page(reduced_motion="reduce")
    problems = []
    page.on("console", lambda message: message.type == "error" and problems.append(message.text))
    page.goto(service)
    upload(page, runs.image)
    served = httpx.get(f"{service}/v1/models").json()["data"]
    beam_size = next(one["beam_size"] for one in served if one["id"] == runs.captioner.name)
    assert beam_size > 1
    expect(page.locator(".beams li")).to_have_count(beam_size)
    expect(words(page).first).to_be_visible()
    page.get_by_role("link", name="Translate").click()
    page.get_by_label("Sentence", exact=True).fill("There is a green bat in the room.")
    page.keyboard.press("Enter")
    first = page.locator(".translation").first
    expect(first.get_by_role("heading").first).to_have_text("Translation")  # the model reads no images
    first.locator("button.word").first.click()
    expect(first.locator(".source .aligned").first).to_be_visible()
    page.get_by_role("link", name="Search").click()
    expect(page.locator("#view-search .missing")).to_contain_text("limner index")
    assert problems == []
    page.close()


def show_view(page, view, image):
    """Bring a view into the state that has most on it."""
    if view == "describe":
        described(page, image)
        words(page).nth(2).click()
    elif view == "translate":
        page.get_by_label("Sentence", exact=True).fill("a bat is in the room")
        upload(page, image, "translate")
        page.locator(".translation").first.locator("button.word").nth(1).click()
        page.get_by_text("Alignment as a table").first.click()
    elif view == "search":
        page.get_by_role("searchbox").fill("a dog")
        page.keyboard.press("Enter")
        expect(page.locator(".hit")).to_have_count(7)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_no_view_violates_a_rule_of_accessibility(open_page, image, width, scheme):
    for view in ("describe", "translate", "search"):
        page = open_page(view, width, scheme, reduced_motion="reduce")
        assert_accessible(page)
        show_view(page, view, image)
        assert_accessible(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "wider than the screen"


def test_a_phone_offers_its_camera(open_page):
    page = open_page(width=390)
    expect(page.get_by_text("Take a photograph").first).to_be_visible()
    assert page.locator("#view-describe .photograph").first.get_attribute("capture") == "environment"
    expect(open_page().get_by_text("Take a photograph").first).to_be_hidden()


def test_errors_and_missing_parts_are_accessible(open_page, fake, image):
    fake.models, fake.indexes, fake.failures = fake.models[:1], [], []
    for view in ("translate", "search"):
        assert_accessible(open_page(view))
    page = open_page()
    fake.failures = [(429, {"Retry-After": "60"})]
    upload(page, image)
    expect(page.locator("#view-describe [role=alert]")).to_be_visible()
    assert_accessible(page)


def assert_accessible(page):
    results = Axe().run(page)
    found = [
        f"{one['id']}: {one['help']}: {[node['html'][:120] for node in one['nodes']]}"
        for one in results.response["violations"]
    ]
    assert found == []
