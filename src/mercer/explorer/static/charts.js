// Lines, dots and bars, drawn by uPlot.

import { colour, number } from "./dom.js";

const HEIGHT = 240;
// Room for the numbers and the label of an axis below.
const BELOW = { size: 26, labelSize: 20 };

export const short = (value) => {
  if (value === null) return "";
  const size = Math.abs(value);
  if (size >= 1e4 && size < 1e15) {
    const [unit, letter] = size >= 1e12 ? [1e12, "T"] : size >= 1e9 ? [1e9, "G"] : size >= 1e6 ? [1e6, "M"] : [1e3, "k"];
    return `${number(value / unit, 3)} ${letter}`;
  }
  return number(value, 3);
};

function axis(label, extra = {}) {
  return {
    label, labelSize: 22, labelFont: "13px system-ui, sans-serif", font: "12px system-ui, sans-serif", stroke: colour("--soft"),
    grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1, size: 5 },
    values: (_, values) => values.map((value) => (value === null ? "" : short(value))), ...extra,
  };
}

/** A chart in a holder that it fills; `replace` draws another one in its place. */
export class Chart {
  constructor(holder, label) {
    this.holder = holder;
    holder.setAttribute("role", "img");
    holder.setAttribute("aria-label", label);
    this.plot = null;
    new ResizeObserver(() => {
      if (this.plot && holder.clientWidth) this.plot.setSize({ width: holder.clientWidth, height: this.plot.height });
    }).observe(holder);
  }

  replace(options, data) {
    this.plot?.destroy();
    this.plot = new uPlot(
      { width: Math.max(160, this.holder.clientWidth), height: HEIGHT, legend: { show: false }, cursor: { drag: { x: false, y: false } }, ...options },
      data, this.holder);
  }

  clear() {
    this.plot?.destroy();
    this.plot = null;
  }
}

const whole = (u, i, min, max) => {
  const step = Math.max(1, Math.ceil((max - min) / 8));
  const found = [];
  for (let x = Math.ceil(min); x <= max; x += step) found.push(x);
  return found;
};

/** Curves over epochs: `curves` are {label, colour, values, dash}. */
export function overEpochs(chart, curves, label, logarithmic) {
  const length = Math.max(1, ...curves.map((curve) => curve.values.length));
  const epochs = Array.from({ length }, (_, i) => i + 1);
  const padded = curves.map((curve) => epochs.map((_, i) => {
    const value = curve.values[i] ?? null;
    return logarithmic && value <= 0 ? null : value;
  }));
  const log = logarithmic && padded.flat().some((value) => value > 0);
  chart.replace({
    scales: { x: { time: false, range: [0.9, Math.max(2, length) + 0.1] }, y: log ? { distr: 3, range: spread } : { range: (u, low, high) => uPlot.rangeNum(low ?? 0, high ?? 1, 0.1, true) } },
    axes: [axis("Epoch", { splits: whole, ...BELOW }), axis(label, { size: 58, ...(log ? logAxis : {}) })],
    series: [{}, ...curves.map((curve) => ({ label: curve.label, stroke: curve.colour, width: 2, dash: curve.dash, points: { show: true, size: 5, fill: curve.colour, stroke: curve.colour } }))],
  }, [epochs, ...padded]);
}

const spread = (u, low, high) => (low > 0 && high > 0 ? [low / 1.25, high * 1.25] : [0.1, 1]);
// Ticks of 1, 2 and 5 times powers of ten, as far as there is room for them.
const logAxis = {
  splits: (u, i, min, max) => {
    const found = [];
    for (let e = Math.floor(Math.log10(min)); e <= Math.log10(max); e++) for (const f of [1, 2, 5]) found.push(f * 10 ** e);
    const inside = found.filter((v) => v >= min && v <= max);
    if (inside.length <= 7) return inside.length > 1 ? inside : [min, Math.sqrt(min * max), max];
    const powers = inside.filter((v) => Math.abs(Math.log10(v) - Math.round(Math.log10(v))) < 1e-9);
    const step = Math.ceil(powers.length / 7);
    return powers.filter((_, k) => k % step === 0);
  },
};

/** Eigenvalues before and after levelling, with q and m* marked. */
export function spectrum(chart, plan) {
  const [before, after, soft, ink] = [colour("--accent"), colour("--warm"), colour("--soft"), colour("--ink")];
  const series = [{}, { label: "k", stroke: before, width: 2, points: { show: false } }];
  const data = [plan.index, plan.before.map(positive)];
  if (plan.after.length) {
    series.push({ label: "k_G", stroke: after, width: 3, dash: [7, 4], points: { show: false } });
    data.push(plan.after.map(positive));
  }
  chart.replace({
    scales: { x: { time: false, distr: 3, range: [0.9, plan.index.at(-1) * 1.1] }, y: { distr: 3, range: spread } },
    axes: [axis("Index i", { ...logAxis, ...BELOW }), axis("Eigenvalue of K / n", { size: 64, ...logAxis })],
    series,
    hooks: { draw: [(u) => {
      const { ctx } = u;
      const ratio = devicePixelRatio;
      ctx.save();
      ctx.font = `${12 * ratio}px system-ui, sans-serif`;
      const text = (words, x, y, fill, align = "left") => { ctx.fillStyle = fill; ctx.textAlign = align; ctx.fillText(words, x, y); };
      if (plan.q) {
        const x = u.valToPos(plan.q, "x", true);
        ctx.strokeStyle = soft;
        ctx.setLineDash([3 * ratio, 3 * ratio]);
        ctx.beginPath();
        ctx.moveTo(x, u.bbox.top);
        ctx.lineTo(x, u.bbox.top + u.bbox.height);
        ctx.stroke();
        const right = x > u.bbox.left + 0.8 * u.bbox.width;
        text(`q = ${plan.q}`, x + (right ? -6 : 6) * ratio, u.bbox.top + (right ? 34 : 14) * ratio, ink, right ? "right" : "left");
        const level = u.valToPos(plan.after[0], "y", true);
        const low = level + 20 * ratio > u.bbox.top + u.bbox.height;
        text(`m* = ${number(plan.m_star, 3)} levelled`, u.bbox.left + 8 * ratio, level + (low ? -8 : 17) * ratio, after);
      }
      const top = u.valToPos(plan.before[0], "y", true);
      text(`m* = ${number(plan.m_star_plain, 3)} as given`, u.bbox.left + 26 * ratio, top + 4 * ratio, before);
      ctx.restore();
    }] },
  }, data);
}

const positive = (value) => (value > 0 ? value : null);

/** Dots, drawn before or after the lines. */
function dots(xs, ys, fill, radius = 2.5) {
  return (u) => {
    const { ctx } = u;
    const r = radius * devicePixelRatio;
    ctx.save();
    ctx.beginPath();
    ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
    ctx.clip();
    ctx.fillStyle = fill;
    ctx.globalAlpha = 0.35;
    for (let i = 0; i < xs.length; i++) {
      const x = u.valToPos(xs[i], "x", true);
      const y = u.valToPos(ys[i], "y", true);
      ctx.beginPath();
      ctx.arc(x, y, r, 0, 2 * Math.PI);
      ctx.fill();
    }
    ctx.restore();
  };
}

const range = (values, share = 0.06) => {
  const finite = values.filter(Number.isFinite);
  const [low, high] = [Math.min(...finite), Math.max(...finite)];
  const room = (high - low || Math.abs(high) || 1) * share;
  return [low - room, high + room];
};

/** Predicted against true values, with the line where they agree. */
export function agreement(chart, found) {
  const ends = range([...found.true, ...found.predicted]);
  chart.replace({
    scales: { x: { time: false, range: ends }, y: { range: ends } },
    axes: [axis("Predicted", BELOW), axis("True", { size: 58 })],
    series: [{}, { stroke: colour("--warm"), width: 1.5, points: { show: false } }],
    hooks: { drawAxes: [dots(found.predicted, found.true, colour("--dot"))] },
  }, [ends, ends]);
}

export function histogram(chart, found) {
  const middles = found.counts.map((_, i) => (found.edges[i] + found.edges[i + 1]) / 2);
  chart.replace({
    scales: { x: { time: false, range: [found.edges[0], found.edges.at(-1)] }, y: { range: (u, low, high) => [0, high * 1.08 || 1] } },
    axes: [axis("True − predicted", BELOW), axis("Held-out rows", { size: 50 })],
    series: [{}, { stroke: colour("--accent"), fill: colour("--accent"), paths: uPlot.paths.bars({ size: [0.92] }), points: { show: false } }],
  }, [middles, found.counts]);
}

/** The function along a column of numbers, with the data under it. */
export function line(chart, found, label, value, isClass) {
  const [xs, ys] = found.dots;
  // Classes are 0 or 1: their dots are spread so that they can be seen.
  const shown = isClass ? ys.map((y, i) => y + (y ? -1 : 1) * 0.06 * ((i * 0.618) % 1)) : ys;
  const accent = colour("--accent");
  const series = [{}, { stroke: accent, width: 2.5, points: { show: found.x.length < 12, size: 6, fill: accent } }];
  const data = [found.x, found.y];
  const bands = [];
  if (found.low.length) {
    series.push({ stroke: "transparent", points: { show: false } }, { stroke: "transparent", points: { show: false } });
    data.push(found.low, found.high);
    bands.push({ series: [3, 2], fill: `color-mix(in srgb, ${accent} 20%, transparent)` });
  }
  const ends = isClass ? [-0.05, 1.05] : range([...found.y, ...found.low, ...found.high, ...middle(ys)]);
  chart.replace({
    scales: { x: { time: false, range: range(found.x, 0.02) }, y: { range: ends } },
    axes: [axis(label, BELOW), axis(value, { size: 58 })],
    series, bands,
    hooks: { drawAxes: [dots(xs, shown, colour("--soft"), 2.2)] },
  }, data);
}

/** All values but the outermost hundredth. */
function middle(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const cut = Math.floor(sorted.length / 100);
  return sorted.slice(cut, sorted.length - cut);
}
