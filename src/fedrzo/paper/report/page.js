"use strict";
// Draws each figure when it comes near the screen, and redraws it when a button changes its state. The data is JSON beside it.
(() => {
  const root = document.documentElement;
  root.classList.add("js"); // before anything is shown: drawings take the place of images
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)");
  const config = { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: "autosize" };
  const start = { angle: -2.2, distance: 1.8, height: 1 }; // where a surface is seen from

  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  // Plotly reads a few tags in texts; a label is a text and nothing else.
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const short = (value) => Number(value.toPrecision(4)).toString();

  // Null interrupts a line. A band is a closed outline, one for each stretch between such gaps.
  function outline(x, low, high) {
    const xs = [], ys = [];
    for (let i = 0; i < x.length; i += 1) {
      const first = i;
      while (i < x.length && x[i] !== null && low[i] !== null && high[i] !== null) i += 1;
      if (i === first) continue;
      const there = Array.from({ length: i - first }, (_, k) => first + k), back = [...there].reverse();
      xs.push(...there.map((k) => x[k]), ...back.map((k) => x[k]), null);
      ys.push(...there.map((k) => low[k]), ...back.map((k) => high[k]), null);
    }
    return [xs, ys];
  }

  function curveTraces(data, state) {
    const bands = [], lines = [], axis = data.axes[state.cost];
    data.curves.forEach((curve, i) => {
      if (state.hidden.has(i)) return;
      const colour = curve.colours[dark.matches ? 1 : 0];
      // A logarithmic axis has no zero: the first row of every run costs nothing.
      const x = curve.costs[state.cost].map((value) => (state.x === "log" && value <= 0 ? null : value));
      let interval = curve.mean.map(() => "");
      if (curve.low) {
        const [xs, ys] = outline(x, state.y === "log" ? curve.logLow : curve.low, curve.high);
        const fillcolor = colour + Math.round(255 * data.opacity).toString(16).padStart(2, "0");
        bands.push({ x: xs, y: ys, mode: "lines", fill: "toself", line: { width: 0, color: colour }, fillcolor, hoverinfo: "skip" });
        interval = curve.low.map((low, k) => (low === null ? "" : `<br>95 %: ${short(low)} to ${short(curve.high[k])}`));
      }
      if (curve.runs) { // too few for a band: they are drawn themselves, one after another in one trace
        const gap = (values) => [...values, null];
        const look = { mode: "lines", fill: "none", line: { width: 0.8, color: colour }, hoverinfo: "skip" };
        bands.push({ x: curve.runs.flatMap(() => gap(x)), y: curve.runs.flatMap(gap), ...look });
        interval = curve.mean.map((_, k) => `<br>runs: ${curve.runs.map((run) => (run[k] === null ? "none" : short(run[k]))).join(", ")}`);
      }
      const dash = curve.dash.length ? curve.dash.map((length) => `${2 * length}px`).join(",") : "solid";
      const where = `${plain(axis.unit ? axis.unit : state.cost)}: %{x:,.6~g}`;
      const name = plain(curve.label);
      lines.push({
        x, y: curve.mean, text: interval, name, mode: "lines", line: { color: colour, width: 2.2, dash },
        hovertemplate: `<b>%{fullData.name}</b><br>${where}<br>${plain(data.metric)}: %{y:.4~g}%{text}<extra></extra>`,
      });
    });
    return [...bands, ...lines];
  }

  function look(height) {
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, autosize: true, height,
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: css("--text") },
      hoverlabel: { bgcolor: css("--raised"), bordercolor: css("--control"), font: { color: css("--text") }, align: "left" },
    };
  }

  function curveLayout(data, state, plot) {
    const line = { gridcolor: css("--grid"), linecolor: css("--control"), zeroline: false, automargin: true, ticks: "outside", tickcolor: css("--control") };
    const range = (key, other) => {
      const chosen = state.view ? state.view[key] : other;
      return chosen ? { range: chosen, autorange: false } : { autorange: true };
    };
    // Curves that explode leave the picture, unless nothing else is shown in it.
    const stays = data.curves.some((curve, i) => !state.hidden.has(i) && Math.max(...curve.mean) <= (data.limits || [])[1]);
    const limits = stays ? data.limits.map((value) => (state.y === "log" ? Math.log10(value) : value)) : null;
    const drag = touch.matches ? false : "zoom"; // a finger on the figure scrolls the page
    return {
      ...look(plot.clientHeight), hovermode: "closest", hoverdistance: 40, dragmode: drag, margin: { l: 10, r: 14, t: 10, b: 10 },
      xaxis: { ...line, ...range("x"), type: state.x, rangemode: "tozero", tickformat: "~s", nticks: 7, title: { text: data.axes[state.cost].label, standoff: 10 } },
      yaxis: { ...line, ...range("y", limits), type: state.y, tickformat: "~g", nticks: 5, title: { text: plain(data.metric) + (state.y === "log" ? ", log scale" : ""), standoff: 8 } },
    };
  }

  function surfaceFigure(data, state, plot) {
    const [x, y, z] = data.labels.map(plain);
    const hovertemplate = `${x}: %{x:.4~g}<br>${y}: %{y:.4~g}<br>${z}: %{z:.4~g}<extra></extra>`;
    const bar = { title: { text: z }, thickness: 14, len: 0.8, outlinewidth: 0 };
    const trace = { x: data.x, y: data.y, z: data.z, colorscale: "Viridis", colorbar: bar, hovertemplate };
    const axis = (text) => ({ title: { text }, tickfont: { size: 11 }, gridcolor: css("--line"), zeroline: false, color: css("--text") });
    const layout = { ...look(plot.clientHeight), margin: { l: 10, r: 10, t: 10, b: 10 } };
    if (state.as === "map") {
      const side = (text) => ({ ...axis(text), automargin: true, gridcolor: "rgba(0,0,0,0)" });
      return [[{ ...trace, type: "heatmap" }], { ...layout, dragmode: touch.matches ? false : "zoom", xaxis: side(x), yaxis: side(y) }];
    }
    const narrow = plot.clientWidth < 500, away = start.distance * (narrow ? 1.3 : 1);
    const eye = { x: away * Math.cos(state.angle), y: away * Math.sin(state.angle), z: start.height * (narrow ? 1.3 : 1) };
    trace.showscale = !narrow;
    const scene = { xaxis: axis(x), yaxis: axis(y), zaxis: axis(z), camera: { eye, center: { x: 0, y: 0, z: -0.18 } }, aspectmode: "cube", dragmode: touch.matches ? false : "turntable" };
    return [[{ ...trace, type: "surface" }], { ...layout, scene }];
  }

  function draw(figure) {
    const { plot, data, state } = figure;
    const [traces, layout] = data.kind === "curves" ? [curveTraces(data, state), curveLayout(data, state, plot)] : surfaceFigure(data, state, plot);
    return Plotly.react(plot, traces, layout, config).then(() => {
      if (figure.drawn) return;
      figure.drawn = true;
      figure.element.dataset.drawn = "true";
      document.getElementById("js-plotly-tester")?.setAttribute("aria-hidden", "true"); // Plotly measures texts in it
      if (data.kind === "curves") plot.on("plotly_relayout", (change) => remember(figure, change));
    }).catch((error) => fail(figure, error));
  }

  function fail(figure, error) {
    console.error(error);
    figure.element.classList.add("failed"); // shows the image
  }

  // What was zoomed into stays when a curve is hidden or shown.
  function remember(figure, change) {
    const { xaxis, yaxis } = figure.plot.layout;
    if (change["xaxis.autorange"] || change["yaxis.autorange"]) figure.state.view = null;
    else if (Object.keys(change).some((key) => key.includes("axis.range"))) figure.state.view = { x: xaxis.range, y: yaxis.range };
  }

  function zoom(figure, factor) {
    const { xaxis, yaxis } = figure.plot._fullLayout;
    const scale = ([low, high]) => [(low + high) / 2 - ((high - low) / 2) * factor, (low + high) / 2 + ((high - low) / 2) * factor];
    figure.state.view = { x: scale(xaxis.range), y: scale(yaxis.range) };
  }

  const actions = {
    in: (figure) => zoom(figure, 0.6),
    out: (figure) => zoom(figure, 1 / 0.6),
    left: (figure) => { figure.state.angle -= Math.PI / 8; },
    right: (figure) => { figure.state.angle += Math.PI / 8; },
    reset: (figure) => { figure.state.view = null; figure.state.angle = start.angle; },
    all: (figure) => figure.state.hidden.clear(),
    none: (figure) => figure.data.curves.forEach((_, i) => figure.state.hidden.add(i)),
  };

  function press(figure, button) {
    const { set, value, curve } = button.dataset, { state } = figure;
    if (set) {
      state[set] = value;
      state.view = null;
    } else if (curve !== undefined) {
      state.hidden.has(Number(curve)) ? state.hidden.delete(Number(curve)) : state.hidden.add(Number(curve));
    } else {
      actions[button.dataset.do](figure);
    }
    show(figure);
    draw(figure);
  }

  function show({ element, state }) {
    element.querySelectorAll("[data-set]").forEach((one) => one.setAttribute("aria-pressed", state[one.dataset.set] === one.dataset.value));
    element.querySelectorAll("[data-curve]").forEach((one) => one.setAttribute("aria-pressed", !state.hidden.has(Number(one.dataset.curve))));
    element.querySelectorAll(".turn").forEach((one) => { one.style.visibility = state.as === "map" ? "hidden" : ""; });
  }

  function prepare(element) {
    const data = JSON.parse(element.querySelector('script[type="application/json"]').textContent);
    const cost = data.axes ? Object.keys(data.axes)[0] : null;
    const state = { cost, x: "linear", y: data.log ? "log" : "linear", hidden: new Set(), view: null, as: "surface", angle: start.angle };
    const figure = { element, data, state, plot: element.querySelector(".plot"), drawn: false };
    if (data.kind === "surface" && !document.createElement("canvas").getContext("webgl")) {
      state.as = "map"; // this browser draws no surfaces
      element.querySelector('[data-value="surface"]').disabled = true;
    }
    show(figure);
    element.querySelectorAll(".controls button, .legend button").forEach((button) => button.addEventListener("click", () => press(figure, button)));
    return figure;
  }

  function copy(button) {
    const code = button.previousElementSibling;
    const done = (word) => { button.textContent = word; setTimeout(() => { button.textContent = "copy"; }, 1500); };
    navigator.clipboard.writeText(code.textContent).then(() => done("copied"), () => {
      getSelection().selectAllChildren(code); // the browser forbids copying: select it instead
      done("selected");
    });
  }

  // Marks in the contents which part is being read.
  function follow() {
    const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
    const seen = new Set();
    const observer = new IntersectionObserver((entries) => {
      entries.forEach(({ target, isIntersecting }) => (isIntersecting ? seen.add(target.id) : seen.delete(target.id)));
      const current = [...links.keys()].find((id) => seen.has(id));
      links.forEach((link, id) => (id === current ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current")));
    }, { rootMargin: "-20% 0px -60% 0px" });
    links.forEach((_, id) => observer.observe(document.getElementById(id)));
  }

  document.addEventListener("DOMContentLoaded", () => {
    const figures = [...document.querySelectorAll("figure")].map(prepare);
    const near = new IntersectionObserver((entries) => entries.filter((entry) => entry.isIntersecting).forEach(({ target }) => {
      near.unobserve(target);
      draw(figures.find((figure) => figure.element === target));
    }), { rootMargin: "600px" });
    figures.forEach((figure) => near.observe(figure.element));
    dark.addEventListener("change", () => figures.filter((figure) => figure.drawn).forEach(draw));
    document.querySelectorAll("[data-copy]").forEach((button) => button.addEventListener("click", () => copy(button)));
    follow();
  });

  // Closed details would be missing on paper.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    closed.forEach((one) => { one.open = true; });
  });
  addEventListener("afterprint", () => closed.forEach((one) => { one.open = false; }));
})();
