"""The report in a real browser, offline."""

import io
import re

import pytest
from PIL import Image

import browsers
from fedrzo.paper.report import page as report
from records import HOSTILE, STEPS, history, write_sample

pytestmark = pytest.mark.slow("starts a browser")

DESKTOP = {"viewport": {"width": 1280, "height": 900}}
PHONE = {"viewport": {"width": 375, "height": 740}, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}
FIGURES = 3

# Returns every text that is shown with too little contrast to what is behind it, after WCAG 2.1 (1.4.3).
CONTRAST = """() => {
  const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  const over = (layers) => {
    pen.clearRect(0, 0, 1, 1);
    layers.forEach((colour) => { pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1); });
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const poor = [];
  let seen = 0;
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const text = walker.currentNode.textContent.trim();
    if (!text || element.closest("script, style, :disabled, .skip") || !element.checkVisibility()) continue;
    const style = getComputedStyle(element), layers = [];
    for (let one = element; one; one = one.parentElement) layers.unshift(getComputedStyle(one).backgroundColor);
    const ink = element instanceof SVGElement ? style.fill : style.color;
    const pair = [over(layers), over([...layers, ink])].map(luminance).sort((a, b) => a - b);
    const ratio = (pair[1] + 0.05) / (pair[0] + 0.05);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    seen += 1;
    if (ratio < (large ? 3 : 4.5)) poor.push(`${text.slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return [seen, poor];
}"""


@pytest.fixture(scope="module")
def browser():
    with browsers.start() as started:
        yield started


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    return report.write(write_sample(tmp_path_factory.mktemp("browser"))).file.as_uri()


@pytest.fixture
def visit(browser, address):
    """Open the report; afterwards nothing may have been logged as an error, or asked for but the page itself."""
    contexts, seen = [], []

    def visit(figures=FIGURES, **options):
        contexts.append(browser.new_context(**{**DESKTOP, **options}))
        page = contexts[-1].new_page()
        page.set_default_timeout(300_000)
        seen.append(browsers.watch(page))
        page.goto(address)
        for figure in page.locator("figure").all()[:figures]:
            figure.scroll_into_view_if_needed()
            page.wait_for_function("(one) => one.dataset.drawn === 'true'", arg=figure.element_handle())
        return page

    yield visit
    for context in contexts:
        context.close()
    assert [error for errors, _ in seen for error in errors] == []
    asked = {url for _, urls in seen for url in urls if not url.startswith(("data:image/", "blob:"))}
    assert asked == {address}


@pytest.fixture
def page(visit):
    """A page whose first figures are drawn, those with curves; a surface takes seconds without a graphics card."""
    return visit(figures=FIGURES - 1)


def plot(page, expression, figure=0):
    """Return a value of what Plotly holds of a figure."""
    return page.evaluate(f"() => ((plot) => {expression})(document.querySelectorAll('.plot')[{figure}])")


def lines(page, figure=0):
    return plot(page, "plot.data.filter((trace) => !trace.fill).map((trace) => trace.name)", figure)


def point(page, curve, row):
    """Return where on the screen a row of a curve of the first figure is."""
    x, y, left, top = plot(
        page,
        f"""((trace, {{xaxis, yaxis, _size}}) => [xaxis.d2p(trace.x[{row}]), yaxis.d2p(trace.y[{row}]), _size.l, _size.t])(
            plot.data.filter((trace) => !trace.fill)[{curve}], plot._fullLayout)""",
    )
    box = page.locator(".plot").first.bounding_box()
    return box["x"] + left + x, box["y"] + top + y


def test_every_figure_is_drawn(visit):
    page = visit()
    assert page.locator("figure").count() == FIGURES
    assert page.locator("figure.failed").count() == 0
    for figure in page.locator("figure").all():
        box = figure.locator(".plot").bounding_box()
        assert box["width"] > 500
        assert box["height"] > 300
        assert not figure.locator("img.static").is_visible()
    assert page.locator("figure").nth(0).locator(".scatterlayer path.js-line").count() == 4 + 3  # lines and bands
    canvas = page.locator("figure").nth(2).locator("canvas").first
    assert canvas.evaluate("(one) => one.width * one.height") > 100_000
    picture = Image.open(io.BytesIO(page.locator("figure").nth(2).locator(".plot").screenshot()))
    assert len(picture.convert("RGB").getcolors(1_000_000)) > 500  # a shaded surface, not an empty box


def test_curves_are_toggled_by_mouse_and_by_keyboard(page):
    legend = page.locator("figure").first.locator(".legend button")
    everything = lines(page)
    assert len(everything) == 4
    legend.nth(0).click()
    assert lines(page) == everything[1:]
    assert legend.nth(0).get_attribute("aria-pressed") == "false"
    legend.nth(1).focus()
    page.keyboard.press("Space")
    assert lines(page) == everything[2:]
    page.keyboard.press("Enter")
    assert lines(page) == everything[1:]
    page.get_by_role("button", name="hide all").first.click()
    assert lines(page) == []
    page.get_by_role("button", name="show all").first.click()
    assert lines(page) == everything
    assert [one.get_attribute("aria-pressed") for one in legend.all()[:4]] == ["true"] * 4


def test_axes_are_switched(page):
    figure = page.locator("figure").first
    titles = {
        "bytes": ("upload + download [MB]", 30),
        "evaluations": ("loss evaluations (1 gradient = 3)", 1000),
        "rounds": ("communication rounds", 10),
    }
    for name, (title, last) in titles.items():
        button = figure.get_by_role("button", name=name, exact=True)
        button.click()
        assert button.get_attribute("aria-pressed") == "true"
        assert figure.locator(".xtitle").text_content() == title
        assert plot(page, "plot.data.filter((trace) => !trace.fill)[0].x.at(-1)") == last
    assert figure.locator('[data-set="cost"][aria-pressed="true"]').count() == 1
    for axis, group in (("yaxis", "Scale of the vertical axis"), ("xaxis", "Scale of the horizontal axis")):
        for kind in ("linear", "log", "linear"):
            button = figure.get_by_role("group", name=group).get_by_role("button", name=kind)
            button.focus()
            page.keyboard.press("Enter")
            assert plot(page, f"plot._fullLayout.{axis}.type") == kind
            assert plot(page, f"plot._fullLayout.{axis}.range.every(Number.isFinite)")


def test_a_metric_with_negative_values_has_no_logarithmic_axis(page):
    group = page.locator("figure").nth(1).get_by_role("group", name="Scale of the vertical axis")
    assert group.get_by_role("button", name="log").is_disabled()
    assert plot(page, "plot._fullLayout.yaxis.type", 1) == "linear"


def test_two_runs_are_drawn_themselves(page):
    [runs] = plot(page, "plot.data.filter((trace) => trace.fill)", 1)
    losses = [history(seed, sign=-1.0)["loss"] for seed in (40, 41)]
    assert [value is None for value in runs["y"]] == 2 * [*[False] * STEPS, True]
    drawn = [value for value in runs["y"] if value is not None]
    assert drawn == pytest.approx([*losses[0], *losses[1]], rel=1e-5)
    assert lines(page, 1) == ["a", "b"]
    said = plot(page, "plot.data.find((trace) => trace.name === 'b').text", 1)
    assert said[4] == f"<br>runs: {losses[0][4]:.4g}, {losses[1][4]:.4g}"


def test_curves_that_explode_leave_the_picture(page):
    assert plot(page, "10 ** plot._fullLayout.yaxis.range[1]") < 2
    page.get_by_role("button", name="hide all").first.click()
    page.locator("figure").first.locator(".legend button").nth(2).click()
    assert plot(page, "10 ** plot._fullLayout.yaxis.range[1]") > 1e7


def test_hovering_shows_values_and_labels_are_texts(page):
    page.locator("figure").first.locator(".plot").scroll_into_view_if_needed()
    page.get_by_role("button", name="hide all").first.click()
    for curve, label in ((0, "H = 1"), (3, HOSTILE)):
        page.locator("figure").first.locator(".legend button").nth(curve).click()
        page.mouse.move(*point(page, 0, 4))
        hover = page.locator("figure").first.locator(".hoverlayer .hovertext")
        hover.wait_for()
        text = hover.text_content()
        assert label in text
        assert "round: 4" in text
        assert "95 %: " in text if curve == 0 else f"loss: {history(30)['loss'][4]:.4g}" in text
        page.locator("figure").first.locator(".legend button").nth(curve).click()
        page.mouse.move(5, 5)
    assert page.locator("figure").first.locator(".hoverlayer script").count() == 0


def test_zooming_by_mouse_and_by_buttons_outlasts_other_changes(page):
    figure = page.locator("figure").first
    figure.locator(".plot").scroll_into_view_if_needed()
    box = figure.locator(".plot").bounding_box()
    at = [(box["x"] + share * box["width"], box["y"] + share * box["height"]) for share in (0.35, 0.6)]
    whole = plot(page, "plot._fullLayout.xaxis.range")
    page.mouse.move(*at[0])
    page.mouse.down()
    page.mouse.move(*at[1], steps=5)
    page.mouse.up()
    page.wait_for_function("(least) => document.querySelector('.plot')._fullLayout.xaxis.range[0] > least", arg=whole[0])
    zoomed = plot(page, "plot._fullLayout.xaxis.range")
    assert whole[0] < zoomed[0] < zoomed[1] < whole[1]
    figure.locator(".legend button").nth(0).click()
    assert plot(page, "plot._fullLayout.xaxis.range") == zoomed
    figure.get_by_role("button", name="Zoom in").click()
    nearer = plot(page, "plot._fullLayout.xaxis.range")
    assert zoomed[0] < nearer[0] < nearer[1] < zoomed[1]
    figure.get_by_role("button", name="Zoom out").click()
    assert plot(page, "plot._fullLayout.xaxis.range") == pytest.approx(zoomed)
    figure.get_by_role("button", name="reset").click()
    assert plot(page, "plot._fullLayout.xaxis.range") == pytest.approx(whole)


@pytest.mark.slow("a real browser, step by step")
def test_a_surface_turns_and_becomes_a_map(visit):
    page = visit()
    figure = page.locator("figure").nth(2)
    before = plot(page, "plot._fullLayout.scene.camera.eye", 2)
    figure.get_by_role("button", name="Turn left").focus()
    page.keyboard.press("Enter")
    assert plot(page, "plot._fullLayout.scene.camera.eye", 2) != before
    figure.get_by_role("button", name="reset").click()
    assert plot(page, "plot._fullLayout.scene.camera.eye", 2) == before
    figure.get_by_role("button", name="heat map").click()
    assert plot(page, "plot.data[0].type", 2) == "heatmap"
    assert figure.locator(".heatmaplayer image").count() == 1
    figure.get_by_role("button", name="surface").click()
    assert plot(page, "plot.data[0].type", 2) == "surface"


def test_fits_a_phone(visit):
    page = visit(**PHONE)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 375
    wide = """() => [...document.querySelectorAll("main *")].filter((one) => !one.closest(".scroll, .plot")
        && one.checkVisibility() && one.getBoundingClientRect().right > 376).map((one) => one.outerHTML.slice(0, 80))"""
    assert page.evaluate(wide) == []
    for button in page.locator("button:visible").all():
        assert button.bounding_box()["height"] >= 24
    assert plot(page, "plot._fullLayout.dragmode") is False  # a finger on a figure scrolls the page
    page.locator("figure").first.locator(".legend button").first.tap()
    assert len(lines(page)) == 3


@pytest.mark.slow("a real browser, step by step")
def test_paper_gets_images_and_everything_folded(visit):
    page = visit(figures=0)
    page.emulate_media(media="print")
    for figure in page.locator("figure").all():
        image = figure.locator("img.static")
        assert image.is_visible()
        assert image.evaluate("(one) => one.complete && one.naturalWidth") > 400
        assert not figure.locator(".plot").is_visible()
        assert not figure.locator(".controls").is_visible()
        assert figure.locator("details td").first.is_visible()
    assert not page.locator("nav").is_visible()
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_without_scripts_images_take_the_place_of_drawings(visit):
    page = visit(figures=0, java_script_enabled=False)
    assert [image.is_visible() for image in page.locator("img.static").all()] == [True] * FIGURES
    assert not page.locator(".controls").first.is_visible()


@pytest.mark.slow("a real browser, step by step")
def test_everything_has_a_name(visit):
    page = visit()
    # One line per element, as those who listen to the page meet it: - 'role "name"': content.
    tree = re.findall(r"""^ *- '?([a-z]+)( ")?""", page.locator("body").aria_snapshot(), re.MULTILINE)
    for role in ("button", "img", "figure", "table", "navigation", "region", "link"):
        found = [bool(name) for kind, name in tree if kind == role]
        assert found, role
        assert all(found), role
        assert role not in ("img", "figure") or len(found) == FIGURES


@pytest.mark.slow("a real browser, step by step")
def test_every_control_is_reached_by_the_tab_key(visit):
    page = visit()
    wanted = page.evaluate("""() => {
        const all = [...document.querySelectorAll("a, button:enabled, summary")].filter((one) => one.checkVisibility());
        all.forEach((one, i) => { one.dataset.stop = i; });
        return all.length;
    }""")
    page.evaluate("() => { scrollTo(0, 0); document.activeElement.blur(); }")
    order = []
    for _ in range(2 * wanted):
        page.keyboard.press("Tab")
        order.append(page.evaluate("() => document.activeElement.dataset.stop"))
        if order[-1] == str(wanted - 1):
            break
    assert [stop for stop in order if stop is not None] == [str(i) for i in range(wanted)]
    page.locator(".skip").focus()
    assert page.locator(".skip").bounding_box()["x"] >= 0  # shown once it is reached
    page.keyboard.press("Enter")
    assert page.evaluate("() => location.hash") == "#main"


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow("a real browser, step by step"))])
def test_texts_stand_out_from_what_is_behind_them(visit, scheme):
    page = visit(color_scheme=scheme)
    page.evaluate("() => document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.locator("figure").first.locator(".legend button").first.click()
    seen, poor = page.evaluate(CONTRAST)
    assert seen > 200
    assert poor == []
    background = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 22, 28)"}[scheme]


def test_the_contrast_check_can_fail(visit):
    page = visit(figures=0)
    page.evaluate("() => { document.querySelector('h1').style.color = '#bbb'; }")
    assert [line.split(":")[0] for line in page.evaluate(CONTRAST)[1]] == ["What was run, and what came out"]
