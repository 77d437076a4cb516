"""The page in a real browser: Debian's chromium, driven by Selenium."""

from __future__ import annotations

import shutil

import pytest
from paper_like import FUNCTIONS
from planted import HOSTILE

from headcount.heads import Head
from headcount.study.explorer import read_explorer
from headcount.study.results import load_results

webdriver = pytest.importorskip("selenium.webdriver", reason="Selenium is not installed")
By = pytest.importorskip("selenium.webdriver.common.by").By
Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
Select = pytest.importorskip("selenium.webdriver.support.ui").Select
Wait = pytest.importorskip("selenium.webdriver.support.ui").WebDriverWait

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 90
FULL, PRUNED = "en-ru-subs-full", "en-ru-subs-enc-10"


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
    options.add_argument("--force-prefers-reduced-motion")  # scrolls at once
    options.add_argument("--window-size=1300,1000")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=program)
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


@pytest.fixture
def page(driver, paper_like):
    """The page, freshly loaded, its explorer drawn."""
    driver.get((paper_like / "report.html").as_uri())
    wait(driver, lambda d: d.find_elements(By.CSS_SELECTOR, "#detail article"))
    return driver


def wait(driver, condition):
    return Wait(driver, SECONDS).until(condition)


def by_id(driver, name):
    return driver.find_element(By.ID, name)


def choose(driver, name, text):
    """Choose the first option that contains a text."""
    select = Select(by_id(driver, name))
    option = next(o for o in select.options if text in o.get_attribute("textContent"))
    select.select_by_value(option.get_attribute("value"))


def pick(driver, head):
    """Click a head and wait until it is shown."""
    button = driver.find_element(By.CSS_SELECTOR, f'#gallery [data-head="{head}"]')
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
    button.click()
    wait(driver, lambda d: head in d.find_element(By.CSS_SELECTOR, "#detail h3").text)


def gallery(driver):
    """The heads of the gallery in order."""
    return driver.execute_script(
        "return [...document.querySelectorAll('#gallery .head')].map((b) => b.dataset.head)"
    )


def column(driver, table, number):
    """The texts of a table's column, top to bottom."""
    return driver.execute_script(
        "return [...document.getElementById(arguments[0]).tBodies[0].rows]"
        ".map((row) => row.cells[arguments[1]].textContent.trim())",
        table,
        number,
    )


def heading(driver, table, number):
    return driver.find_elements(By.CSS_SELECTOR, f"#{table} thead th button")[number]


def click(driver, element):
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    element.click()


def test_loads_without_an_error(page):
    """Nothing on the console (a violated policy would be there), and nothing fetched."""
    assert page.get_log("browser") == []
    fetched = page.execute_script(
        "return performance.getEntriesByType('resource').map((entry) => entry.name)"
    )
    assert [name for name in fetched if not name.startswith("data:")] == []
    broken = page.execute_script(
        "return [...document.images].filter((i) => !i.complete || !i.naturalWidth).length"
    )
    assert broken == 0


def test_a_click_on_a_head_shows_its_map(page, paper_like):
    """Cells are as dark as the head's weights; a line is drawn for every weight worth one."""
    pick(page, "enc.2.0")
    data = next(d for d in read_explorer(load_results(paper_like)) if d.model == FULL)
    weights = data.weights(0)[Head.parse("enc.2.0")]
    maps, lines = page.find_elements(By.CSS_SELECTOR, "#detail svg")
    opacities = page.execute_script(
        "return [...arguments[0].querySelectorAll('.cell')].map((c) => +c.getAttribute("
        "'fill-opacity'))",
        maps,
    )
    assert opacities == pytest.approx(weights.flatten().tolist(), abs=0.001)
    assert len(lines.find_elements(By.CSS_SELECTOR, ".link")) == int((weights >= 0.02).sum())
    words = [text.get_attribute("textContent") for text in maps.find_elements(By.TAG_NAME, "text")]
    assert words[:3] == ["She", "quickly", "read"]
    chips = [chip.text for chip in page.find_elements(By.CSS_SELECTOR, "#detail .chips li")]
    assert [chip.split(":")[0] for chip in chips] == [name for _, name, _ in FUNCTIONS["enc.2.0"]]
    assert "lrp" in page.find_element(By.CSS_SELECTOR, "#detail .measures").text
    assert maps.accessible_name.startswith("Map: attention of enc.2.0")


def test_other_attention(page, paper_like):
    """Decoder-encoder attention: rows are words of the translation, columns of the source."""
    choose(page, "site", "decoder-encoder")
    wait(page, lambda d: "cross" in d.find_element(By.CSS_SELECTOR, "#detail h3").text)
    pick(page, "cross.3.1")
    data = next(d for d in read_explorer(load_results(paper_like)) if d.model == FULL)
    weights = data.weights(0)[Head.parse("cross.3.1")]
    cells = page.execute_script(
        "return [...document.querySelectorAll('#detail .cell')].map((c) => +c.getAttribute("
        "'fill-opacity'))"
    )
    assert cells == pytest.approx(weights.flatten().tolist(), abs=0.001)


def test_sorting_sorts(page):
    """Tables: numbers as numbers, the largest first, then the other way round; empty cells last."""
    click(page, heading(page, "table2-all-sites", 4))
    numbers = column(page, "table2-all-sites", 4)
    filled = [float(text) for text in numbers if text]
    assert filled == sorted(filled, reverse=True)
    assert numbers[-2:] == ["", ""]
    click(page, heading(page, "table2-all-sites", 4))
    numbers = column(page, "table2-all-sites", 4)
    assert [float(text) for text in numbers[:-2]] == sorted(filled)
    assert numbers[-2:] == ["", ""]
    states = page.execute_script(
        "return [...document.querySelectorAll('#table2-all-sites th')].map((th) =>"
        " th.getAttribute('aria-sort'))"
    )
    assert states == [None, None, None, None, "ascending"]


def test_claims_open_on_a_click_and_on_paper(page):
    """One line each; the criterion and the numbers are there when a line is opened or printed."""
    claims = page.find_elements(By.CSS_SELECTOR, ".claim")
    assert len(claims) == 16
    first = claims[0]
    assert not first.find_element(By.CLASS_NAME, "criterion").is_displayed()
    assert first.rect["height"] < 60
    click(page, first.find_element(By.TAG_NAME, "summary"))
    assert first.find_element(By.CLASS_NAME, "criterion").is_displayed()
    shut = "return document.querySelectorAll('.claim:not([open])').length"
    assert page.execute_script(shut) == 15
    page.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert page.execute_script(shut) == 0
    page.execute_script("dispatchEvent(new Event('afterprint'))")
    assert page.execute_script(shut) == 15


def test_first_screen(page):
    """The sentence and Figure 1 are seen at once."""
    bottom = page.execute_script(
        "return document.querySelector('#fig1-heads img').getBoundingClientRect().bottom"
    )
    assert bottom < page.execute_script("return innerHeight")


def test_heads_are_sorted_by_any_measure(page, paper_like):
    model = load_results(paper_like).model(FULL)
    for measure in ("lrp", "confidence", "ablation"):
        choose(page, "measure", measure)
        values = {str(head): value for head, value in model.column(measure).items()}
        by_layer = sorted(
            (h for h in values if h.startswith("enc")), key=lambda h: (h[4], -values[h])
        )
        wait(page, lambda d, order=by_layer: gallery(d) == order)
    by_id(page, "apart").click()
    flat = sorted((h for h in values if h.startswith("enc")), key=lambda h: -values[h])
    wait(page, lambda d: gallery(d) == flat)
    by_id(page, "head-details").find_element(By.TAG_NAME, "summary").click()
    click(page, heading(page, "head-table", 3))
    shown = [float(text) for text in column(page, "head-table", 3)]
    assert shown == sorted(shown, reverse=True)
    assert len(shown) == 48


def test_heads_are_filtered_by_role_and_layer(page):
    choose(page, "role", "rare words")
    wait(page, lambda d: gallery(d) == ["enc.0.5"])
    choose(page, "role", "positional")
    positional = {
        h for h, found in FUNCTIONS.items() if any(k == "positional" for k, _, _ in found)
    }
    wait(page, lambda d: set(gallery(d)) == positional)
    choose(page, "role", "no role")
    wait(page, lambda d: len(gallery(d)) == 48 - len(FUNCTIONS))
    choose(page, "layer", "3")
    wait(page, lambda d: len(gallery(d)) == 7 and {h[4] for h in gallery(d)} == {"3"})
    choose(page, "layer", "all")
    choose(page, "site", "decoder self-attention")
    choose(page, "role", "rare words")
    wait(page, lambda d: by_id(d, "gallery-empty").is_displayed())
    assert gallery(page) == []


def test_full_and_pruned_model_side_by_side(page, paper_like):
    choose(page, "other", PRUNED)
    results = load_results(paper_like)
    pruned = {str(h) for h in results.model(PRUNED).heads.heads(("enc",))}
    wait(page, lambda d: len(d.find_elements(By.CSS_SELECTOR, "#detail article")) == 2)
    gone = page.execute_script(
        "return [...document.querySelectorAll('#gallery .gone')].map((b) => b.dataset.head)"
    )
    assert set(gone) == {str(h) for h in results.model(FULL).heads.heads(("enc",))} - pruned
    pick(page, "enc.0.1")
    wait(page, lambda d: len(d.find_elements(By.CSS_SELECTOR, "#detail article svg")) == 4)
    assert PRUNED in by_id(page, "translation").text
    pick(page, sorted(gone)[0])
    wait(page, lambda d: len(d.find_elements(By.CSS_SELECTOR, "#detail article svg")) == 2)
    assert "was pruned in this model" in by_id(page, "detail").text


def test_hostile_sentence_stays_text(page):
    choose(page, "sentence", "</script>")
    shown = "</script><scrip…"  # long tokens are cut
    wait(page, lambda d: shown in d.find_element(By.CSS_SELECTOR, "#detail svg").text)
    assert page.execute_script("return window.hacked") is None
    inside = page.find_elements(By.CSS_SELECTOR, "main script, #detail img, #explorer img")
    assert inside == []
    texts = [o.get_attribute("textContent") for o in Select(by_id(page, "sentence")).options]
    assert HOSTILE in texts
    assert by_id(page, "translation").text.startswith(FULL)
    assert page.get_log("browser") == []


def test_keyboard(page):
    """Arrow keys move between heads; words of the lines can be focused; theme and gates react."""
    order = gallery(page)
    first = page.find_element(By.CSS_SELECTOR, '#gallery [aria-pressed="true"]')
    start = order.index(first.get_attribute("data-head"))
    goal = order[start + 1]
    first.send_keys(Keys.ARROW_RIGHT)
    wait(page, lambda d: goal in d.find_element(By.CSS_SELECTOR, "#detail h3").text)
    assert page.switch_to.active_element.get_attribute("data-head") == goal
    assert len(page.find_elements(By.CSS_SELECTOR, '#gallery .head[tabindex="0"]')) == 1
    word = page.find_element(By.CSS_SELECTOR, "#detail svg .word")
    page.execute_script("arguments[0].focus()", word)
    assert "She →" in page.find_element(By.CSS_SELECTOR, "#detail .status").text
    slider = by_id(page, "gates-time")
    page.execute_script("arguments[0].focus()", slider)
    before = by_id(page, "gates-update").text
    slider.send_keys(Keys.ARROW_RIGHT)
    assert by_id(page, "gates-update").text != before
    slider.send_keys(Keys.END)
    assert by_id(page, "gates-update").text.startswith("400: ")
    for name in (
        "model",
        "other",
        "sentence",
        "site",
        "layer",
        "measure",
        "role",
        "apart",
        "theme",
    ):
        assert by_id(page, name).accessible_name


def test_gates_play(page):
    play = by_id(page, "gates-play")
    click(page, play)
    assert play.text == "Pause"
    wait(page, lambda d: by_id(d, "gates-time").get_attribute("value") == "20")
    wait(page, lambda d: play.text == "Play")
    opacity = page.execute_script(
        "return [...document.querySelectorAll('.gate')].filter((cell) =>"
        " !/, 0(\\.0\\d*)?\\)$/.test(getComputedStyle(cell).backgroundColor)).length"
    )
    assert opacity == 10


def test_dark_mode(page):
    """The system's choice is followed until the reader makes one."""

    def ground():
        return page.execute_script("return getComputedStyle(document.body).backgroundColor")

    def prefer(scheme):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    prefer("light")
    light = ground()
    prefer("dark")
    try:
        assert ground() != light
        by_id(page, "theme").click()
        assert ground() == light
        assert by_id(page, "theme").get_attribute("aria-pressed") == "false"
        page.refresh()
        assert ground() == light  # remembered
        page.execute_script("localStorage.clear()")
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_phone(page):
    """Nothing is wider than the screen of a phone but what can be scrolled by itself."""
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page.refresh()
        wait(page, lambda d: d.find_elements(By.CSS_SELECTOR, "#detail article svg"))
        assert page.execute_script("return document.documentElement.scrollWidth") == 390
        # Figures have their panels below each other: their letters are not made smaller.
        shown = page.execute_script(
            "return [...document.querySelectorAll('figure img')].map((i) => i.naturalWidth)"
        )
        assert max(shown) <= 390
        wide = page.execute_script(
            "return [...document.querySelectorAll('.scroll')].filter((box) => box.offsetParent"
            " && box.scrollWidth > box.clientWidth + 2 && !box.classList.contains('more')).length"
        )
        assert wide == 0  # whatever can be scrolled says so
        assert page.find_elements(By.CSS_SELECTOR, ".scroll.more")
        cramped = page.execute_script(
            "return [...document.querySelectorAll('#gallery .head b')].filter((b) =>"
            " b.scrollWidth > b.clientWidth + 1).length"
        )
        assert cramped == 0  # a head's name and its value do not run into each other
        pick(page, "enc.1.2")
        wait(page, lambda d: by_id(d, "detail").rect["width"] <= 390)
        top = page.execute_script(
            "return document.getElementById('detail').getBoundingClientRect().top"
        )
        assert top < 844  # the reader sees what was chosen
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
