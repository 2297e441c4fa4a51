import asyncio
import json
import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from wegl_dask.report.job import write_report
from wegl_dask.spec import ClusterTable, TrainTable
from wegl_dask.storage import RunFolder
from wegl_dask.training import svm
from wegl_dask.training.job import train

pytest.importorskip("bokeh")

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDTHS = (1280, 390)

DRAWN = """new Promise(done => {
  const look = () => typeof Bokeh != "undefined" && Bokeh.documents.length && Bokeh.documents.every(each => each.is_idle)
    ? requestAnimationFrame(() => requestAnimationFrame(() => done(true))) : requestAnimationFrame(look);
  look();
})"""

SIZES = """(() => {
  const plots = [...Bokeh.index.roots].filter(view => view.frame).map(view => {
    const box = view.el.getBoundingClientRect(), {x_scale, y_scale} = view.frame;
    const width = x_scale.target_range.end - x_scale.target_range.start;
    const height = Math.abs(y_scale.target_range.end - y_scale.target_range.start);
    return {left: box.left, right: box.right, width, height};
  });
  const outside = [...document.querySelectorAll("main *:not(pre)")]
    .filter(element => element.getBoundingClientRect().right > innerWidth + 1).map(element => element.outerHTML);
  return {page: document.documentElement.scrollWidth, window: document.documentElement.clientWidth, plots, outside};
})()"""

MAP = """(() => {
  const view = Bokeh.index.roots[0];
  view.el.scrollIntoView({block: "center"});
  const box = view.canvas_view.el.getBoundingClientRect(), frame = view.frame, points = [];
  for (const drawn of view.model.renderers) {
    const {x, y, id, label, nodes} = drawn.data_source.data;
    for (let i = 0; i < x.length; i++)
      points.push([box.left + frame.x_scale.compute(x[i]), box.top + frame.y_scale.compute(y[i]), id[i], label[i], nodes[i]]);
  }
  return points;
})()"""

TOOLTIPS = """(() => {
  const texts = [], walk = node => {
    if (node.classList?.contains("bk-Tooltip")) texts.push(node.shadowRoot.querySelector(".bk-tooltip-content").innerText);
    else for (const child of [...(node.shadowRoot?.children ?? []), ...node.children]) walk(child);
  };
  walk(document.body);
  return texts;
})()"""


class Tab:
    """A tab of a browser, spoken to in the DevTools protocol."""

    def __init__(self, loop, connection):
        self._loop = loop
        self._connection = connection
        self._number = 0
        self.events = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        """Call a method, and wait for what it returns; events that come before that are kept."""
        self._number += 1
        self._exchange(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = self._next()
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    def evaluate(self, expression):
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"]["value"]

    def open(self, url, width):
        """Open a page, and wait until its plots are drawn."""
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Page.navigate", url=url)
        while not self.named("Page.loadEventFired"):
            self.events.append(self._next())
        self.evaluate(DRAWN)

    def named(self, method):
        return [event["params"] for event in self.events if event["method"] == method]

    def _next(self):
        return json.loads(self._exchange())

    def _exchange(self, message=None):
        async def exchange():
            if message is not None:
                await self._connection.write_message(message)
                return None
            return await self._connection.read_message()

        return self._loop.run_until_complete(exchange())


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    """A headless browser that finds no host, so that a page that asks for something outside itself does not get it."""
    from tornado.httpclient import AsyncHTTPClient
    from tornado.websocket import websocket_connect

    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser is here: {', '.join(NAMES)}")
    command = [
        program,
        "--headless=new",
        "--no-sandbox",  # it does not start as root otherwise
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--remote-debugging-port=0",
        f"--user-data-dir={tmp_path_factory.mktemp('browser')}",
        "about:blank",
    ]
    loop = asyncio.new_event_loop()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            lines = (re.search(r"ws://127\.0\.0\.1:(\d+)/", line) for line in process.stderr)
            port = next(found for found in lines if found)[1]

            async def connect():
                listed = await AsyncHTTPClient().fetch(f"http://127.0.0.1:{port}/json/list")
                (page,) = (each for each in json.loads(listed.body) if each["type"] == "page")
                return await websocket_connect(page["webSocketDebuggerUrl"], max_message_size=1 << 28)

            connection = loop.run_until_complete(connect())
            yield Tab(loop, connection)
        finally:
            process.terminate()
            process.stderr.close()
            process.wait()
            loop.close()


@pytest.fixture(scope="module")
def page_of_targets(quickstart, tmp_path_factory):
    """Address of the report of a run whose labels are targets, with a model trained on it."""
    run = RunFolder(
        str(shutil.copytree(quickstart.folder / "runs/quickstart", tmp_path_factory.mktemp("page") / "run"))
    )
    train(run, TrainTable(model="ridge", protocol="cv", folds=2), ClusterTable(workers=1), seed=0)
    return f"file://{write_report(run)}"


@pytest.fixture
def page_of(write_problem, monkeypatch):
    """Find the address of the report of a run of a problem, with a model trained on it."""
    monkeypatch.setattr(svm, "PENALTIES", (0.1, 1.0))

    def find(problem):
        run = write_problem(problem, job='name = "classes"\n')
        train(run, TrainTable(model="svm-linear", protocol="cv", folds=2), ClusterTable(workers=1), seed=0)
        run.unmark_success()
        run.write_manifest(run.records(), stage_seconds={"embed": 1.5}, work={}, versions={"numpy": "2"}, summary={})
        run.remove("model/model.json")
        run.mark_success()
        return f"file://{write_report(run)}"

    return find


def check_that_it_draws(tab, page):
    assert tab.named("Runtime.exceptionThrown") == []
    assert tab.named("Log.entryAdded") == []
    assert {each["type"] for each in tab.named("Runtime.consoleAPICalled")} <= {"log", "info", "debug"}
    asked = [each["request"]["url"] for each in tab.named("Network.requestWillBeSent")]
    assert [url for url in asked if not url.startswith(("data:", "blob:"))] == [page]


def check_that_it_fits(tab, width, n_plots):
    sizes = tab.evaluate(SIZES)
    assert sizes["page"] <= sizes["window"]
    assert sizes["outside"] == []
    assert len(sizes["plots"]) == n_plots
    for plot in sizes["plots"]:
        assert 0 <= plot["left"] < plot["right"] <= width
        assert plot["width"] >= 200
        assert plot["height"] >= 150


def check_that_pointing_at_a_graph_shows_its_id(tab):
    points = tab.evaluate(MAP)
    places = np.array([point[:2] for point in points])
    distances = np.linalg.norm(places[:, None] - places[None, :], axis=2)
    np.fill_diagonal(distances, np.inf)
    # A graph by itself, so that it is the only one that is pointed at.
    x, y, graph_id, label, nodes = points[int(distances.min(axis=1).argmax())]
    tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    tab.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    (text,) = tab.evaluate(TOOLTIPS)
    shown = re.sub(r"\s+", "", text)
    assert re.fullmatch(rf"graph:{re.escape(graph_id)}label:{re.escape(label)}nodes:{nodes}transportcost:[\d.]+", shown)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_report_of_a_run_with_targets_reads_well(width, tab, page_of_targets):
    tab.open(page_of_targets, width)
    check_that_it_draws(tab, page_of_targets)
    check_that_it_fits(tab, width, n_plots=7)
    check_that_pointing_at_a_graph_shows_its_id(tab)


def test_the_report_of_a_run_with_classes_reads_well(tab, page_of, make_problem):
    page = page_of(make_problem("binary"))
    for width in WIDTHS:
        tab.open(page, width)
        check_that_it_draws(tab, page)
        check_that_it_fits(tab, width, n_plots=6)
        check_that_pointing_at_a_graph_shows_its_id(tab)


def test_classes_of_any_name_are_drawn(tab, page_of, make_problem):
    names = ("", " ", "1", "01", "unknown", "<b>" * 3_000, "x" * 10_000)
    page = page_of(replace(make_problem("multiclass", n=140, n_classes=7, unknown=5), class_names=names))
    for width in WIDTHS:
        tab.open(page, width)
        check_that_it_draws(tab, page)
        check_that_it_fits(tab, width, n_plots=5)


def test_many_classes_are_drawn(tab, page_of, make_problem):
    problem = make_problem("multiclass", n=200)
    problem.Y[:, 0] = np.arange(200) % 40
    page = page_of(replace(problem, class_names=tuple(f"class {i}" for i in range(40))))
    tab.open(page, WIDTHS[1])
    check_that_it_draws(tab, page)
    check_that_it_fits(tab, WIDTHS[1], n_plots=5)
