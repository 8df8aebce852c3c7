// What the rest of the page is made of: elements, units, and questions to the node.
const $ = id => document.getElementById(id);
// The token comes in the fragment, which no request carries; it is taken out of the address at once. The fragment may
// also say what to show: prefix, state and tenant of objects, sort (a column; -column is downwards), object (an ID).
const asked = new URLSearchParams(location.hash.slice(1));
if (asked.get("token")) {
  sessionStorage.setItem("token", asked.get("token"));
  asked.delete("token");
  history.replaceState(null, "", location.pathname + (asked.size ? "#" + asked : ""));
}
const token = sessionStorage.getItem("token");

const bytes = n => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) { n /= 1024; i++; }
  return (i ? n.toFixed(n < 10 ? 2 : n < 100 ? 1 : 0) : Math.round(n)) + " " + units[i];
};
const count = n => n >= 1000 ? Math.round(n).toLocaleString("en") : String(Math.round(n * 10) / 10);
const counted = (n, what) => count(n) + " " + what + (n === 1 ? "" : "s");
const duration = s => s < 1e-3 ? (s * 1e6).toFixed(0) + " µs" : s < 1 ? (s * 1e3).toFixed(1) + " ms" : s < 120 ? s.toFixed(0) + " s"
  : s < 7200 ? (s / 60).toFixed(0) + " min" : s < 172800 ? (s / 3600).toFixed(0) + " h" : (s / 86400).toFixed(0) + " days";
const known = t => t && !t.startsWith("0001");
const when = t => known(t) ? new Date(t).toLocaleString() : "";
const since = t => known(t) ? duration(Math.max(0, (Date.now() - new Date(t)) / 1000)) : "";
const short = id => (id || "").slice(0, 12);

// make gives an element with text in it: text only, for names are chosen by strangers.
const make = (tag, text, cls) => {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  if (cls) e.className = cls;
  return e;
};
const drawn = (tag, attributes, text) => {
  const e = document.createElementNS("http:" + "//www.w3.org/2000/svg", tag);
  for (const [k, v] of Object.entries(attributes || {})) e.setAttribute(k, v);
  if (text !== undefined) e.textContent = text;
  return e;
};
// put replaces what an element holds, and leaves the keyboard where it was.
const put = (e, ...children) => {
  const key = e.contains(document.activeElement) && document.activeElement.dataset.key;
  e.replaceChildren(...children);
  if (key) [...e.querySelectorAll("button")].find(b => b.dataset.key === key)?.focus();
};
const facts = pairs => pairs.filter(([, v]) => v !== undefined && v !== "").map(([k, v, extra]) => {
  const d = make("div");
  d.append(make("dt", k), make("dd", String(v)));
  if (extra) d.append(extra);
  return d;
});
// table gives a table of things. A column: its title, its text, its class, and what it is sorted by where that is not
// its text. head(th, title, i) and first(cell, thing) may add to a heading and to a row's first cell.
const table = (columns, things, { head, first, none } = {}) => {
  if (!things.length) return make("p", none || "None.", "empty");
  const t = make("table"), top = t.createTHead().insertRow(), body = t.createTBody();
  for (const [title, , cls] of columns) {
    const th = make("th", title, cls);
    th.scope = "col";
    if (head) head(th, title);
    top.append(th);
  }
  for (const thing of things) {
    const row = body.insertRow();
    columns.forEach(([, value, cls], i) => {
      const cell = make(i ? "td" : "th", String(value(thing) ?? ""), cls);
      if (!i) cell.scope = "row";
      if (!i && first) first(cell, thing);
      if (cell.textContent.length > 40) cell.title = cell.textContent;
      row.append(cell);
    });
  }
  return t;
};

class Refused extends Error {
  constructor(status, problem) { super(problem.detail + " – " + problem.next); this.status = status; }
}
const ask = async (path, headers, signal) => {
  const r = await fetch(path, { headers: { ...headers, ...(token && { Authorization: "Bearer " + token }) }, cache: "no-store", signal });
  if (r.ok) return r;
  throw new Refused(r.status, await r.json());
};
const get = async path => (await ask(path)).json();

// Tenants have colours, which stay theirs as long as the page is open.
const hues = 8, hueOf = new Map();
const hue = tenant => {
  if (!tenant) return "none";
  if (!hueOf.has(tenant)) hueOf.set(tenant, hueOf.size % hues);
  return hueOf.get(tenant);
};
const colour = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const hueColour = tenant => colour("hue-" + hue(tenant));
const key = (cls, text) => {
  const li = make("li"), svg = drawn("svg", { "aria-hidden": "true", viewBox: "0 0 10 10" });
  svg.append(drawn("rect", { width: 10, height: 10, rx: 2, class: cls }));
  li.append(svg, text);
  return li;
};
