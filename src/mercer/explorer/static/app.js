// The page: what the server tells becomes the state, and the state is drawn.

import { $, el, number, count, percent, send } from "./dom.js";
import { Controls } from "./controls.js";
import { RunsTable, errorOf, inWords } from "./runs.js";
import { makeCards } from "./views.js";

// The address has served its purpose; it should not be copied with the token by accident.
history.replaceState(null, "", "/");

const state = { data: null, runs: new Map(), shown: null, following: true };
let cards = [];
const controls = new Controls(start);
const table = new RunsTable({
  open: (run) => { state.following = false; show(run); controls.show(state.runs.get(run).settings); },
  pin: (run, pinned) => attempt(() => send("PATCH", `/runs/${run}`, { pinned })),
  remove: (run) => attempt(() => send("DELETE", `/runs/${run}`)),
  compared: () => draw(),
});

async function attempt(action) {
  try {
    await action();
  } catch (error) {
    announce(error.message);
  }
}

function announce(text) {
  $("copied").textContent = text;
  clearTimeout(announce.timer);
  announce.timer = setTimeout(() => { $("copied").textContent = ""; }, 6000);
}

async function start(settings) {
  state.following = true;
  performance.mark("mercer-asked");
  await attempt(async () => {
    const { run } = await send("POST", "/runs", settings);
    if (state.runs.has(run)) show(run);
    else state.wanted = run;
  });
}

const shown = () => state.runs.get(state.shown);

/** Show a run; what the table does not have of it is fetched. */
async function show(number) {
  state.shown = number;
  draw();
  const run = state.runs.get(number);
  if (run && run.status === "done" && !run.details?.held_out) {
    await attempt(async () => { mergeFetched(await send("GET", `/runs/${number}`)); draw(); });
  }
}

function merge(run) {
  const before = state.runs.get(run.run) ?? { details: {} };
  state.runs.set(run.run, { ...before, ...run, details: { ...before.details, ...run.details } });
}

/** What was fetched may be older than the events that came meanwhile: these win. */
function mergeFetched(run) {
  const before = state.runs.get(run.run);
  const ended = before && ["done", "failed"].includes(before.status) && !["done", "failed"].includes(run.status);
  const details = { ...run.details, ...before?.details };
  const epochs = before && before.epochs.length > run.epochs.length ? before.epochs : run.epochs;
  merge(ended ? { ...before, details } : { ...run, epochs, details });
}

// Several events in one frame are drawn once.
let due = false;
function draw() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => { due = false; paint(); });
}

function paint() {
  const run = shown();
  table.draw(state.runs, state.shown);
  if (!run) return;
  const compared = [...table.compared].map((number) => state.runs.get(number)).filter(Boolean);
  headline(run);
  for (const card of cards) card.draw(run, compared);
}

function headline(run) {
  $("run-name").textContent = `Run ${run.run}`;
  $("run-settings").textContent = inWords(run, state.data);
  const done = run.status === "done";
  const last = run.epochs.at(-1);
  const error = errorOf(run) ?? (last && last.score !== null ? 1 - last.score : null);
  const kind = state.data.task === "classification" ? "held-out error" : "held-out 1 − R²";
  $("score").replaceChildren(error === null ? "…" : percent(error, 2), el("small", {}, kind));
  $("progress").textContent = progress(run, last);
  const notes = [...(run.result.notes ?? []), ...(run.status === "failed" ? [run.result.message] : [])];
  $("message").hidden = !notes.length;
  $("message").textContent = notes.join(" ");
  $("stop").hidden = run.status !== "running";
  $("save").hidden = $("python").hidden = !done;
  $("command").hidden = !done || !state.data.source;
  if (done) $("save").href = `/runs/${run.run}/model`;
}

function progress(run, last) {
  if (run.status === "waiting") return trainerText();
  if (run.status === "failed") return `Run ${run.run} failed.`;
  if (run.status === "done") return `Ended after ${run.epochs.length} ${run.epochs.length === 1 ? "epoch" : "epochs"}: ${run.result.message}.`;
  if (!last) return `Run ${run.run}: ${run.stage || "beginning"} …`;
  return `Run ${run.run}: epoch ${last.number}, held-out error ${last.score === null ? "–" : percent(1 - last.score, 2)} …`;
}

const trainerText = () => (state.trainer?.state === "ready" ? "Waiting for the run before to end …" : `${state.trainer?.note || "The training process is starting"} …`);

function banner(text) {
  $("banner").hidden = !text;
  $("banner").textContent = text;
}

const handlers = {
  state(data) {
    banner("");
    state.trainer = data.trainer;
    const isFirst = state.data === null;
    if (isFirst) begin(data.data);
    const details = new Map([...state.runs].map(([number, run]) => [number, run.details]));
    state.runs = new Map(data.runs.map((run) => [run.run, { ...run, details: details.get(run.run) ?? {} }]));
    const wanted = state.runs.has(state.shown) && !state.following ? state.shown : data.current ?? data.runs.at(-1)?.run ?? null;
    if (wanted !== null) {
      const run = state.runs.get(wanted);
      run.details = {};  // what came while the connection was lost is not here
      state.shown = wanted;
      if (isFirst) controls.show(run.settings);
      attempt(async () => { mergeFetched(await send("GET", `/runs/${wanted}`)); draw(); });
    }
    trainer();
    draw();
  },
  run(run) {
    const isNew = !state.runs.has(run.run);
    merge(run);
    if (run.status === "running") performance.mark("mercer-started");
    if ((isNew && state.following) || state.wanted === run.run) { state.wanted = null; state.shown = run.run; }
    draw();
  },
  stage({ run, stage }) { const one = state.runs.get(run); if (one) { one.stage = stage; draw(); } },
  epoch({ run, epoch }) {
    const one = state.runs.get(run);
    if (!one) return;
    if (epoch.number === 1) one.epochs = [];
    one.epochs.push(epoch);
    if (epoch.number === 1 && run === state.shown) {
      performance.mark("mercer-epoch");
    }
    draw();
  },
  detail({ run, part, data }) {
    const one = state.runs.get(run);
    if (!one) return;
    one.details[part] = data;
    if (part === "held_out") one.score = data.score;
    draw();
  },
  found({ run, settings }) {
    const one = state.runs.get(run);
    if (!one) return;
    one.settings = settings;
    if (run === state.shown) controls.show(settings);
    draw();
  },
  removed({ run }) {
    state.runs.delete(run);
    if (state.shown === run && state.runs.size) show([...state.runs.keys()].at(-1));
    draw();
  },
  trainer(data) { state.trainer = data; trainer(); draw(); },
};

function trainer() {
  banner(state.trainer.state === "ready" || !state.trainer.note ? "" : state.trainer.note);
}

function begin(data) {
  state.data = data;
  document.title = `${data.title} – mercer explore`;
  $("title").textContent = data.title;
  $("about").textContent = `${data.task === "classification" ? "Classes" : "Values"} of ${data.target} from ${count(data.fields.length)} columns; ${count(data.n_rows)} rows to train on, ${count(data.n_held_out)} held out`;
  controls.begin(data);
  cards = makeCards(data, table, {});
  $("cards").replaceChildren(...cards.map((card) => card.element));
}

let source = null;
function connect() {
  source = new EventSource("/events");
  for (const [event, handler] of Object.entries(handlers)) source.addEventListener(event, (message) => handler(JSON.parse(message.data)));
  source.addEventListener("error", () => {
    banner("The connection to mercer explore is lost. Trying again …");
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 2000);
  });
}

$("stop").addEventListener("click", () => attempt(() => send("POST", "/stop")));
for (const kind of ["python", "command"]) {
  $(kind).addEventListener("click", () => attempt(async () => {
    const { result } = await send("GET", `/runs/${state.shown}`);
    await copy(result[kind]);
  }));
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    announce("Copied.");
  } catch {
    $("text").value = text;
    $("text-dialog").showModal();
    $("text").select();
  }
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { for (const card of cards) card.forget(); draw(); });
connect();
