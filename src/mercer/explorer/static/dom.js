// Elements and numbers.  Text of the data only ever becomes text nodes.

export const $ = (id) => document.getElementById(id);

/** An element with properties, attributes (names with a dash, role, for, scope) and children. */
export function el(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "class") element.className = value;
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key.includes("-") || ["role", "for", "scope", "colspan"].includes(key)) element.setAttribute(key, value);
    else element[key] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** A name of the data, apart from the direction of the text around it. */
export const name = (text) => el("bdi", { title: text }, text === "" ? "(no name)" : text);

export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e15 || size < 1e-4) return value.toExponential(Math.max(0, digits - 1)).replace("e+", "e").replace("-", "−");
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  return value.toLocaleString("en", { maximumFractionDigits: Math.min(decimals, 8) }).replace("-", "−");
}

export const count = (value) => Math.round(value).toLocaleString("en");
export const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`.replace("-", "−");
export const seconds = (value) => (value < 10 ? `${value.toFixed(2)} s` : `${value.toFixed(0)} s`);

export const colour = (variable) => getComputedStyle(document.documentElement).getPropertyValue(variable).trim();

/** Colours of runs that are compared: the palette of Okabe and Ito, without yellow. */
const DARK = ["#56B4E9", "#E69F00", "#3ecf9f", "#CC79A7", "#ff9d5c", "#b8c4ff", "#d8dee4"];
const LIGHT = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#444444"];
export const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;
export const runColour = (i) => (isDark() ? DARK : LIGHT)[i % LIGHT.length];

export async function send(method, address, body) {
  const answer = await fetch(address, {
    method,
    headers: body === undefined ? {} : { "Content-Type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const isJson = (answer.headers.get("Content-Type") ?? "").includes("json");
  const data = isJson ? await answer.json() : { error: await answer.text() };
  if (!answer.ok) throw new Error(data.error);
  return data;
}
