// Wires the page: reads the data, keeps the view, draws panels, table and details. With #figure=METRIC in the address it
// becomes that one figure, for a file.
"use strict";

(() => {
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);
  const address = new URLSearchParams(location.hash.slice(1));
  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  const view = {metric: data.metric, stat: data.stat, log: false, sameY: true, theme: "light"};
  let plots = [], points = [], chosen = null;

  // A fault of these scripts must not look like a page with few points.
  addEventListener("error", (event) => {
    document.body.dataset.fault = event.message;
    const note = byId("notes");
    if (note) note.textContent = `This page has a fault and is not complete: ${event.message}`;
  });

  // ---- the figure for a file

  function becomeFigure() {
    const known = (key, values, fallback) => values.includes(address.get(key)) ? address.get(key) : fallback;
    view.metric = known("figure", Object.keys(Scales.METRICS), data.metric);
    view.stat = known("stat", ["mean", "median", "p90", "p99"], data.stat);
    view.theme = known("theme", ["light", "dark"], "light");
    view.log = known("y", ["linear", "log"], "linear") === "log";
    const size = {width: Number(address.get("width")) || 1200, height: Number(address.get("height")) || 506};
    const host = document.createElement("div");
    document.body.replaceChildren(host);
    document.body.className = "figure";
    Figure.standalone(host, data, view, size, (svg) => {
      const bytes = new TextEncoder().encode(`<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(svg)}\n`);
      let binary = "";
      for (const byte of bytes) binary += String.fromCharCode(byte);
      const text = document.createElement("pre");
      text.id = "figure-base64";
      text.textContent = btoa(binary);
      document.body.replaceChildren(svg, text);
    });
  }

  // ---- the page

  function theme() {
    const wish = byId("theme").value;
    return wish === "auto" ? (systemDark.matches ? "dark" : "light") : wish;
  }

  function nearest(panelIndex, x, y) {
    let best = null, least = 26;
    for (const point of points) {
      if (point.panel !== panelIndex) continue;
      const distance = Math.hypot(point.x - x, point.y - y);
      if (distance < least) { best = point; least = distance; }
    }
    return best;
  }

  function showTip(point, left, top) {
    const tip = byId("tip");
    tip.replaceChildren();
    Detail.tip(data, point.id, view).forEach((line, i) => Detail.html(tip, i === 1 ? "strong" : "div", line));
    tip.hidden = false;
    const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    tip.style.left = `${Math.max(8, Math.min(left + 16, room)) + scrollX}px`;
    tip.style.top = `${top + 18 + scrollY}px`;
  }

  const hideTip = () => { byId("tip").hidden = true; };

  function choose(id) {
    chosen = id;
    for (const point of points) point.node.classList.toggle("chosen", point.id === id);
    Detail.show(byId("detail"), data, id, view);
  }

  function listen(over, panelIndex) {
    const find = (event) => {
      const box = over.getBoundingClientRect();
      return nearest(panelIndex, event.clientX - box.left, event.clientY - box.top);
    };
    over.addEventListener("mousemove", (event) => {
      const point = find(event);
      over.style.cursor = point ? "pointer" : "";
      point ? showTip(point, event.clientX, event.clientY) : hideTip();
    });
    over.addEventListener("mouseleave", hideTip);
    over.addEventListener("click", (event) => { const point = find(event); if (point) choose(point.id); });
  }

  // The keyboard reaches every point.
  function makeReachable(point) {
    const node = point.node;
    node.setAttribute("tabindex", "0");
    node.setAttribute("role", "button");
    node.setAttribute("aria-label", Detail.tip(data, point.id, view).join(". "));
    node.addEventListener("focus", () => { const box = node.getBoundingClientRect(); showTip(point, box.right, box.bottom); });
    node.addEventListener("blur", hideTip);
    node.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(point.id); }
    });
  }

  function drawPanel(cell, index) {
    const width = Math.max(cell.clientWidth, 220);
    let overlay = null;
    const plot = Figure.makePlot(cell, data, view, index, {width, height: 320, yLabels: true}, (u, axis) => {
      if (overlay) overlay.remove();
      points = points.filter((point) => point.panel !== index);
      overlay = Painter.add(u.over, "svg", {class: "overlay"});
      const drawn = Painter.paintPanel(overlay, {index, plot: u, axis, seriesCount: data.series.length}, view, data);
      for (const point of drawn) { point.panel = index; makeReachable(point); }
      points.push(...drawn);
      for (const point of points) point.node.classList.toggle("chosen", point.id === chosen);
      document.body.dataset.drawn = String(points.length);
    });
    listen(plot.over, index);
    return plot;
  }

  function drawLegend() {
    const host = byId("legend");
    host.replaceChildren();
    data.series.forEach((series, index) => {
      const style = Painter.styleOf(series, index, view.theme);
      const entry = Detail.html(host, "span", null, {class: "entry"});
      const svg = Painter.add(entry, "svg", {width: 34, height: 14});
      Painter.add(svg, "path", {d: "M1 7h32", stroke: style.colour, "stroke-width": 2.2, ...(style.second ? {"stroke-dasharray": "6 4"} : {})});
      Painter.marker(svg, style, 17, 7, 4.6, view.theme);
      const none = Painter.hasValues(data, index, view) ? "" : " (has none)";
      Detail.html(entry, "span", Figure.seriesLabel(data, series) + none);
    });
    if (Figure.anySaturated(data)) {
      const entry = Detail.html(host, "span", null, {class: "entry"});
      const svg = Painter.add(entry, "svg", {width: 20, height: 22});
      Painter.saturatedMark(svg, {colour: Painter.THEMES[view.theme].soft, shape: "circle"}, 10, 15, 4.6, view.theme);
      Detail.html(entry, "span", "saturated");
    }
    Detail.html(host, "span", Figure.ratioNote(data, view), {class: "hint"});
  }

  // "1,744", with least and most where there are several runs, and what of it is void.
  function numberCell(data, group) {
    const average = group && group.averages[view.metric][view.stat];
    const voids = group ? group.results.filter((id) => data.results[id].void !== "").length : 0;
    const parts = [];
    if (average && average.n > 1) parts.push(`${Scales.number(average.min)} to ${Scales.number(average.max)}`);
    if (voids > 0) parts.push(`${voids} void`);
    if (group && Painter.isSaturated(data, group)) parts.push("saturated");
    return [average ? Scales.number(average.mean) : "–", parts.join(", ")];
  }

  // A line a grid point, a column a mode.
  function drawNumbers() {
    const metric = Scales.METRICS[view.metric], ratio = Figure.ratioName(data, view);
    const made = document.createElement("div");
    const labels = data.series.map((series) => Figure.seriesLabel(data, series));
    const points = data.panels.flatMap((panel, p) => data.input_lens.map((input) => ({panel, p, input})));
    const groupOf = ({p, input}, s) => data.groups.find((g) => g.panel === p && g.input_len === input && g.series === s);
    const rows = points.map((point) => {
      const at = Painter.ratioAt(data, view, point.p, point.input);
      return [point.panel.qps, point.input, point.panel.output_len, ...data.series.map((_, s) => numberCell(data, groupOf(point, s))[0]),
        ...(ratio ? [at ? Painter.ratioText(at.ratio) : "–"] : [])];
    });
    const node = Detail.table(made, ["req/s", "tokens in", "tokens out", ...labels, ...(ratio ? [ratio] : [])], rows);
    points.forEach((point, i) => data.series.forEach((_, s) => {
      const note = numberCell(data, groupOf(point, s))[1];
      if (note) Detail.html(node.tBodies[0].rows[i].cells[3 + s], "small", ` (${note})`);
    }));
    node.id = "numbers";
    byId("numbers").replaceWith(node);
    byId("numbers-hint").textContent = `${Figure.titleOf(view)}, in ${metric.unit}; in brackets the least and most of the iterations.`;
  }

  function drawVoids() {
    const voids = data.results.filter((result) => result.void !== "");
    byId("voids").hidden = voids.length === 0;
    const made = document.createElement("div");
    const node = Detail.table(made, ["file", "why"], voids.map((result) => [result.file, result.void]));
    node.id = "void-table";
    node.className = "words";
    byId("void-table").replaceWith(node);
  }

  function draw() {
    view.theme = theme();
    document.documentElement.dataset.theme = view.theme;
    hideTip();
    plots.forEach((plot) => plot.destroy());
    points = [];
    byId("title").textContent = Figure.titleOf(view);
    byId("subtitle").textContent = Figure.subtitleOf(data, view);
    byId("emulated").textContent = Figure.emulatedOf(data);
    byId("emulated").hidden = Figure.emulatedOf(data) === "";
    byId("notes").textContent = Figure.notes(data);
    byId("stat").disabled = Boolean(Scales.METRICS[view.metric].one);
    const host = byId("panels");
    host.replaceChildren();
    // All cells first: how wide one is depends on how many there are.
    const cells = data.panels.map((panel) => {
      const cell = Detail.html(host, "div", null, {class: "panel"});
      Detail.html(cell, "h2", Figure.panelTitle(data, panel));
      return cell;
    });
    plots = cells.map(drawPanel);
    drawLegend();
    drawNumbers();
    if (chosen !== null) Detail.show(byId("detail"), data, chosen, view);
  }

  function fillChoice(select, options, value) {
    for (const [key, name] of options) select.appendChild(new Option(name, key, false, key === value));
  }

  function start() {
    fillChoice(byId("metric"), Object.entries(Scales.METRICS).map(([key, m]) => [key, m.short]), view.metric);
    fillChoice(byId("stat"), ["mean", "median", "p90", "p99"].map((s) => [s, s]), view.stat);
    byId("controls").addEventListener("change", () => {
      view.metric = byId("metric").value;
      view.stat = byId("stat").value;
      view.log = new FormData(byId("controls")).get("y") === "log";
      view.sameY = byId("same-y").checked;
      draw();
    });
    systemDark.addEventListener("change", draw);
    let width = innerWidth;
    addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
    drawVoids();
    draw();
    const point = Number.parseInt(address.get("point"), 10);  // a link to one point
    if (point >= 0 && point < data.results.length) choose(point);
  }

  if (address.has("figure")) becomeFigure(); else start();
})();
