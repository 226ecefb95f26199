// The settings of the next run.  Any change asks for a run at once.

import { $, el, name, number, count } from "./dom.js";

// Milliseconds between two requests while a slider moves.
const PAUSE = 60;
const LEAST_ROWS = 100;
const LISTED = 1000;

export class Controls {
  constructor(ask) {
    this.ask = ask;
    this.data = null;
    this.chosen = new Set();
    this.categories = new Set();
    this.timer = 0;
    this.last = 0;
    this.ratio = 1; // exact, where a search found it
    this.ridge = 0.01;
    const changed = () => this.changed();
    for (const id of ["kernel", "scale"]) $(id).addEventListener("change", changed);
    $("epochs").addEventListener("change", changed);
    $("ratio").addEventListener("input", () => { this.ratio = 10 ** Number($("ratio").value); this.changed(); });
    $("ridge").addEventListener("input", () => { this.ridge = ridgeAt(Number($("ridge").value)); this.changed(); });
    $("rows").addEventListener("input", () => { this.rows = this.rowsAt(Number($("rows").value)); this.changed(); });
    $("auto").addEventListener("click", () => this.ask({ ...this.settings(), auto: true, metric: $("metric").checked }));
    $("all").addEventListener("click", () => this.choose(true));
    $("none").addEventListener("click", () => this.choose(false));
    $("filter").addEventListener("input", () => this.list());
    $("controls").addEventListener("submit", (event) => event.preventDefault());
  }

  begin(data) {
    this.data = data;
    $("kernel").replaceChildren(...data.kernels.map((kernel) => el("option", { value: kernel }, kernel.replace("_", " "))));
    this.show(data.first);
  }

  /** Show the settings of a run. */
  show(settings) {
    this.chosen = new Set(settings.columns);
    this.categories = new Set(settings.categories);
    $("kernel").value = settings.kernel;
    $("scale").value = settings.scale;
    this.ratio = settings.ratio;
    this.ridge = settings.ridge;
    this.rows = settings.rows;
    $("ratio").value = Math.log10(settings.ratio);
    $("ridge").value = settings.ridge > 0 ? Math.log10(settings.ridge) : $("ridge").min;
    $("rows").value = this.placeOf(settings.rows);
    $("epochs").value = settings.epochs;
    this.list();
    this.describe();
  }

  settings() {
    return {
      columns: [...this.chosen].sort((a, b) => a - b),
      categories: [...this.categories].sort((a, b) => a - b),
      rows: this.rows,
      kernel: $("kernel").value,
      scale: $("scale").value,
      ratio: this.ratio,
      ridge: this.ridge,
      epochs: Math.min(200, Math.max(1, Math.round(Number($("epochs").value)) || 30)),
    };
  }

  describe() {
    const set = (id, text) => { $(`${id}-value`).value = text; $(id).setAttribute("aria-valuetext", text); };
    set("ratio", `${number(this.ratio, 2)} × median`);
    set("ridge", this.ridge === 0 ? "0, interpolates" : number(this.ridge, 2));
    set("rows", `${count(this.rows)} of ${count(this.data.n_rows)}`);
    $("columns-count").value = `${this.chosen.size} of ${this.data.fields.length}`;
  }

  /** Ask for a run: at once, and at the end of a movement. */
  changed() {
    this.describe();
    clearTimeout(this.timer);
    const wait = Math.max(0, this.last + PAUSE - performance.now());
    this.timer = setTimeout(() => { this.last = performance.now(); this.ask(this.settings()); }, wait);
  }

  rowsAt(place) {
    const least = Math.min(LEAST_ROWS, this.data.n_rows);
    const exact = least * (this.data.n_rows / least) ** place;
    if (place >= 1) return this.data.n_rows;
    const unit = 10 ** Math.max(0, Math.floor(Math.log10(exact)) - 1);
    return Math.min(this.data.n_rows, Math.round(exact / unit) * unit);
  }

  placeOf(rows) {
    const least = Math.min(LEAST_ROWS, this.data.n_rows);
    return this.data.n_rows === least ? 1 : Math.log(rows / least) / Math.log(this.data.n_rows / least);
  }

  choose(all) {
    this.chosen = new Set(all ? this.data.fields.keys() : []);
    this.list();
    if (all) this.changed();
    else this.describe();
  }

  list() {
    const wanted = $("filter").value.toLowerCase();
    const matching = [...this.data.fields.entries()].filter(([, field]) => field.name.toLowerCase().includes(wanted));
    const items = matching.slice(0, LISTED).map(([i, field]) => {
      const use = el("input", { type: "checkbox", checked: this.chosen.has(i), onchange: (event) => this.toggle(this.chosen, i, event) });
      const code = field.may_be_category
        ? el("label", { class: "check code" }, el("input", { type: "checkbox", checked: this.categories.has(i), "aria-label": `${field.name} is a category`, onchange: (event) => this.toggle(this.categories, i, event) }), "category")
        : field.levels.length ? el("span", { class: "code" }, `${field.levels.length} values`) : null;
      return el("li", {}, el("label", { class: "check" }, use, name(field.name)), code);
    });
    if (matching.length > LISTED) items.push(el("li", { class: "soft" }, `and ${count(matching.length - LISTED)} more; type to find them`));
    $("columns").replaceChildren(...items);
  }

  toggle(set, i, event) {
    if (event.target.checked) set.add(i);
    else set.delete(i);
    if (this.chosen.size) this.changed();
    else this.describe();
  }
}

function ridgeAt(place) {
  return place < -6 ? 0 : Number((10 ** place).toPrecision(3));
}
