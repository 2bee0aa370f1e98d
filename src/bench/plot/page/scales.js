// Axes and numbers as text: what is needed of the data to place a value, and to name it.
"use strict";

const Scales = (() => {
  const METRICS = {
    "ttft": {title: "Time to first token", short: "TTFT", unit: "ms"},
    "tpot": {title: "Time per output token", short: "TPOT", unit: "ms"},
    "second-token": {title: "Time to second token", short: "second token", unit: "ms"},
    "goodput": {title: "Goodput: requests that met the SLO", short: "goodput", unit: "req/s", one: true, up: true},
    "handover": {title: "Hand-over: prompt computed to D's first step", short: "hand-over", unit: "ms"},
  };

  const grouped = (text) => text.replace(/\B(?=(\d{3})+(?!\d))/g, ",");

  // Three significant digits, whole numbers from 100 on: "1,744", "10.4", "0.35".
  function number(value) {
    if (typeof value !== "number") return "–";
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 100) return grouped(String(Math.round(value)));
    return String(Number(value.toPrecision(3)));
  }

  // "ttft 300 ms, tpot 7.5 ms". What is no number is shown as the file has it.
  const slo = (bounds) => Object.keys(bounds).sort().reverse()
    .map((name) => `${name} ${Number.isFinite(Number(bounds[name])) ? Number(bounds[name]) : bounds[name]} ms`).join(", ");

  const share = (value) => typeof value === "number" ? `${number(value * 100)} %` : "–";

  function bytes(value) {
    if (typeof value !== "number") return "–";
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let i = 0;
    while (value >= 1024 && i < units.length - 1) { value /= 1024; ++i; }
    return `${number(value)} ${units[i]}`;
  }

  // 16384 and 16000 are both written 16k where they are named in passing; tables have the number.
  function tokens(value) {
    if (value >= 1024 && value % 1024 === 0) return `${value / 1024}k`;
    if (value >= 1000 && value % 1000 === 0) return `${value / 1000}k`;
    return String(value);
  }

  function linearTicks(max) {
    const rough = max / 6;
    const power = Math.pow(10, Math.floor(Math.log10(rough)));
    const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough);
    const out = [];
    for (let i = 0; i * step <= max * 1.0001; ++i) out.push(Number((i * step).toPrecision(12)));
    return out;
  }

  function logTicks(min, max) {
    const multiples = Math.log10(max / min) > 2.5 ? [1] : [1, 2, 5];
    const out = [];
    for (let power = Math.floor(Math.log10(min)); power <= Math.ceil(Math.log10(max)); ++power) {
      for (const m of multiples) {
        const tick = Number((m * Math.pow(10, power)).toPrecision(12));
        if (tick >= min && tick <= max) out.push(tick);
      }
    }
    return out;
  }

  // The y axis that holds all these values: {min, max, ticks, log}. A log axis has no zero, so values
  // of zero lie on its lower edge.
  function yAxis(values, log) {
    const top = Math.max(...values, 0) || 1;
    if (!log) return {log, min: 0, max: top * 1.1, ticks: linearTicks(top * 1.1)};
    const positive = values.filter((v) => v > 0);
    const min = (positive.length ? Math.min(...positive) : top / 10) / 1.4;
    return {log, min, max: top * 1.5, ticks: logTicks(min, top * 1.5)};
  }

  // Room at the right for the ratio's bracket.
  function xRange(inputs) {
    const first = inputs[0], last = inputs[inputs.length - 1];
    const span = Math.max(Math.log2(last / first), 1);
    return [first * Math.pow(2, -0.1 * span), last * Math.pow(2, 0.33 * span)];
  }

  return {METRICS, number, share, slo, bytes, tokens, yAxis, xRange};
})();
