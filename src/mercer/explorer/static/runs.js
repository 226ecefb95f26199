// The table of runs: sortable, pinned, compared.

import { el, name, number, count, percent, seconds, runColour } from "./dom.js";

const COMPARED = 6;

export const errorOf = (run) => run.score.error ?? (run.score.r2 === undefined ? null : 1 - run.score.r2);

/** The settings of a run in words, in one line. */
export function inWords(run, data) {
  const s = run.settings;
  const bandwidth = run.result.bandwidth ? number(run.result.bandwidth, 3) : `${number(s.ratio, 3)} × median`;
  const columns = s.columns.length === data.fields.length ? "all columns" : `${s.columns.length} of ${data.fields.length} columns`;
  const searched = s.auto ? ", searched" : "";
  return `${s.kernel.replace("_", " ")}, bandwidth ${bandwidth}, ridge ${number(s.ridge, 2)}, ${count(s.rows)} rows, ${columns}, ${scaling(s.scale)}${searched}`;
}

const scaling = (scale) => ({ rank: "numbers by rank", standard: "numbers standardised", none: "numbers as given" })[scale];

const COLUMNS = [
  ["run", "Run", (r) => r.run],
  ["error", "Held-out error", errorOf],
  ["kernel", "Kernel", (r) => r.settings.kernel],
  ["bandwidth", "Bandwidth", (r) => r.result.bandwidth ?? null],
  ["ridge", "Ridge", (r) => r.settings.ridge],
  ["scale", "Scaling", (r) => r.settings.scale],
  ["rows", "Rows", (r) => r.settings.rows],
  ["columns", "Columns", (r) => r.settings.columns.length],
  ["epochs", "Epochs", (r) => r.epochs.length],
  ["seconds", "Time", (r) => r.result.seconds ?? null],
];
const TEXT = new Set(["kernel", "scale"]);

export class RunsTable {
  constructor(actions) {
    this.actions = actions; // open, pin, remove, compared
    this.sort = ["run", -1];
    this.compared = new Set();
    this.body = el("tbody");
    this.heads = COLUMNS.map(([key, label]) =>
      el("th", { scope: "col", class: TEXT.has(key) ? "" : "n" }, el("button", { type: "button", onclick: () => this.sortBy(key) }, label)));
    this.element = el("div", { class: "scroll tall", tabIndex: 0, role: "region", "aria-label": "Runs" },
      el("table", { class: "runs" },
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Compare"), el("th", { scope: "col" }, "Pin, remove"), ...this.heads)),
        this.body));
  }

  sortBy(key) {
    this.sort = [key, this.sort[0] === key ? -this.sort[1] : key === "run" ? -1 : 1];
    this.draw(this.runs, this.shown);
  }

  draw(runs, shown) {
    this.runs = runs;
    this.shown = shown;
    const [key, direction] = this.sort;
    const value = COLUMNS.find(([k]) => k === key)[2];
    this.heads.forEach((head, i) => head.setAttribute("aria-sort", COLUMNS[i][0] !== key ? "none" : direction > 0 ? "ascending" : "descending"));
    for (const number of this.compared) if (!runs.has(number)) this.compared.delete(number);
    const sorted = [...runs.values()].sort((a, b) => {
      if (a.pinned !== b.pinned) return a.pinned ? -1 : 1;
      const [x, y] = [value(a), value(b)];
      if (x === null || y === null) return (x === null) - (y === null);
      return direction * (x < y ? -1 : x > y ? 1 : 0);
    });
    const best = Math.min(...sorted.map(errorOf).filter((error) => error !== null));
    // Rows are made again only if they differ, so that a click is not lost between press and release.
    const content = JSON.stringify([shown, this.sort, [...this.compared], sorted.map((run) => [run.run, run.status, run.pinned, run.score, run.settings, run.result])]);
    if (content === this.content) {
      for (const cell of this.body.querySelectorAll("[data-epochs]")) cell.textContent = String(runs.get(Number(cell.dataset.epochs))?.epochs.length ?? "");
      return;
    }
    this.content = content;
    const focused = document.activeElement?.dataset?.key;
    this.body.replaceChildren(...sorted.map((run) => this.row(run, best)));
    if (focused) this.body.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  row(run, best) {
    const error = errorOf(run);
    const checked = this.compared.has(run.run);
    const box = el("input", {
      type: "checkbox", checked, "aria-label": `Compare run ${run.run}`, "data-key": `compare-${run.run}`,
      disabled: !checked && this.compared.size >= COMPARED,
      onchange: (event) => { event.target.checked ? this.compared.add(run.run) : this.compared.delete(run.run); this.actions.compared(); },
    });
    const place = [...this.compared].indexOf(run.run);
    const swatch = checked ? el("span", { class: "swatch" }) : null;
    if (swatch) swatch.style.background = runColour(place);
    const cells = run.status === "failed"
      ? [el("td", { class: "failed", colspan: COLUMNS.length - 1 }, run.result.message ?? "failed")]
      : [
        el("td", { class: `n ${error !== null && error === best ? "best" : ""}` }, error === null ? status(run) : percent(error, 2)),
        el("td", {}, run.settings.kernel.replace("_", " ")),
        el("td", { class: "n" }, number(run.result.bandwidth, 3)),
        el("td", { class: "n" }, number(run.settings.ridge, 2)),
        el("td", {}, { rank: "by rank", standard: "standard", none: "as given" }[run.settings.scale]),
        el("td", { class: "n" }, count(run.settings.rows)),
        el("td", { class: "n" }, String(run.settings.columns.length)),
        el("td", { class: "n", "data-epochs": String(run.run) }, String(run.epochs.length)),
        el("td", { class: "n" }, run.result.seconds === undefined ? "" : seconds(run.result.seconds)),
      ];
    return el("tr", { "aria-current": run.run === this.shown ? "true" : "false" },
      el("td", {}, el("label", { class: "check" }, box, swatch)),
      el("td", {},
        el("button", { type: "button", class: "icon", "aria-pressed": String(run.pinned), "aria-label": `Pin run ${run.run}`, title: "Pin", "data-key": `pin-${run.run}`, onclick: () => this.actions.pin(run.run, !run.pinned) }, run.pinned ? "★" : "☆"),
        el("button", { type: "button", class: "icon", "aria-label": `Remove run ${run.run}`, title: "Remove", "data-key": `remove-${run.run}`, disabled: !["done", "failed"].includes(run.status), onclick: () => this.actions.remove(run.run) }, "✕")),
      el("td", { class: "n" }, el("button", { type: "button", class: "open", "aria-label": `Show run ${run.run}`, "data-key": `open-${run.run}`, onclick: () => this.actions.open(run.run) }, String(run.run))),
      ...cells);
  }
}

const status = (run) => (run.status === "waiting" ? "waiting" : run.epochs.length ? "training" : "preparing");

/** Settings and scores of the runs that are compared, one column each. */
export function comparison(runs, data) {
  const lines = [
    ["Held-out error", (r) => (errorOf(r) === null ? "–" : percent(errorOf(r), 2))],
    ["Kernel", (r) => r.settings.kernel.replace("_", " ")],
    ["Bandwidth", (r) => number(r.result.bandwidth, 3)],
    ["Ridge", (r) => number(r.settings.ridge, 2)],
    ["Scaling", (r) => scaling(r.settings.scale)],
    ["Rows", (r) => count(r.settings.rows)],
    ["Columns left out", (r) => names(data.fields.filter((_, i) => !r.settings.columns.includes(i)))],
    ["Categories", (r) => names(r.settings.categories.map((i) => data.fields[i]))],
    ["Epochs", (r) => String(r.epochs.length)],
    ["Time", (r) => (r.result.seconds === undefined ? "–" : seconds(r.result.seconds))],
    ["Chosen by", (r) => (r.settings.auto ? "leave-one-out search" : "hand")],
  ];
  const head = runs.map((run, i) => {
    const swatch = el("span", { class: "swatch" });
    swatch.style.background = runColour(i);
    return el("th", { scope: "col" }, swatch, `Run ${run.run}`);
  });
  const rows = lines.map(([label, value]) => {
    const values = runs.map(value);
    const kind = values.every((v) => v === values[0]) ? "same" : "differs";
    return el("tr", {}, el("th", { scope: "row" }, label), ...values.map((v) => el("td", { class: kind }, name(v))));
  });
  return el("div", { class: "scroll" }, el("table", { class: "compare" }, el("thead", {}, el("tr", {}, el("th"), ...head)), el("tbody", {}, ...rows)));
}

function names(fields) {
  if (!fields.length) return "none";
  const shown = fields.slice(0, 5).map((field) => field.name).join(", ");
  return fields.length > 5 ? `${shown} and ${fields.length - 5} more` : shown;
}
