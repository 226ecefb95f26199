// Maps of numbers on a canvas: the function over two columns, and patches of an image.

import { colour, isDark, number } from "./dom.js";
import { short } from "./charts.js";

// Cividis, which reads the same for colour-blind readers (Nuñez, Anderton and Renslow, 2018), at ten places.
const STOPS = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"];
const RGB = STOPS.map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));

function shade(share) {
  const place = Math.min(0.9999, Math.max(0, share)) * (RGB.length - 1);
  const i = Math.floor(place);
  const mixed = RGB[i].map((low, c) => Math.round(low + (place - i) * (RGB[i + 1][c] - low)));
  return `rgb(${mixed.join(" ")})`;
}

function prepared(canvas, height, label) {
  const width = canvas.parentElement.clientWidth || 320;
  const ratio = devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.height = `${height}px`;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  const ctx = canvas.getContext("2d");
  ctx.scale(ratio, ratio);
  ctx.font = "12px system-ui, sans-serif";
  ctx.fillStyle = colour("--soft");
  return [ctx, width];
}

const cut = (ctx, text, room) => {
  let shown = text;
  while (shown.length > 1 && ctx.measureText(shown).width > room) shown = shown.slice(0, -2) + "…";
  return shown;
};

function scaleBar(ctx, x, top, height, low, high) {
  for (let i = 0; i < height; i++) {
    ctx.fillStyle = shade(1 - i / height);
    ctx.fillRect(x, top + i, 12, 1.5);
  }
  ctx.fillStyle = colour("--soft");
  ctx.textAlign = "left";
  [[high, 0], [(low + high) / 2, 0.5], [low, 1]].forEach(([value, share]) => ctx.fillText(short(value), x + 17, Math.max(11, top + share * height + 4)));
}

/** Ticks of an axis: names of categories, or a few numbers. */
function ticks(at, labels, most) {
  if (labels.length) {
    const step = Math.ceil(labels.length / most);
    return labels.map((label, i) => [(i + 0.5) / labels.length, label]).filter((_, i) => i % step === 0);
  }
  const [low, high] = [at[0], at.at(-1)];
  const rough = (high - low) / (most + 1) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const counted = (step) => Math.floor(high / step) - Math.ceil(low / step) + 1;
  const unit = [1, 2, 5, 10, 20].map((f) => f * power).find((step) => counted(step) <= most);
  const found = [];
  for (let v = Math.ceil(low / unit) * unit; v <= high + 1e-9 * unit; v += unit) found.push([(v - low) / (high - low || 1), number(v, 4)]);
  return found;
}

/** The function over two columns; dots are rows of the data. */
export function map(canvas, found, names, label) {
  const height = 330;
  const [ctx, width] = prepared(canvas, height, label);
  const [left, right, top, bottom] = [78, 70, 10, 46];
  const [w, h] = [width - left - right, height - top - bottom];
  const flat = found.z.flat().filter(Number.isFinite);
  const [low, high] = [Math.min(...flat), Math.max(...flat)];
  const edges = (at, labels) => {
    if (labels.length || at.length < 2) return at.map((_, i) => i / at.length).concat(1);
    const span = at.at(-1) - at[0];
    const inner = at.slice(1).map((v, i) => ((v + at[i]) / 2 - at[0]) / span);
    return [0, ...inner, 1];
  };
  const [ex, ey] = [edges(found.x, found.labels[0]), edges(found.y, found.labels[1])];
  found.z.forEach((row, j) => row.forEach((value, i) => {
    ctx.fillStyle = shade((value - low) / (high - low || 1));
    ctx.fillRect(left + ex[i] * w, top + (1 - ey[j + 1]) * h, (ex[i + 1] - ex[i]) * w + 0.7, (ey[j + 1] - ey[j]) * h + 0.7);
  }));
  const place = (value, at, labels) => (labels.length ? (value + 0.5) / labels.length : (value - at[0]) / (at.at(-1) - at[0] || 1));
  const [dx, dy] = found.dots;
  ctx.fillStyle = "#ffffff";
  ctx.strokeStyle = "#00000099";
  ctx.globalAlpha = 0.55;
  dx.forEach((value, i) => {
    const [px, py] = [place(value, found.x, found.labels[0]), place(dy[i], found.y, found.labels[1])];
    if (px < 0 || px > 1 || py < 0 || py > 1) return;
    const jitter = (labels, k) => (labels.length ? (((i * k) % 1) - 0.5) * 0.7 / labels.length : 0);
    ctx.beginPath();
    ctx.arc(left + (px + jitter(found.labels[0], 0.618)) * w, top + (1 - py - jitter(found.labels[1], 0.414)) * h, 2, 0, 2 * Math.PI);
    ctx.fill();
    ctx.stroke();
  });
  ctx.globalAlpha = 1;
  ctx.fillStyle = colour("--soft");
  ctx.textAlign = "center";
  const across = ticks(found.x, found.labels[0], Math.max(3, Math.floor(w / 60)));
  for (const [share, text] of across) ctx.fillText(cut(ctx, text, w / across.length - 6), left + share * w, top + h + 16);
  ctx.textAlign = "right";
  for (const [share, text] of ticks(found.y, found.labels[1], 6)) ctx.fillText(cut(ctx, text, left - 26), left - 6, top + (1 - share) * h + 4);
  ctx.fillStyle = colour("--ink");
  ctx.textAlign = "center";
  ctx.fillText(cut(ctx, names[0], w), left + w / 2, height - 10);
  ctx.save();
  ctx.translate(13, top + h / 2);
  ctx.rotate(-Math.PI / 2);
  ctx.fillText(cut(ctx, names[1], h), 0, 0);
  ctx.restore();
  scaleBar(ctx, left + w + 12, top, h, low, high);
}

/** Importances of patches of an image. */
export function patches(canvas, found, label) {
  const height = 260;
  const [ctx, width] = prepared(canvas, height, label);
  const size = Math.min(height - 10, width - 90);
  const rises = found.rises.map((rise) => Math.max(0, rise));
  const high = Math.max(...rises) || 1;
  const step = size / found.side;
  rises.forEach((rise, i) => {
    ctx.fillStyle = shade(rise / high);
    ctx.fillRect((i % found.side) * step, Math.floor(i / found.side) * step, step - 1, step - 1);
  });
  if (isDark()) { ctx.strokeStyle = colour("--line"); ctx.strokeRect(0, 0, size, size); }
  scaleBar(ctx, size + 14, 2, size - 6, 0, 100 * high);
}
