"""The live page in a real browser: Debian's chromium, driven by Selenium."""

# ruff: noqa: E402 (what may be missing is looked for first)

from __future__ import annotations

import base64
import shutil
import threading
import time
from contextlib import contextmanager
from xml.etree import ElementTree

import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="Selenium is not installed")
uvicorn = pytest.importorskip("uvicorn", reason="needs headcount[explore]")
pytest.importorskip("starlette", reason="needs headcount[explore]")
from axe import axe_source
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select
from selenium.webdriver.support.ui import WebDriverWait as Wait

from headcount.explore.answers import Answers
from headcount.explore.explore import _listen
from headcount.explore.server import loopback_hosts, make_app

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 60
TEXT = "A big dog and a small cat see it ."
OTHER = "The cat sees the dog ."
HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>"


@pytest.fixture(scope="module")
def driver():
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    program = shutil.which("chromedriver")
    if browser is None or program is None:
        pytest.skip("No browser: tests/browser/install.sh installs chromium and its driver.")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for option in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{option}")
    options.add_argument("--window-size=1300,1000")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(executable_path=program)
    )
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def address(models):
    """A server with both models, in a thread of its own."""
    with served(models) as address:
        yield address


@contextmanager
def served(models):
    sock = _listen("127.0.0.1", 0)
    port = sock.getsockname()[1]
    app = make_app(Answers(models, [TEXT, OTHER]), loopback_hosts(port))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}/"
    server.should_exit = True
    thread.join(10)
    sock.close()


@pytest.fixture
def page(driver, address):
    """The page, freshly loaded, with all answers there."""
    open_page(driver, address)
    return driver


def open_page(driver, address, state=""):
    driver.get("about:blank")
    driver.get(f"{address}#{state}")
    ready(driver)


def wait(driver, condition):
    return Wait(driver, SECONDS).until(condition)


def ready(driver):
    """Wait until translation, attention and relevance are on the page."""
    wait(driver, lambda d: d.find_elements(By.CSS_SELECTOR, "#strips ol li"))
    wait(driver, lambda d: d.find_elements(By.CSS_SELECTOR, "#detail svg"))


def by_id(driver, name):
    return driver.find_element(By.ID, name)


def cell(driver, head):
    return driver.find_element(By.CSS_SELECTOR, f'[data-head="{head}"]')


def click(driver, element):
    # At once: a click during a smooth scroll would hit what is passing by.
    scroll = "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})"
    driver.execute_script(scroll, element)
    element.click()


def rows(driver):
    """Who and what: the label and the words of every translation."""
    return driver.execute_script(
        "return [...document.querySelectorAll('.translation-row')].map((row) =>"
        " [row.querySelector('.who').textContent, [...row.querySelectorAll('.word')].map((word) =>"
        " word.firstChild.textContent).join(' ')])"
    )


def off(driver):
    return driver.execute_script(
        "return [...document.querySelectorAll('.cell.off')].map((cell) => cell.dataset.head)"
    )


def words_of(model, text, heads=()):
    """The words of a translation as the page has them: pieces put together, and EOS."""
    words = []
    for token in model.log_probabilities(text, off=heads)[0]:
        if token.startswith("▁"):
            words.append(token[1:])
        elif token == "</s>" or not words:
            words.append({"</s>": "EOS"}.get(token, token))
        else:
            words[-1] += token
    return " ".join(words)


def test_encoders_alone(driver, encoders):
    """Predictions with their relevance; without an output head, attention and no complaint."""
    with served(encoders) as address:
        open_page(driver, address)
        assert by_id(driver, "translation-title").text == "Prediction"
        assert len(rows(driver)[0][1].split()) == len(encoders["filling"].read(TEXT).source) + 1
        strips = driver.find_elements(By.CSS_SELECTOR, "#strips h3")
        assert [strip.text for strip in strips] == ["From the source"]
        Select(by_id(driver, "model")).select_by_value("headless")
        wait(driver, lambda d: not by_id(d, "step-title").is_displayed())
        wait(driver, lambda d: "in headless" in by_id(d, "detail").text)
        assert by_id(driver, "sentence-error").text == ""
        assert by_id(driver, "colour").get_attribute("value") == "confidence"
        assert driver.get_log("browser") == []


def test_loads_without_an_error_and_without_leaving_the_machine(page, address):
    assert page.get_log("browser") == []
    names = page.execute_script(
        "return performance.getEntriesByType('resource').map((entry) => entry.name)"
    )
    assert names
    assert all(name.startswith((address, "data:")) for name in names)
    assert by_id(page, "busy").is_displayed() is False


def test_typing_translates(page, twins):
    box = by_id(page, "sentence")
    box.clear()
    box.send_keys(OTHER)
    expected = words_of(twins["full"], OTHER)
    wait(page, lambda d: rows(d) and rows(d)[0] == ["full", expected])
    assert "text=The+cat" in page.current_url
    Select(by_id(page, "pick")).select_by_visible_text(TEXT)
    expected = words_of(twins["full"], TEXT)
    wait(page, lambda d: rows(d) and rows(d)[0] == ["full", expected])


def test_switching_heads(page, twins):
    """A click, a layer, a limit: the translation is always the model's without these heads."""

    def translated(heads):
        expected = words_of(twins["full"], TEXT, heads)
        label = f"without {len(heads)} head{'' if len(heads) == 1 else 's'}"
        wait(page, lambda d: len(rows(d)) > 1 and rows(d)[1] == [label, expected])
        assert sorted(off(page)) == sorted(heads)

    click(page, page.find_element(By.CSS_SELECTOR, '[name=click][value="switch"]'))
    click(page, cell(page, "enc.0.0"))
    translated(["enc.0.0"])
    click(page, cell(page, "cross.1.2"))
    translated(["enc.0.0", "cross.1.2"])
    click(page, cell(page, "enc.0.0"))
    translated(["cross.1.2"])
    click(page, page.find_element(By.CSS_SELECTOR, '[data-layer="dec.1"]'))
    translated(["cross.1.2", "dec.1.0", "dec.1.1", "dec.1.2"])
    assert "off=cross.1.2" in page.current_url
    click(page, by_id(page, "all-on"))
    wait(page, lambda d: len(rows(d)) == 1)
    assert off(page) == []
    # The way back does not wait: relevance must be of the whole model before it is a limit.
    wait(page, lambda d: "All heads are on" in by_id(d, "off-line").text)
    relevance = twins["full"].relevance(TEXT).heads["lrp"]
    wait(page, lambda d: not by_id(d, "busy").is_displayed())
    time.sleep(1)
    page.execute_script(
        "const range = document.getElementById('below'); range.value = 20;"
        "range.dispatchEvent(new Event('input')); range.dispatchEvent(new Event('change'))"
    )
    translated([str(head) for head, share in relevance.items() if share < 0.2])
    total = page.find_elements(By.CSS_SELECTOR, ".translation-row .total")[1].text
    assert total.startswith("log-probability")


def test_a_head_is_shown_as_map_and_lines(page, twins):
    click(page, cell(page, "cross.0.1"))
    wait(page, lambda d: "cross.0.1 in full" in by_id(d, "detail").text)
    weights = twins["full"].attention(TEXT)["cross.0.1"]
    shown = page.execute_script(
        "return [...document.querySelector('#detail svg').querySelectorAll('.cell')].map((c) =>"
        " +c.getAttribute('fill-opacity'))"
    )
    assert shown == pytest.approx(weights.ravel().tolist(), abs=0.005)
    lines = page.find_elements(By.CSS_SELECTOR, "#detail svg")[1]
    assert len(lines.find_elements(By.CSS_SELECTOR, ".link")) >= 1
    assert "head=cross.0.1" in page.current_url


def test_colours(page, twins):
    """The darkest cell is the head with the largest value of what was chosen."""

    def darkest():
        return page.execute_script(
            "return [...document.querySelectorAll('button.cell')].map((cell) => [cell.dataset.head,"
            " +(getComputedStyle(cell).backgroundColor.match(/[\\d.]+/g)[3] ?? 1)])"
            ".sort((a, b) => b[1] - a[1])[0][0]"
        )

    model = twins["full"]
    relevance = model.relevance(TEXT)
    attention = model.attention(TEXT)
    step = relevance.at(0)["lrp"]
    for choice, values in {
        "relevance": relevance.heads["lrp"],
        "confidence": attention.confidence(),
        "step": step,
    }.items():
        Select(by_id(page, "colour")).select_by_value(choice)
        assert darkest() == str(max(values, key=values.__getitem__)), choice
    Select(by_id(page, "colour")).select_by_value("column lrp")
    assert darkest().endswith(".2")
    assert "0.3" in by_id(page, "legend").text


def test_two_models_side_by_side(page, twins):
    Select(by_id(page, "other")).select_by_visible_text("small")
    expected = words_of(twins["small"], TEXT)
    wait(page, lambda d: rows(d) and rows(d)[-1] == ["small", expected])
    wait(page, lambda d: len(d.find_elements(By.CSS_SELECTOR, "#detail article")) == 2)
    click(page, cell(page, "enc.0.1"))
    wait(page, lambda d: "This model has no head enc.0.1" in by_id(d, "detail").text)
    Select(by_id(page, "model")).select_by_visible_text("small")
    wait(page, lambda d: len(d.find_elements(By.CSS_SELECTOR, ".cell.gone")) == 3)


def test_steps(page, twins):
    relevance = twins["full"].relevance(TEXT)
    last = len(relevance.steps) - 1
    click(page, by_id(page, "step-on"))
    wait(page, lambda d: by_id(d, "step-name").text.startswith(f"2 of {last + 1}"))
    values = page.execute_script(
        "return [...document.querySelectorAll('#strips .strip:first-child li')].map((item) =>"
        " +item.dataset.value)"
    )
    assert values == pytest.approx(relevance.source[1].tolist(), abs=1e-3)
    shares = page.find_element(By.CSS_SELECTOR, ".share").text
    assert f"{round(100 * relevance.source_contribution[1])} %" in shares
    assert "step=1" in page.current_url
    by_id(page, "main").find_element(By.ID, "step-back").click()
    wait(page, lambda d: by_id(d, "step-name").text.startswith("1 of"))


def test_the_address_is_the_view(page, address, twins):
    """What one person sees another one sees who gets the address."""
    open_page(page, address, f"model=full&text={OTHER}&off=enc.1.1,dec.0.2&head=dec.1.0&step=2")
    expected = words_of(twins["full"], OTHER, ["enc.1.1", "dec.0.2"])
    wait(page, lambda d: len(rows(d)) == 2 and rows(d)[1] == ["without 2 heads", expected])
    assert off(page) == ["enc.1.1", "dec.0.2"]
    wait(page, lambda d: "dec.1.0 in full" in by_id(d, "detail").text)
    assert by_id(page, "sentence").get_attribute("value") == OTHER
    open_page(page, address, "model=nonsense&off=enc.77.1,<b>&head=x&step=-3&colour=%3Cb%3E")
    assert off(page) == []
    assert page.get_log("browser") == []


def test_messages_stand_beside_the_field(page):
    box = by_id(page, "sentence")
    for text, message in (("cat " * 70, "this page takes 60"), ("   ", "empty")):
        box.clear()
        page.execute_script(
            "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))",
            box,
            text,
        )
        wait(page, lambda d, m=message: m in by_id(d, "sentence-error").text)
        assert box.get_attribute("aria-invalid") == "true"
    box.clear()
    box.send_keys(OTHER)
    wait(page, lambda d: by_id(d, "sentence-error").text == "")


def test_text_never_becomes_markup(page):
    box = by_id(page, "sentence")
    box.clear()
    box.send_keys(HOSTILE + Keys.ENTER)
    wait(page, lambda d: rows(d))
    time.sleep(1)
    assert page.execute_script("return window.hacked") is None
    assert page.find_elements(By.CSS_SELECTOR, "main script, main img") == []
    assert [entry for entry in page.get_log("browser") if "Content Security" in str(entry)] == []


def test_keyboard(page, twins):
    first = cell(page, "enc.0.0")
    page.execute_script("arguments[0].focus()", first)
    first.send_keys(Keys.ARROW_RIGHT)
    wait(page, lambda d: d.switch_to.active_element.get_attribute("data-head") == "enc.0.1")
    page.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    wait(page, lambda d: d.switch_to.active_element.get_attribute("data-head") == "enc.1.1")
    wait(page, lambda d: "enc.1.1 in full" in by_id(d, "detail").text)
    page.switch_to.active_element.send_keys("x")
    expected = words_of(twins["full"], TEXT, ["enc.1.1"])
    wait(page, lambda d: len(rows(d)) == 2 and rows(d)[1][1] == expected)
    assert page.switch_to.active_element.get_attribute("data-head") == "enc.1.1"  # focus stays
    page.switch_to.active_element.send_keys("l")
    wait(page, lambda d: off(d) == ["enc.1.0", "enc.1.1", "enc.1.2"])
    page.switch_to.active_element.send_keys("a")
    wait(page, lambda d: off(d) == [])
    page.switch_to.active_element.send_keys(".")
    wait(page, lambda d: by_id(d, "step-name").text.startswith("2 of"))
    page.switch_to.active_element.send_keys("/")
    assert page.switch_to.active_element.get_attribute("id") == "sentence"
    assert len(page.find_elements(By.CSS_SELECTOR, 'button.cell[tabindex="0"]')) == 1
    for name in ("model", "other", "sentence", "pick", "colour", "role", "below", "step", "theme"):
        assert by_id(page, name).accessible_name, name


def test_pictures_are_saved(page):
    """The SVG is a picture by itself; the PNG is one."""
    click(page, cell(page, "enc.1.2"))
    page.execute_script(
        "window.saved = []; const make = URL.createObjectURL;"
        "URL.createObjectURL = (blob) => { window.saved.push(blob); return make(blob); }"
    )
    click(page, by_id(page, "save-svg"))
    read = (
        "const done = arguments[arguments.length - 1]; const reader = new FileReader();"
        "reader.onload = () => done(reader.result); reader.readAsDataURL(window.saved.at(-1))"
    )
    kind, _, content = page.execute_async_script(read).partition(",")
    assert "image/svg+xml" in kind
    tree = ElementTree.fromstring(base64.b64decode(content))
    texts = [node.text for node in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert TEXT in texts
    assert not any("class" in node.attrib for node in tree.iter())
    click(page, by_id(page, "save-png"))
    wait(page, lambda d: d.execute_script("return window.saved.at(-1).type") == "image/png")
    content = page.execute_async_script(read).partition(",")[2]
    assert base64.b64decode(content).startswith(b"\x89PNG")
    assert page.get_log("browser") == []


def test_phone(page):
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page.refresh()
        ready(page)
        assert page.execute_script("return document.documentElement.scrollWidth") == 390
        smallest = page.execute_script(
            "return Math.min(...[...document.querySelectorAll('button.cell')].map((cell) =>"
            " cell.getBoundingClientRect().width))"
        )
        assert smallest >= 24  # a finger can hit it (WCAG 2.2, 2.5.8)
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility(page, address, scheme):
    """axe-core finds nothing serious, in light and in dark."""
    source = axe_source()
    if source is None:
        pytest.skip("axe-core could not be fetched with npm")
    feature = {"name": "prefers-color-scheme", "value": scheme}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    try:
        open_page(page, address, "off=enc.0.0&other=small&model=full")
        wait(page, lambda d: len(d.find_elements(By.CSS_SELECTOR, "#detail article")) == 2)
        click(page, by_id(page, "help-button"))
        ground = page.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
        page.execute_script(source)
        found = page.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
        serious = [
            (rule["id"], [node["target"] for node in rule["nodes"]][:3])
            for rule in found["violations"]
            if rule["impact"] in ("serious", "critical")
        ]
        assert serious == []
        assert len(found["passes"]) > 20
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_attention_in_a_notebook_is_a_page_of_its_own(driver, twins, tmp_path):
    """`attention.show()`: the report's explorer for one sentence, without a server."""
    path = twins["full"].attention(TEXT).show().save(tmp_path / "heads.html")
    driver.get(path.as_uri())
    wait(driver, lambda d: d.find_elements(By.CSS_SELECTOR, "#detail article svg"))
    assert len(driver.find_elements(By.CSS_SELECTOR, "#gallery .head")) == 6
    assert driver.get_log("browser") == []
