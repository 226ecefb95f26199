// The cards: what is known of the run that is shown.  A card keeps what it had, paler, until there is more.

import { el, name, number, count, percent, colour, runColour, send } from "./dom.js";
import { Chart, overEpochs, spectrum, agreement, histogram, line } from "./charts.js";
import { map, patches } from "./maps.js";
import { comparison } from "./runs.js";

/** A card with a title and a body; the caption says in words what the chart shows. */
class Card {
  constructor(title, id, wide = false) {
    this.body = el("div", { class: "body" });
    this.caption = el("p", { class: "caption" });
    this.element = el("section", { class: wide ? "card wide" : "card", id, "aria-label": title }, el("h2", {}, title), this.body, this.caption);
  }

  stale(on) { this.element.classList.toggle("stale", on); }

  /** Whether these data have to be drawn: there are some, and they are not on the card already. */
  isNew(found) {
    this.stale(!found);
    if (!found || found === this.drawn) return false;
    this.drawn = found;
    return true;
  }

  /** Draw again, in other colours for example. */
  forget() { this.drawn = undefined; }
}

const errorName = (data) => (data.task === "classification" ? "Error" : "1 − R²");

class Learning extends Card {
  constructor(data) {
    super("Learning curve", "learning", true);
    const [loss, error] = [el("div"), el("div")];
    this.legend = el("div", { class: "legend" });
    this.body.append(this.legend, el("div", { class: "pair" }, loss, error));
    this.loss = new Chart(loss, "Loss of each epoch");
    this.error = new Chart(error, "Held-out error of each epoch");
    this.data = data;
  }

  draw(run, compared) {
    const others = compared.filter((one) => one.epochs.length);
    if (!this.isNew([run, ...others].map((one) => `${one.run}:${one.epochs.length}`).join())) return;
    const errors = (one) => one.epochs.map((epoch) => (epoch.score === null ? null : 1 - epoch.score));
    const losses = (one, key) => one.epochs.map((epoch) => epoch[key]);
    let curves = [
      { label: "training", colour: colour("--accent"), values: losses(run, "train") },
      { label: "held out", colour: colour("--warm"), values: losses(run, "held_out") },
    ];
    let rates = [{ label: "held out", colour: colour("--warm"), values: errors(run) }];
    if (others.length > 1) {
      const paint = (one) => runColour(compared.indexOf(one));
      curves = others.map((one) => ({ label: `run ${one.run}`, colour: paint(one), values: losses(one, "held_out") }));
      rates = others.map((one) => ({ label: `run ${one.run}`, colour: paint(one), values: errors(one) }));
    }
    this.legend.replaceChildren(...curves.map((curve) => {
      const swatch = el("span", { class: "swatch" });
      swatch.style.background = curve.colour;
      return el("span", {}, swatch, others.length > 1 ? `${curve.label}, held out` : curve.label);
    }));
    overEpochs(this.loss, curves, "Mean squared error", true);
    overEpochs(this.error, rates, `Held-out ${errorName(this.data).toLowerCase().replace("r²", "R²")}`, false);
    const held = run.epochs.filter((epoch) => epoch.held_out !== null);
    if (!held.length) { this.caption.textContent = "No epoch has ended yet."; return; }
    const best = held.reduce((a, b) => (b.held_out < a.held_out ? b : a));
    this.caption.textContent = `Run ${run.run}: ${held.length} ${held.length === 1 ? "epoch" : "epochs"}; the held-out loss is lowest after epoch ${best.number}, where the held-out error is ${percent(1 - best.score, 2)}. Held-out rows also stop training, so measure the model that you choose on rows that are new.`;
  }
}

class Mistakes extends Card {
  constructor(data) {
    super(data.task === "classification" ? "Confusion matrix" : "Residuals", "mistakes");
    this.data = data;
    if (data.task === "regression") {
      const [left, right] = [el("div"), el("div")];
      this.body.append(el("div", { class: "pair" }, left, right));
      this.points = new Chart(left, "True against predicted values");
      this.bars = new Chart(right, "Histogram of residuals");
    }
  }

  draw(run) {
    const found = run.details?.held_out;
    if (!this.isNew(found)) return;
    if (found.confusion) this.matrix(found.confusion);
    else {
      agreement(this.points, found.residuals);
      histogram(this.bars, found.residuals);
      const s = found.score;
      this.caption.textContent = `On ${count(s.rows)} held-out rows: root mean squared error ${number(s.rmse)}, mean absolute error ${number(s.mae)}; the target's standard deviation is ${number(s.deviation)}.`;
    }
  }

  matrix({ labels, counts, all }) {
    const sums = counts.map((row) => row.reduce((a, b) => a + b, 0));
    const cell = (value, i, j) => {
      const share = sums[i] ? value / sums[i] : 0;
      const td = el("td", { class: share > 0.55 ? "strong" : "" }, value ? count(value) : "·");
      td.style.setProperty("--share", String(Math.round(100 * (value ? Math.max(0.06, share) : 0))));
      td.style.setProperty("--cell", i === j ? "var(--accent)" : "var(--warm)");
      return td;
    };
    const table = el("table", { class: "matrix" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col", class: "corner" }, "true \\ predicted"), ...labels.map((label) => el("th", { scope: "col" }, name(label))))),
      el("tbody", {}, ...counts.map((row, i) => el("tr", {}, el("th", { scope: "row" }, name(labels[i])), ...row.map((value, j) => cell(value, i, j))))));
    this.body.replaceChildren(el("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Confusion matrix" }, table));
    this.caption.textContent = `Rows are true classes, columns predicted ones; shades are shares of a row.${all > labels.length ? ` The ${labels.length} of ${all} classes with the most mistakes.` : ""}`;
  }
}

class Importances extends Card {
  constructor(data) {
    super("Importances", "importances");
    this.data = data;
  }

  draw(run) {
    const found = run.details?.importances;
    if (!this.isNew(found)) return;
    const measure = errorName(this.data).toLowerCase().replace("r²", "R²");
    if (found.images) {
      const canvas = el("canvas", { class: "map" });
      this.body.replaceChildren(canvas);
      patches(canvas, found, "Importance of each patch of the image");
      this.caption.textContent = `Percentage points by which the held-out ${measure} rises if a patch of pixels is shuffled among the rows.`;
      return;
    }
    const largest = Math.max(...found.rises, 1e-12);
    const shown = found.columns.slice(0, 16);
    const rows = shown.map((column, i) => {
      const rise = found.rises[i];
      const bar = el("span", { class: rise > 0 ? "bar" : "bar minus" });
      bar.style.width = `${Math.max(0, 100 * rise / largest)}%`;
      const share = found.shares ? el("td", { class: "n soft" }, percent(found.shares[i])) : null;
      return el("tr", {}, el("th", { scope: "row" }, name(this.data.fields[column].name)), el("td", { class: "w" }, bar), el("td", { class: "n" }, `${rise >= 0 ? "+" : "−"}${Math.abs(100 * rise).toFixed(1)}`), share);
    });
    this.body.replaceChildren(el("table", { class: "bars" }, el("tbody", {}, ...rows)));
    const more = found.columns.length > shown.length ? ` The ${shown.length} largest of ${found.columns.length}.` : "";
    const shares = found.shares ? " On the right, shares in the learned metric." : "";
    this.caption.textContent = `Percentage points by which the held-out ${measure} rises if a column is shuffled among the rows.${more}${shares}`;
  }
}

/** Cards that ask the server for values of the learned function. */
class Asked extends Card {
  constructor(title, id, data, actions) {
    super(title, id);
    this.data = data;
    this.actions = actions;
    this.asked = 0;
    this.run = null;
    this.touched = false;
    this.picker = el("div", { class: "picker" });
    this.holder = el("div");
    this.body.append(this.picker, this.holder);
    this.output = this.select("Class");  // of several classes, that of the typical row until one is chosen
    this.output.addEventListener("change", () => { this.chosenClass = true; });
    this.output.parentElement.hidden = true;
  }

  select(label) {
    const select = el("select", { onchange: () => { this.touched = true; this.ask(); } });
    this.picker.append(el("label", {}, label, select));
    return select;
  }

  /** Offer the columns of a run; the most important first until the user has chosen. */
  offer(select, run, place) {
    const chosen = (columns) => columns.filter((i) => run.settings.columns.includes(i));
    const ranked = chosen(run.details?.importances?.columns ?? [...this.data.first_columns, ...run.settings.columns]);
    const wanted = this.touched && run.settings.columns.includes(Number(select.value)) ? Number(select.value) : ranked[place] ?? run.settings.columns[place];
    const options = run.settings.columns.slice(0, 1000).map((i) => el("option", { value: String(i) }, this.data.fields[i].name || "(no name)"));
    select.replaceChildren(...options);
    select.value = String(wanted);
  }

  classes(run) {
    const classes = run.result.classes ?? [];
    if (!classes.length) return;
    const before = this.chosenClass && Number(this.output.value) < classes.length ? this.output.value : "";
    this.output.replaceChildren(...classes.map((label, i) => el("option", { value: String(i) }, label)));
    this.output.value = before !== "" || classes.length > 2 ? before : "1";
    this.output.parentElement.hidden = false;
  }

  async fetch(question) {
    const [number, run] = [++this.asked, this.run];
    this.waiting = true;
    if (this.output.value !== "") question.output = Number(this.output.value);
    try {
      const found = await send("POST", `/runs/${run.run}/slice`, question);
      if (number !== this.asked) return;
      this.waiting = false;
      this.found = found;
      if (found.output !== null && this.output.options.length) this.output.value = String(found.output);
      this.paint();
      this.stale(false);
    } catch (error) {
      if (number === this.asked) this.caption.textContent = error.message;
    }
  }

  value() {
    if (this.data.task === "regression") return this.data.target;
    return `P(${this.output.selectedOptions[0]?.textContent ?? ""})`;
  }

  others() {
    return this.found.row === null ? "" : ` All other columns are as in row ${count(this.found.row + 1)}, a typical one.`;
  }

  draw(run) {
    const key = run.status === "done" ? `${run.run} ${run.details?.importances ? "ranked" : ""}` : "";
    if (!key) { this.stale(true); return; }
    if (key === this.drawn) {  // it was left for a run that trains, and came back
      if (!this.waiting) this.stale(false);
      return;
    }
    this.drawn = key;
    this.run = run;
    this.stale(true);
    if (!this.found) this.caption.textContent = "Evaluating the function …";
    this.classes(run);
    this.begin(run);
    this.ask();
  }
}

class Slice extends Asked {
  constructor(data, actions) {
    super("The function along a column", "slice", data, actions);
    this.column = this.select("Along");
    this.mean = el("input", { type: "checkbox", onchange: () => this.ask() });
    this.picker.append(el("label", { class: "check" }, this.mean, "mean of 40 rows"));
    this.plot = el("div");
    this.bars = el("div");
    this.holder.append(this.plot, this.bars);
    this.chart = new Chart(this.plot, "The learned function along a column");
  }

  begin(run) { this.offer(this.column, run, 0); }

  ask() { if (this.run) this.fetch({ columns: [Number(this.column.value)], averaged: this.mean.checked }); }

  paint() {
    const found = this.found;
    const label = this.data.fields[found.column].name;
    const isClass = this.data.task === "classification";
    this.plot.hidden = found.labels.length > 0;
    this.bars.hidden = !this.plot.hidden;
    if (found.labels.length) {
      this.chart.clear();
      this.levels(found, isClass);
    } else line(this.chart, found, label, this.value(), isClass);
    const under = isClass ? `Dots are held-out rows: at the top those of the class, at the bottom the others.` : "Dots are held-out rows.";
    const marks = found.labels.length ? "Bars are the model, marks the mean of the held-out rows." : under;
    this.caption.textContent = found.row === null ? `Mean over 40 held-out rows, and the middle four fifths of them. ${marks}` : `${marks}${this.others()}`;
    this.plot.setAttribute("aria-label", `${this.value()} along ${label}: from ${number(found.y[0])} to ${number(found.y.at(-1))}`);
  }

  levels(found, isClass) {
    const means = found.labels.map((_, i) => {
      const values = found.dots[1].filter((_, k) => found.dots[0][k] === i);
      return [values.length, values.length ? values.reduce((a, b) => a + b, 0) / values.length : null];
    });
    const all = [...found.y, ...means.map(([, mean]) => mean).filter((mean) => mean !== null), 0];
    const [low, high] = isClass ? [0, 1] : [Math.min(...all), Math.max(...all)];
    const share = (value) => 100 * (value - low) / (high - low || 1);
    const rows = found.labels.map((label, i) => {
      const bar = el("span", { class: "bar" });
      bar.style.width = `${share(found.y[i])}%`;
      const track = el("span", { class: "track" }, bar);
      if (means[i][1] !== null) {
        const mark = el("span", { class: "mark" });
        mark.style.left = `calc(${share(means[i][1])}% - 1px)`;
        track.append(mark);
      }
      return el("tr", {}, el("th", { scope: "row" }, name(label)), el("td", { class: "w" }, track), el("td", { class: "n" }, number(found.y[i])), el("td", { class: "n soft" }, `${means[i][0]} rows`));
    });
    this.bars.replaceChildren(el("div", { class: "scroll tall" }, el("table", { class: "bars" }, el("tbody", {}, ...rows))));
  }
}

class Surface extends Asked {
  constructor(data, actions) {
    super("The function along two columns", "surface", data, actions);
    this.first = this.select("Across");
    this.second = this.select("Up");
    this.canvas = el("canvas", { class: "map" });
    this.holder.append(this.canvas);
    new ResizeObserver(() => { if (this.found) this.paint(); }).observe(this.holder);
  }

  begin(run) {
    this.offer(this.first, run, 0);
    this.offer(this.second, run, 1);
    const several = run.settings.columns.length > 1;
    this.element.hidden = !several;
    if (this.first.value === this.second.value && several) this.second.value = String(run.settings.columns.find((i) => String(i) !== this.first.value));
  }

  ask() {
    if (!this.run || this.element.hidden) return;
    if (this.first.value === this.second.value) { this.caption.textContent = "Choose two different columns."; return; }
    this.fetch({ columns: [Number(this.first.value), Number(this.second.value)] });
  }

  paint() {
    const names = this.found.columns.map((i) => this.data.fields[i].name);
    map(this.canvas, this.found, names, `${this.value()} over ${names[0]} and ${names[1]}`);
    this.caption.textContent = `${this.value()}, with held-out rows as dots.${this.others()}`;
  }
}

class Spectrum extends Card {
  constructor() {
    super("Spectrum of the kernel", "spectrum");
    const holder = el("div");
    this.body.append(holder);
    this.chart = new Chart(holder, "Eigenvalues before and after levelling");
  }

  draw(run) {
    const plan = run.details?.plan;
    if (!this.isNew(plan)) return;
    spectrum(this.chart, plan);
    this.caption.textContent = plan.q
      ? `The first q = ${count(plan.q)} eigenvalues, estimated on ${count(plan.subsample)} rows, are levelled to the q-th. The largest useful batch m* rises from ${number(plan.m_star_plain, 3)} to ${number(plan.m_star, 3)}; training takes m = ${count(plan.m)}.`
      : `Few rows: the equations are solved at once, and nothing is levelled.`;
  }
}

class PlanCard extends Card {
  constructor() { super("The plan in words", "plan"); }

  draw(run) {
    const plan = run.details?.plan;
    if (!this.isNew(plan)) return;
    const rows = plan.rows.map((cells) => el("tr", {}, ...cells.map((cell) => el("td", {}, cell))));
    this.body.replaceChildren(el("div", { class: "scroll tall", tabIndex: 0, role: "region", "aria-label": "Plan" }, el("table", { class: "plan" }, el("tbody", {}, ...rows))));
  }
}

class Comparison extends Card {
  constructor(data) {
    super("Runs compared", "comparison", true);
    this.data = data;
    this.element.hidden = true;
  }

  draw(run, compared) {
    this.element.hidden = compared.length < 2;
    if (compared.length > 1) this.body.replaceChildren(comparison(compared, this.data));
  }
}

/** All cards in their order. */
export function makeCards(data, table, actions) {
  const runs = new Card("Runs", "runs", true);
  runs.body.append(table.element);
  runs.caption.textContent = "The best held-out error is green. Pinned runs stay on top and are kept; of the others, the oldest make room for new ones.";
  runs.draw = () => {};
  return [new Learning(data), runs, new Comparison(data), new Mistakes(data), new Importances(data), new Slice(data, actions), new Surface(data, actions), new Spectrum(), new PlanCard()];
}
