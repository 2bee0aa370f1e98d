// What lies behind one point: where its time went, what was busy, and any single request as a time line.
"use strict";

const Detail = (() => {
  const PHASES = [  // of the hand-over, in the order in which they follow each other
    ["register_wait", "register wait", "#e69f00"], ["match", "match", "#d8c600"], ["post", "post", "#d55e00"],
    ["wire", "wire", "#0072b2"], ["detect", "detect", "#cc79a7"], ["first_step", "first step", "#009e73"],
  ];
  const WAITS = [  // what lies before or beside it
    ["queue", "queue at D", "#8c959f"], ["front_end", "front end of P", "#b3a2c7"], ["decode_front_end", "front end of D", "#b3a2c7"],
    ["prefill_queue", "queue at P", "#8c959f"], ["prefill", "prefill at P", "#56b4e9"],
  ];
  // The time to first token, end to end. The hand-over is not in it where P gives that token.
  const WHOLE = [
    ["front_end", "front end", "#b3a2c7"], ["prefill_queue", "queue at P", "#8c959f"], ["prefill", "prefill at P", "#56b4e9"],
    ["total", "hand-over", "#d55e00"], ["first_token", "to the first token", "#94b8a6"],
  ];
  const SPAN_COLOURS = {...Object.fromEntries(PHASES.map(([key, , colour]) => [key, colour])),
    front_end: "#b3a2c7", queue: "#8c959f", prefill: "#56b4e9", decode: "#94b8a6"};
  const SIDES = ["client", "router", "prefill", "decode"];
  const STATS = ["mean", "p50", "p90", "p99"];

  function html(parent, name, text, attributes) {
    const node = document.createElement(name);
    if (text !== undefined && text !== null) node.textContent = text;
    for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
    parent.appendChild(node);
    return node;
  }

  function table(parent, head, rows) {
    const node = html(parent, "table");
    const top = html(html(node, "thead"), "tr");
    head.forEach((cell) => html(top, "th", cell, {scope: "col"}));
    const body = html(node, "tbody");
    for (const row of rows) {
      const line = html(body, "tr");
      row.forEach((cell, i) => html(line, i === 0 ? "th" : "td", cell, i === 0 ? {scope: "row"} : {}));
    }
    return node;
  }

  const mean = (spread) => spread && typeof spread.mean === "number" ? spread.mean : null;
  const meanOf = (result, key) => mean(result.detail.handover && result.detail.handover[key]);
  const split = (result) => PHASES.map(([key, name, colour]) => ({name, colour, ms: meanOf(result, key)}));

  const saturationWords = (arrivals) => !arrivals ? "the queue grew as long as requests came" :
    `${Scales.number(arrivals.offered_per_s)} requests/s offered, ${Scales.number(arrivals.answered_per_s)} answered, ` +
      `${Scales.number(arrivals.open_at_last_arrival)} open at the last arrival`;

  // A few lines for the pointer; the whole is below.
  function tip(data, id, view) {
    const result = data.results[id], group = data.groups[result.group], panel = data.panels[group.panel];
    const detail = result.detail, metric = Scales.METRICS[view.metric];
    const value = result.values[view.metric][view.stat];
    const out = [
      `${Figure.seriesLabel(data, data.series[group.series])} · ${panel.qps} req/s · ${group.input_len} in, ` +
        `${panel.output_len} out · iteration ${result.iteration}`,
      `${metric.short} ${value === null ? "not measured" : `${Scales.number(value)} ${metric.unit}`}`,
    ];
    if (result.void) out.push(`void: ${result.void}`);
    if (result.saturated) out.push(`saturated: ${saturationWords(detail.arrivals)}`);
    const phases = [{name: "queue", ms: meanOf(result, "queue")}, ...split(result)].filter((p) => p.ms !== null);
    if (phases.length) out.push(`hand-over (ms): ${phases.map((p) => `${p.name} ${Scales.number(p.ms)}`).join(", ")}`);
    if (detail.slots) out.push(`slots used: ${Scales.number(detail.slots.max)} at most, ${Scales.number(detail.slots.mean)} on average`);
    if (detail.link) out.push(`link busy: ${Scales.share(detail.link.busy_share)}`);
    if (detail.block_hold) out.push(`P holds blocks: ${Scales.number(mean(detail.block_hold))} ms`);
    if (detail.bytes) out.push(`bytes moved: ${Scales.bytes(detail.bytes.moved)} of ${Scales.bytes(detail.bytes.expected)}`);
    return out;
  }

  // All modes at the same grid point and iteration, one bar each: where they differ is seen at once.
  function siblings(data, id) {
    const result = data.results[id], group = data.groups[result.group];
    return data.groups.filter((g) => g.panel === group.panel && g.input_len === group.input_len)
      .sort((a, b) => a.series - b.series)
      .map((g) => g.results.find((r) => data.results[r].iteration === result.iteration))
      .filter((r) => r !== undefined);
  }

  // What the parts leave of `all` is shown as that, not spread over them.
  function unnamedOf(parts, all) {
    const rest = all - parts.reduce((sum, p) => sum + (p.ms || 0), 0);
    return {name: "in no part", colour: "none", ms: rest > 0.01 * all ? rest : 0};
  }

  // One bar a row: its `pieces` [{name, colour, ms, thin}] beside each other, and its `words` behind them.
  function paintBars(parent, data, id, theme, rows) {
    const colours = Painter.THEMES[theme], left = 190, width = 620, line = 30;
    const scale = width / (Math.max(...rows.map((row) => row.pieces.reduce((sum, p) => sum + (p.ms || 0), 0))) || 1);
    const svg = Painter.add(parent, "svg", {width: left + width + 250, height: rows.length * line + 8, class: "split", role: "img"});
    rows.forEach((row, i) => {
      const result = data.results[row.id], y = i * line + 4;
      const label = Figure.seriesLabel(data, data.series[data.groups[result.group].series]) + (result.void ? " (void)" : "");
      Painter.add(svg, "text", {x: left - 8, y: y + 16, "text-anchor": "end", "font-size": 13, fill: colours.text,
        "font-weight": row.id === id ? 700 : 400, "font-family": Painter.FONT}, label);
      let x = left;
      for (const piece of row.pieces) {
        const wide = (piece.ms || 0) * scale;
        if (wide <= 0) continue;
        const bar = Painter.add(svg, "rect", {class: "phase", x, y: y + (piece.thin ? 7 : 0), width: wide, height: piece.thin ? 8 : 22,
          fill: piece.colour, ...(piece.colour === "none" ? {stroke: colours.soft, "stroke-dasharray": "3 3"} : {})});
        Painter.add(bar, "title", {}, `${piece.name}: ${Scales.number(piece.ms)} ms`);
        x += wide;
      }
      Painter.add(svg, "text", {x: x + 6, y: y + 16, "font-size": 12, fill: colours.soft, "font-family": Painter.FONT}, row.words);
    });
  }

  function colourKey(parent, parts) {
    const key = html(parent, "p", null, {class: "key"});
    for (const [, name, colour] of parts) {
      html(key, "span", "", {class: "swatch"}).style.background = colour;
      html(key, "span", name);
    }
  }

  const inNoPart = (unnamed) => unnamed.ms ? `, of it ${Scales.number(unnamed.ms)} in no part` : "";

  function paintSplit(parent, data, id, theme) {
    const shown = siblings(data, id).filter((r) => split(data.results[r]).some((p) => p.ms !== null));
    if (shown.length === 0) { html(parent, "p", "This mode has no hand-over, or the file has no split of it.", {class: "hint"}); return; }
    paintBars(parent, data, id, theme, shown.map((r) => {
      const result = data.results[r], parts = split(result), queue = meanOf(result, "queue") || 0;
      const all = Math.max(parts.reduce((sum, p) => sum + (p.ms || 0), 0), meanOf(result, "total") || 0);
      const unnamed = unnamedOf(parts, all);
      // The queue is drawn thin: it may lie beside P's computing, and is not part of the hand-over's total.
      return {id: r, pieces: [{name: "queue at D", colour: WAITS[0][2], ms: queue, thin: true}, ...parts, unnamed],
        words: `${Scales.number(all)} ms${inNoPart(unnamed)}, queue ${Scales.number(queue)} ms`};
    }));
    colourKey(parent, [WAITS[0], ...PHASES]);
    html(parent, "p", "post: from the first write or read to the last; wire: what is left until D has the last byte, which is the link " +
      "and the waiting for it.", {class: "hint"});
  }

  // Of those whose servers told of it: results of local, and older ones, say nothing of the way in and out.
  function paintWhole(parent, data, id, theme) {
    const shown = siblings(data, id).filter((r) => meanOf(data.results[r], "front_end") !== null && mean(data.results[r].detail.ttft) !== null);
    if (shown.length === 0) { html(parent, "p", "The file has no parts of it.", {class: "hint"}); return; }
    paintBars(parent, data, id, theme, shown.map((r) => {
      const result = data.results[r], all = mean(result.detail.ttft);
      const byPrefill = data.sources[data.series[data.groups[result.group].series].source].first_token === "prefill";
      const parts = WHOLE.filter(([key]) => !(byPrefill && key === "total"))
        .map(([key, name, colour]) => ({name, colour, ms: meanOf(result, key)}));
      const unnamed = unnamedOf(parts, all);
      return {id: r, pieces: [...parts, unnamed], words: `${Scales.number(all)} ms${inNoPart(unnamed)}`};
    }));
    colourKey(parent, WHOLE);
    html(parent, "p", "front end: sent by the client until it is in P's engine; to the first token: D's step, or P's where P gives the token, " +
      "and its way to the client.", {class: "hint"});
  }

  function spreadRow(name, spread) {
    return [name, ...STATS.map((s) => Scales.number(spread && spread[s]))];
  }

  function latencies(parent, result) {
    const d = result.detail;
    const rows = [["TTFT", d.ttft], ["TPOT", d.tpot], ["ITL", d.itl], ["E2EL", d.e2el], ["second token", d.second_token],
      ...WAITS.map(([key, name]) => [name, d.handover && d.handover[key]]),
      ...PHASES.map(([key, name]) => [`hand-over: ${name}`, d.handover && d.handover[key]]),
      ["hand-over: total", d.handover && d.handover.total], ["to the first token", d.handover && d.handover.first_token], ["P holds blocks", d.block_hold]];
    table(parent, ["ms", ...STATS], rows.filter(([, spread]) => spread).map(([name, spread]) => spreadRow(name, spread)));
  }

  function resources(parent, result) {
    const d = result.detail, n = Scales.number, rows = [];
    rows.push(["requests", `${n(d.completed)} completed, ${n(d.failed)} failed, in ${n(d.duration)} s`]);
    if (d.slots) rows.push(["decode slots used", `${n(d.slots.max)} at most, mean ${n(d.slots.mean)}, p99 ${n(d.slots.p99)}`]);
    if (d.link) {
      const rate = d.link.rate_bytes_per_s;
      rows.push(["link", `${Scales.share(d.link.busy_share)} busy` + (rate ? `, limited to ${Scales.bytes(rate)}/s` : ", not limited")]);
    }
    if (d.compute) rows.push(["compute busy", `prefill ${Scales.share(d.compute.prefill_busy_share)}, decode ${Scales.share(d.compute.decode_busy_share)}`]);
    for (const [side, pool] of Object.entries(d.kv_pool || {})) {
      if (pool) rows.push([`KV pool of ${side}`, `${n(pool.most_used)} of ${n(pool.blocks)} blocks at most${pool.full ? ": full" : ""}`]);
    }
    if (d.machine) rows.push(["this machine's cores", `${Scales.share(d.machine.cpu_busy_share)} busy`]);
    if (d.bytes) rows.push(["bytes", `${n(d.bytes.moved)} moved, ${n(d.bytes.expected)} expected`]);
    if (d.writes) rows.push(["writes", `${n(d.writes)} (${n(d.runs)} contiguous runs)`]);
    for (const [cause, count] of Object.entries(d.failures || {})) rows.push([`failed: ${cause}`, n(count)]);
    if (d.slo) rows.push(["SLO", Scales.slo(d.slo)]);
    rows.push(["file", result.file]);
    table(parent, ["resource", ""], rows).className = "words";
  }

  function environment(parent, result) {
    const entries = Object.entries(result.detail.environment || {});
    if (entries.length === 0) return;
    const box = html(parent, "details");
    html(box, "summary", "Environment");
    table(box, ["", ""], entries).className = "words";
  }

  // ---- one request

  function paintTimeline(parent, request, theme) {
    parent.replaceChildren();
    if (request.error !== null) html(parent, "p", `failed: ${request.error}`, {class: "void-reason"});
    const spans = request.spans;
    if (spans.length === 0) { html(parent, "p", "No spans were recorded of this request.", {class: "hint"}); return; }
    const colours = Painter.THEMES[theme], left = 70, width = 800, line = 20;
    const start = Math.min(...spans.map((s) => s[2]));
    const end = Math.max(...spans.map((s) => s[3] === null ? s[2] : s[3]), start + 0.001);
    const at = (ms) => left + (ms - start) / (end - start) * width;
    const rows = SIDES.flatMap((side) => spans.filter((s) => s[0] === side).sort((a, b) => a[2] - b[2]));
    const svg = Painter.add(parent, "svg", {width: left + width + 150, height: rows.length * line + 34, class: "timeline", role: "img"});
    const ticks = Scales.yAxis([(end - start) / 1.1], false).ticks;
    for (const tick of ticks) {
      Painter.add(svg, "path", {d: `M${at(start + tick)} 0V${rows.length * line + 6}`, stroke: colours.grid});
      Painter.add(svg, "text", {x: at(start + tick), y: rows.length * line + 20, "font-size": 11, "text-anchor": "middle",
        fill: colours.soft, "font-family": Painter.FONT}, `${Scales.number(tick)} ms`);
    }
    rows.forEach((span, i) => {
      const [side, name, from, ended] = span, y = i * line + 3;
      const to = ended === null ? end : ended, length = ended === null ? "never ended" : `${Scales.number(to - from)} ms`;
      if (i === 0 || rows[i - 1][0] !== side) {
        Painter.add(svg, "text", {x: 0, y: y + 12, "font-size": 12, "font-weight": 700, fill: colours.text, "font-family": Painter.FONT}, side);
      }
      const bar = Painter.add(svg, "rect", {class: "span", x: at(from), y, width: Math.max(at(to) - at(from), 1.5), height: line - 6,
        fill: Object.hasOwn(SPAN_COLOURS, name) ? SPAN_COLOURS[name] : colours.soft});
      Painter.add(bar, "title", {}, `${side} ${name}: from ${Scales.number(from)} to ${Scales.number(ended)} ms of the run`);
      Painter.add(svg, "text", {x: at(to) + 5, y: y + 12, "font-size": 11, fill: colours.soft, "font-family": Painter.FONT},
        `${name} ${length}`);
    });
  }

  function requests(parent, data, id, theme) {
    const list = JSON.parse(document.getElementById(`requests-${id}`).textContent);
    html(parent, "h3", "Single requests");
    if (list.length === 0) { html(parent, "p", "The file has no single requests.", {class: "hint"}); return; }
    const all = data.results[id].detail.requests;
    html(parent, "p", `${list.length} of ${all}, failed ones first, then by TTFT. Choose one to see its time line.`, {class: "hint"});
    const frame = html(parent, "div", null, {class: "requests"});
    const node = table(frame, ["request", "arrives (ms)", "TTFT (ms)", "second token (ms)", "TPOT (ms)", "E2EL (ms)", "error"],
      list.map((r) => [r.id, Scales.number(r.arrival), Scales.number(r.ttft), Scales.number(r.second), Scales.number(r.tpot),
        Scales.number(r.e2el), r.error || ""]));
    const line = html(parent, "div", null, {class: "wide", id: "timeline"});
    const rows = [...node.tBodies[0].rows];
    const choose = (i) => {
      rows.forEach((row, j) => row.classList.toggle("chosen", i === j));
      paintTimeline(line, list[i], theme);
    };
    rows.forEach((row, i) => {
      row.tabIndex = 0;
      row.addEventListener("click", () => choose(i));
      row.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(i); } });
    });
    choose(list.length - 1);
    rows[list.length - 1].scrollIntoView && (frame.scrollTop = frame.scrollHeight);  // the slowest
  }

  function show(host, data, id, view) {
    host.replaceChildren();
    const result = data.results[id], group = data.groups[result.group], panel = data.panels[group.panel];
    html(host, "h2", `${Figure.seriesLabel(data, data.series[group.series])}: ${panel.qps} req/s, ${group.input_len} tokens in, ` +
      `${panel.output_len} out, iteration ${result.iteration}`);
    const emulated = data.sources[data.series[group.series].source].emulated;
    if (emulated) html(host, "p", emulated, {class: "emulated"});
    if (result.void) html(host, "p", `Void: ${result.void}`, {class: "void-reason"});
    if (result.saturated) html(host, "p", `Saturated: ${saturationWords(result.detail.arrivals)}`, {class: "hint"});
    html(host, "h3", "Time to first token, mean of each part; all modes at this point");
    paintWhole(html(host, "div", null, {class: "wide"}), data, id, view.theme);
    html(host, "h3", "Hand-over, mean of each part; all modes at this point");
    paintSplit(html(host, "div", null, {class: "wide"}), data, id, view.theme);
    const two = html(host, "div", null, {class: "two"});
    latencies(html(two, "div"), result);
    resources(html(two, "div"), result);
    environment(host, result);
    requests(host, data, id, view.theme);
  }

  return {tip, show, html, table};
})();
