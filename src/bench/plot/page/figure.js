// Panels on uPlot's scales, and the whole figure as one SVG for a file.
"use strict";

const Figure = (() => {
  // All that a y axis must hold: averages, their whiskers, and void points.
  function valuesOf(data, view, panelIndex) {
    const out = [];
    for (const group of data.groups) {
      if (panelIndex !== null && group.panel !== panelIndex) continue;
      for (const id of group.results) {
        const value = data.results[id].values[view.metric][view.stat];
        if (value !== null) out.push(value);
      }
    }
    return out;
  }

  const axisOf = (data, view, panelIndex) =>
    Scales.yAxis(valuesOf(data, view, view.sameY ? null : panelIndex), view.log);

  function metricLabel(view) {
    const metric = Scales.METRICS[view.metric];
    return `${metric.short}${metric.one ? "" : `, ${view.stat}`} (${metric.unit}${view.log ? ", log" : ""})`;
  }

  function titleOf(view) {
    const metric = Scales.METRICS[view.metric];
    const short = metric.title.toLowerCase().includes(metric.short.toLowerCase()) ? "" : ` (${metric.short})`;
    return `${metric.title}${short}${metric.one ? "" : `, ${view.stat}`}`;
  }

  function panelTitle(data, panel) {
    const many = new Set(data.panels.map((p) => p.output_len)).size > 1;
    return `${panel.qps} req/s${many ? `, ${panel.output_len} tokens out` : ""}`;
  }

  const seriesLabel = (data, series) =>
    data.sources.length > 1 ? `${series.mode} (${data.sources[series.source].label})` : series.mode;

  // What goodput was measured against.
  function sloOf(data) {
    const slos = new Set(data.results.map((r) => Scales.slo(r.detail.slo || {})));
    return slos.size > 1 ? "SLOs differ from point to point" : `SLO ${[...slos][0] || "not named"}`;
  }

  // One sentence on how all of it was run.
  function subtitleOf(data, view) {
    const outputs = [...new Set(data.panels.map((p) => p.output_len))];
    const iterations = Math.max(...data.groups.map((g) => g.results.length));
    const settings = data.sources.map((s) => [s.first_token && `first token by ${s.first_token}`, s.prefill && `${s.prefill} prefill`,
      s.variant].filter(Boolean).join(", "));
    const parts = [`${outputs.join(", ")} tokens out`];
    if (settings.every((s) => s === settings[0])) { if (settings[0]) parts.push(settings[0]); }
    else data.sources.forEach((s, i) => { if (settings[i]) parts.push(`${s.label}: ${settings[i]}`); });
    for (const [name, ...values] of data.unlike) parts.push(`${name} ${values.map((v, i) => `${v} (${data.sources[i].label})`).join(", ")}`);
    parts.push(iterations > 1 ? `mean of ${iterations} iterations, whiskers from least to most` : "one run a point");
    if (Scales.METRICS[view.metric].one) parts.push(sloOf(data));
    return parts.join(" · ");
  }

  // "" where nothing is emulated. Which folder is, where they differ.
  function emulatedOf(data) {
    const labels = data.sources.map((s) => s.emulated);
    if (labels.every((l) => l === labels[0])) return labels[0];
    return data.sources.map((s) => `${s.label}: ${s.emulated || "as run"}`).join(" · ");
  }

  // "engine-loop-pull / push", or "" where no two lines are measured against each other.
  function ratioName(data, view) {
    const pair = Painter.ratioPair(data);
    if (!pair || ![pair.ours, pair.theirs].every((i) => Painter.hasValues(data, i, view))) return "";
    let [over, under] = [pair.theirs, pair.ours];
    if (Scales.METRICS[view.metric].up) [over, under] = [under, over];
    const name = (i) => seriesLabel(data, data.series[i]);
    return `${name(over)} / ${name(under)}`;
  }

  function ratioNote(data, view) {
    const name = ratioName(data, view);
    const unless = anySaturated(data) ? " where neither is saturated" : "";
    return name === "" ? "" : `n× = ${name} at the longest input${unless}`;
  }

  const anySaturated = (data) => data.results.some((r) => r.void === "" && r.saturated);

  // What the open marks are.
  function saturatedNote(data) {
    const count = data.results.filter((r) => r.void === "" && r.saturated).length;
    return count === 0 ? "" : `open mark with an arrow: saturated, the queue grew as long as requests came, in no ratio: ${count} of ` +
      `${data.results.length} results`;
  }

  // A point without a limit of slots may have met that of the pool instead.
  function poolNote(data) {
    const full = data.results.filter((r) => r.void === "" && Object.values(r.detail.kv_pool || {}).some((p) => p && p.full)).length;
    return full === 0 ? "" : `the KV pool of P or D was full in ${full} of ${data.results.length} results`;
  }

  const notes = (data) => [saturatedNote(data), poolNote(data), voidNote(data)].filter((note) => note !== "").join(" · ");

  function voidNote(data) {
    const voids = data.results.filter((r) => r.void !== "");
    if (voids.length === 0) return "";
    const reasons = [...new Set(voids.map((r) => r.void))];
    return `× void, in no average: ${voids.length} of ${data.results.length} results (${reasons.slice(0, 2).join("; ")}` +
      `${reasons.length > 2 ? "; ..." : ""})`;
  }

  // uPlot owns scales, axes and the cursor that all panels share; the data is Painter's.
  function makePlot(host, data, view, index, size, onDraw) {
    const axis = axisOf(data, view, index);
    const colours = Painter.THEMES[view.theme];
    const font = `12px ${Painter.FONT}`;
    const common = {stroke: colours.soft, font, grid: {stroke: colours.grid, width: 1},
      ticks: {stroke: colours.axis, width: 1, size: 4}, filter: (u, splits) => splits};
    const ofSeries = data.series.map((_, s) => data.input_lens.map((input) => {
      const group = data.groups.find((g) => g.panel === index && g.series === s && g.input_len === input);
      const average = group && group.averages[view.metric][view.stat];
      return average ? Math.min(Math.max(average.mean, axis.min), axis.max) : null;
    }));
    // uPlot swallows a click whose pointer moved since it was pressed; nothing is dragged here.
    const drag = {x: false, y: false, click: () => {}};
    return new uPlot({
      width: size.width, height: size.height, legend: {show: false}, padding: [8, 8, 0, 0],
      cursor: {y: false, points: {show: false}, drag, sync: {key: "panels"}},
      scales: {
        x: {time: false, distr: 3, log: 2, range: () => Scales.xRange(data.input_lens)},
        y: {distr: axis.log ? 3 : 1, log: 10, range: () => [axis.min, axis.max]},
      },
      axes: [
        {...common, size: 30, gap: 4, ...(size.yLabels ? {label: "input length (tokens)", labelFont: font, labelSize: 20} : {}), splits: () => data.input_lens, values: (u, splits) => splits.map(Scales.tokens)},
        {...common, size: size.yLabels ? 54 : 8, gap: 4, ...(size.yLabels ? {label: metricLabel(view), labelFont: font, labelSize: 18} : {}), splits: () => axis.ticks,
          values: (u, splits) => splits.map((v) => size.yLabels ? Scales.number(v) : "")},
      ],
      series: [{}, ...data.series.map(() => ({scale: "y", paths: () => null, points: {show: false}}))],
      hooks: {draw: [(u) => onDraw(u, axis)]},
    }, [data.input_lens, ...ofSeries], host);
  }

  // ---- the figure as a file

  const measure = (() => {
    const context = document.createElement("canvas").getContext("2d");
    return (text, font) => { context.font = font; return context.measureText(text).width; };
  })();

  function shortened(text, width, font) {
    if (measure(text, font) <= width) return text;
    while (text.length > 1 && measure(text + "...", font) > width) text = [...text].slice(0, -1).join("");
    return text + "...";
  }

  function text(parent, x, y, size, fill, value, more) {
    return Painter.add(parent, "text", {x, y, "font-size": size, fill, "font-family": Painter.FONT, ...more}, value);
  }

  // A row holds five, whatever their names; a sixth needs a second row (figures.cc makes room for it).
  const LEGEND_COLUMNS = 5, LEGEND_ROW = 22, LABEL_WIDTH = 172;

  function paintLegend(svg, data, view, left, top) {
    let x = left, y = top, n = 0;
    const colours = Painter.THEMES[view.theme];
    data.series.forEach((series, index) => {
      if (!Painter.hasValues(data, index, view)) return;
      if (n > 0 && n % LEGEND_COLUMNS === 0) { x = left; y += LEGEND_ROW; }
      ++n;
      const style = Painter.styleOf(series, index, view.theme);
      const label = shortened(seriesLabel(data, series), LABEL_WIDTH, `13px ${Painter.FONT}`);
      Painter.add(svg, "path", {d: `M${x} ${y - 4}h30`, stroke: style.colour, "stroke-width": 2.2, fill: "none",
        ...(style.second ? {"stroke-dasharray": "6 4"} : {})});
      Painter.marker(svg, style, x + 15, y - 4, 4.6, view.theme);
      text(svg, x + 36, y, 13, colours.text, label);
      x += 36 + measure(label, `13px ${Painter.FONT}`) + 22;
    });
    if (!anySaturated(data)) return;
    // Beside the last name, also where that is the row's fifth.
    Painter.saturatedMark(svg, {colour: colours.soft, shape: "circle"}, x + 15, y - 4, 4.6, view.theme);
    text(svg, x + 36, y, 13, colours.text, "saturated");
  }

  function paintAxes(group, plot, axis, data, view, yLabels) {
    const colours = Painter.THEMES[view.theme];
    const width = plot.over.clientWidth, height = plot.over.clientHeight;
    for (const input of data.input_lens) {
      const x = plot.valToPos(input, "x");
      Painter.add(group, "path", {d: `M${x} 0V${height}`, stroke: colours.grid, "stroke-width": 1});
      text(group, x, height + 18, 12, colours.soft, Scales.tokens(input), {"text-anchor": "middle"});
    }
    for (const tick of axis.ticks) {
      const y = plot.valToPos(tick, "y");
      Painter.add(group, "path", {d: `M0 ${y}H${width}`, stroke: colours.grid, "stroke-width": 1});
      if (yLabels) text(group, -8, y + 4, 12, colours.soft, Scales.number(tick), {"text-anchor": "end"});
    }
    Painter.add(group, "path", {d: `M0 0V${height}H${width}`, stroke: colours.axis, "stroke-width": 1, fill: "none"});
    text(group, width / 2, height + 36, 12, colours.soft, "input length (tokens)", {"text-anchor": "middle"});
  }

  function paintHead(svg, data, view, size) {
    const colours = Painter.THEMES[view.theme];
    Painter.add(svg, "rect", {width: size.width, height: size.height, fill: colours.page});
    text(svg, 20, 34, 21, colours.text, titleOf(view), {"font-weight": 700});
    const room = size.width - 40;
    text(svg, 20, 57, 13, colours.soft, shortened(subtitleOf(data, view), room, `13px ${Painter.FONT}`));
    const emulated = emulatedOf(data);
    if (emulated) {
      text(svg, 20, 78, 13, colours.badge, shortened(emulated, room, `bold 13px ${Painter.FONT}`), {"font-weight": 700});
    }
    paintLegend(svg, data, view, 20, emulated ? 108 : 92);
    const small = `12px ${Painter.FONT}`, ratio = shortened(ratioNote(data, view), room / 2, small);
    text(svg, size.width - 20, size.height - 14, 12, colours.soft, ratio, {"text-anchor": "end"});
    text(svg, 20, size.height - 14, 12, colours.soft, shortened(notes(data), room - measure(ratio, small) - 30, small));
  }

  const HEAD = 132, ROW = 340, COLUMNS = 4, TITLE = 22, UNDER = 44, Y_AXIS = 76;

  // Draws with uPlot in `host`, which is thrown away by the caller, and answers the SVG once every panel has its scales.
  function standalone(host, data, view, size, done) {
    const columns = Math.min(COLUMNS, data.panels.length);
    const head = HEAD + (Math.ceil(data.series.length / LEGEND_COLUMNS) - 1) * LEGEND_ROW;
    const gap = 16;
    const plotWidth = Math.min(560, (size.width - Y_AXIS - 20 - gap * (columns - 1)) / columns);
    const plotHeight = ROW - TITLE - UNDER - 16;
    const svg = Painter.element("svg", {xmlns: "http://www.w3.org/2000/svg", id: "figure", width: size.width,
      height: size.height, viewBox: `0 0 ${size.width} ${size.height}`, role: "img"});
    Painter.add(svg, "title", {}, `${titleOf(view)}. ${emulatedOf(data)}`);
    paintHead(svg, data, view, size);
    let left = data.panels.length;
    data.panels.forEach((panel, index) => {
      const column = index % columns, row = Math.floor(index / columns);
      const cell = document.createElement("div");
      host.appendChild(cell);
      const x = Y_AXIS + column * (plotWidth + gap), y = head + row * ROW + TITLE;
      // uPlot's own axes are not looked at: what counts is that its plotting area has this size.
      const wish = {width: plotWidth + 8 + 8, height: plotHeight + 30 + 8, yLabels: false};
      makePlot(cell, data, view, index, wish, (plot, axis) => {
        const group = Painter.add(svg, "g", {class: "panel", transform: `translate(${x} ${y})`});
        const colours = Painter.THEMES[view.theme];
        text(group, 0, -9, 14, colours.text, panelTitle(data, panel), {"font-weight": 700});
        const yLabels = column === 0 || !view.sameY;
        paintAxes(group, plot, axis, data, view, yLabels);
        if (column === 0) {
          text(group, 0, 0, 12, colours.soft, metricLabel(view),
            {"text-anchor": "middle", transform: `translate(-58 ${plotHeight / 2}) rotate(-90)`});
        }
        Painter.paintPanel(group, {index, plot, axis, seriesCount: data.series.length}, view, data);
        if (--left === 0) done(svg);
      });
    });
  }

  return {axisOf, makePlot, standalone, titleOf, subtitleOf, emulatedOf, panelTitle, seriesLabel, metricLabel, ratioName, ratioNote,
          anySaturated, notes};
})();
