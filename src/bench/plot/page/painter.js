// Draws the data of one panel as SVG: lines, whiskers, points. One painter serves the screen, where it draws over
// uPlot's axes, and the figure's file, where it draws the axes, too. All text is set as text, never as markup.
"use strict";

const Painter = (() => {
  const NS = "http://www.w3.org/2000/svg";

  // After Okabe and Ito: told apart with every common kind of colour blindness; each mode has a shape of its own as well.
  // Warm colours pull, cool ones push.
  const THEMES = {
    light: {
      page: "#ffffff", text: "#1b1f24", soft: "#57606a", grid: "#e4e7eb", axis: "#8c959f", badge: "#8a3b00",
      modes: {"push": "#0072b2", "published-push": "#009e73", "published-push-merged": "#44aa99",
              "engine-loop-pull": "#d55e00", "engine-loop-pull-merged": "#e69f00", "pull": "#d55e00",
              "threaded-pull": "#aa4499", "local": "#6b7280"},
      others: ["#332288", "#882255", "#117733", "#999933"],
    },
    dark: {
      page: "#0f141a", text: "#e6edf3", soft: "#9aa5b1", grid: "#252c35", axis: "#6e7781", badge: "#ffb37a",
      modes: {"push": "#56b4e9", "published-push": "#2fc99a", "published-push-merged": "#9be8d3",
              "engine-loop-pull": "#ff8a3d", "engine-loop-pull-merged": "#ffc857", "pull": "#ff8a3d",
              "threaded-pull": "#e39bd3", "local": "#a8b0ba"},
      others: ["#9d8cff", "#ff8fb3", "#66c97f", "#d6d66b"],
    },
  };
  const SHAPES = {"push": "circle", "published-push": "diamond", "published-push-merged": "diamond",
                  "engine-loop-pull": "square", "engine-loop-pull-merged": "square", "pull": "square",
                  "threaded-pull": "triangle", "local": "bar"};
  const FONT = "Inter, 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif";

  function element(name, attributes, text) {
    const node = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  }

  function add(parent, name, attributes, text) {
    const node = element(name, attributes, text);
    parent.appendChild(node);
    return node;
  }

  function styleOf(series, index, theme) {
    const colours = THEMES[theme];
    const own = Object.hasOwn(colours.modes, series.mode);
    return {
      colour: own ? colours.modes[series.mode] : colours.others[index % colours.others.length],
      shape: own ? SHAPES[series.mode] : ["circle", "square", "triangle", "diamond"][index % 4],
      second: series.source > 0,  // of the folder compared with: dashed and hollow
    };
  }

  function markerPath(shape, x, y, r) {
    switch (shape) {
      case "square": return `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`;
      case "diamond": return `M${x} ${y - r * 1.3}L${x + r * 1.3} ${y}L${x} ${y + r * 1.3}L${x - r * 1.3} ${y}z`;
      case "triangle": return `M${x} ${y - r * 1.25}L${x + r * 1.2} ${y + r * 0.9}L${x - r * 1.2} ${y + r * 0.9}z`;
      case "bar": return `M${x - r * 1.3} ${y - r * 0.45}h${2.6 * r}v${0.9 * r}h${-2.6 * r}z`;
      default: return `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`;
    }
  }

  function marker(parent, style, x, y, r, theme, attributes) {
    return add(parent, "path", {
      d: markerPath(style.shape, x, y, r),
      fill: style.second ? THEMES[theme].page : style.colour,
      stroke: style.second ? style.colour : THEMES[theme].page,
      "stroke-width": style.second ? 2 : 1.2, ...attributes,
    });
  }

  // Open, with an arrow up: the value is what the queue had grown to when the run ended, and more requests raise it.
  function saturatedMark(parent, style, x, y, r, theme, attributes) {
    add(parent, "path", {d: `M${x} ${y - r - 1}v-7m-3 3l3 -3l3 3`, fill: "none", stroke: style.colour, "stroke-width": 1.4});
    return marker(parent, style, x, y, r, theme, {fill: THEMES[theme].page, stroke: style.colour, "stroke-width": 2, ...attributes});
  }

  // With a rim in the page's colour, so that it stands out from the lines that it lies upon.
  function cross(parent, style, x, y, theme, attributes) {
    const r = 5;
    const d = `M${x - r} ${y - r}L${x + r} ${y + r}M${x - r} ${y + r}L${x + r} ${y - r}`;
    add(parent, "path", {d, fill: "none", stroke: THEMES[theme].page, "stroke-width": 5, "stroke-linecap": "round"});
    return add(parent, "path", {d, fill: "none", stroke: style.colour, "stroke-width": 2.2, "stroke-linecap": "round", ...attributes});
  }

  // Unlike modes at one input length stand beside each other by a little, so that equal values stay visible.
  const dodge = (index, count) => (index - (count - 1) / 2) * Math.min(4, 20 / count);

  // {x, y} of a value in the panel's plotting area. What an axis cannot show (zero on a log axis) lies on its edge.
  function place(panel, seriesIndex, input, value) {
    const {plot, axis, seriesCount} = panel;
    const shown = Math.min(Math.max(value, axis.min), axis.max);
    return {x: plot.valToPos(input, "x") + dodge(seriesIndex, seriesCount), y: plot.valToPos(shown, "y")};
  }

  function paintWhisker(parent, panel, index, group, average, style) {
    if (average.n < 2) return;
    const low = place(panel, index, group.input_len, average.min);
    const high = place(panel, index, group.input_len, average.max);
    add(parent, "path", {
      class: "whisker", d: `M${low.x - 4} ${low.y}h8M${low.x} ${low.y}V${high.y}M${high.x - 4} ${high.y}h8`,
      fill: "none", stroke: style.colour, "stroke-width": 1.4,
    });
  }

  // The line is broken where a point does not count: nothing is known between its neighbours.
  function paintLine(parent, panel, index, groups, view, style) {
    let path = "", pen = false;
    for (const group of groups) {
      const average = group.averages[view.metric][view.stat];
      if (!average) { pen = false; continue; }
      const at = place(panel, index, group.input_len, average.mean);
      path += `${pen ? "L" : "M"}${at.x} ${at.y}`;
      pen = true;
    }
    if (!path) return;
    add(parent, "path", {class: "line", d: path, fill: "none", stroke: style.colour, "stroke-width": 2.2,
      "stroke-linejoin": "round", ...(style.second ? {"stroke-dasharray": "6 4"} : {})});
  }

  // Each result is one element of class "result". Answers [{id, x, y, node}].
  function paintResults(parent, panel, index, group, view, style, data) {
    const out = [];
    const average = group.averages[view.metric][view.stat];
    if (average && average.n > 1) {
      const at = place(panel, index, group.input_len, average.mean);
      const mark = isSaturated(data, group) ? saturatedMark : marker;
      mark(parent, style, at.x, at.y, 4.6, view.theme, {class: "average"});
    }
    for (const id of group.results) {
      const result = data.results[id];
      const value = result.values[view.metric][view.stat];
      const at = place(panel, index, group.input_len, value === null ? panel.axis.min : value);
      const isVoid = result.void !== "" || value === null;
      const kind = isVoid ? " void" : result.saturated ? " saturated" : "";
      const attributes = {class: `result${kind}`, "data-result": id};
      const node = isVoid ? cross(parent, style, at.x, at.y, view.theme, attributes)
        : average.n > 1 ? add(parent, "circle", {cx: at.x, cy: at.y, r: 2, fill: style.colour, "fill-opacity": 0.55, ...attributes})
        : (result.saturated ? saturatedMark : marker)(parent, style, at.x, at.y, 4.6, view.theme, attributes);
      out.push({id, x: at.x, y: at.y, node});
    }
    return out;
  }

  // Of the results that count, any is.
  const isSaturated = (data, group) => group.results.some((id) => data.results[id].void === "" && data.results[id].saturated);

  // {ours, theirs, ratio} at one input of a panel; null where one of the two does not count, is zero, or is saturated: how
  // far a queue grows is a matter of how long requests come.
  function ratioAt(data, view, panelIndex, input) {
    const pair = ratioPair(data);
    if (!pair) return null;
    const value = (series) => {
      const group = data.groups.find((g) => g.panel === panelIndex && g.series === series && g.input_len === input);
      const average = group && group.averages[view.metric][view.stat];
      return average && !isSaturated(data, group) ? average.mean : 0;
    };
    const ours = value(pair.ours), theirs = value(pair.theirs);
    if (!(ours > 0) || !(theirs > 0)) return null;
    return {ours, theirs, ratio: Scales.METRICS[view.metric].up ? ours / theirs : theirs / ours};
  }

  const ratioText = (ratio) => `${ratio.toFixed(ratio < 10 ? 1 : 0)}×`;

  // "3.2×", at the longest input that both of the chosen lines have.
  function paintRatio(parent, panel, view, data) {
    const input = [...data.input_lens].reverse().find((n) => ratioAt(data, view, panel.index, n));
    if (input === undefined) return;
    const {ours, theirs, ratio} = ratioAt(data, view, panel.index, input);
    const low = place(panel, 0, input, ours), high = place(panel, 0, input, theirs);
    const x = panel.plot.valToPos(input, "x") + 17;
    const colours = THEMES[view.theme];
    if (Math.abs(low.y - high.y) > 8) {
      add(parent, "path", {d: `M${x - 4} ${low.y}h4V${high.y}h-4`, fill: "none", stroke: colours.soft, "stroke-width": 1.2});
    }
    add(parent, "text", {class: "ratio", x: x + 5, y: (low.y + high.y) / 2 + 5, fill: colours.text, "font-size": 15,
      "font-weight": 700, "font-family": FONT}, ratioText(ratio));
  }

  // Which two lines are measured against each other: the published pull and Baton's push; of two folders with one mode,
  // the folders.
  function ratioPair(data) {
    const find = (mode, source) => data.series.findIndex((s) => s.mode === mode && s.source === source);
    const ours = find("push", 0);
    for (const mode of ["engine-loop-pull", "engine-loop-pull-merged", "pull", "threaded-pull"]) {
      if (ours >= 0 && find(mode, 0) >= 0) return {ours, theirs: find(mode, 0)};
    }
    if (data.series.length !== 2) return null;
    return {ours: 0, theirs: 1};
  }

  // `panel`: {index, plot, axis, seriesCount}; `view`: {metric, stat, theme}.
  function paintPanel(parent, panel, view, data) {
    const points = [];
    const ofPanel = data.groups.filter((g) => g.panel === panel.index);
    const bySeries = data.series.map((_, index) =>
      ofPanel.filter((g) => g.series === index).sort((a, b) => a.input_len - b.input_len));
    const styles = data.series.map((series, index) => styleOf(series, index, view.theme));
    const shown = data.series.map((_, index) => hasValues(data, index, view));
    bySeries.forEach((groups, i) => { if (shown[i]) paintLine(parent, panel, i, groups, view, styles[i]); });
    bySeries.forEach((groups, i) => {
      if (!shown[i]) return;
      for (const group of groups) {
        const average = group.averages[view.metric][view.stat];
        if (average) paintWhisker(parent, panel, i, group, average, styles[i]);
        points.push(...paintResults(parent, panel, i, group, view, styles[i], data));
      }
    });
    paintRatio(parent, panel, view, data);
    return points;
  }

  // A mode without any value of a metric (local has no hand-over) is left out of its figure.
  function hasValues(data, seriesIndex, view) {
    return data.groups.some((g) => g.series === seriesIndex &&
      g.results.some((id) => data.results[id].values[view.metric][view.stat] !== null));
  }

  return {THEMES, FONT, element, add, styleOf, marker, saturatedMark, cross, isSaturated, paintPanel, ratioPair, ratioAt, ratioText, hasValues};
})();
