// Pictures: the cluster, memory, and the last hour.

// The cluster: this node on the left, the others on the right, and what the links between go over. As many nodes as
// can be told apart are drawn; the table has all.
const drawnNodes = 8;
const clip = (text, most) => text.length > most ? text.slice(0, most - 1) + "…" : text;
const nodeBox = (svg, n, devices, x, y, wide) => {
  const own = devices.filter(d => d.node === n.id), tall = 54 + 18 * Math.min(own.length, 3);
  const g = drawn("g", { transform: `translate(${x} ${y})` });
  g.append(drawn("rect", { width: wide, height: tall, rx: 8, class: "node" + (n.up === false ? " away" : "") }),
    drawn("text", { x: 12, y: 22, class: "name" }, clip(n.name, 28)),
    drawn("text", { x: 12, y: 41, class: "dim" }, (n.self ? "this node, " : "") + (n.leader ? "leader" : n.voter ? "voter" : "member") + (n.up === false ? ", does not answer" : "")));
  own.slice(0, 3).forEach((d, i) => g.append(
    drawn("rect", { x: 12, y: 50 + 18 * i, width: 8, height: 8, class: d.type === "gpu" ? "gpu" : "cpu" }),
    drawn("text", { x: 26, y: 58 + 18 * i, class: "dim" }, clip(d.name, 20) + ", " + bytes(d.memory_bytes) + (i === 2 && own.length > 3 ? " and " + (own.length - 3) + " more" : ""))));
  svg.append(g);
  return tall;
};
const cluster = (nodes, devices, links) => {
  const up = new Map(links.filter(l => l.kind === "node").map(l => [l.with, l]));
  const self = nodes.find(n => n.self), others = nodes.filter(n => !n.self).slice(0, drawnNodes);
  const wide = 250, gap = others.length ? 300 : 0, full = others.length ? 2 * wide + gap : wide + 8;
  const svg = drawn("svg", { role: "img", class: "cluster" + (others.length ? "" : " alone"), "aria-label": "The cluster: " + counted(nodes.length, "node") + ", " + counted(devices.length, "device") + "; the tables below say the same" });
  const lines = drawn("g");
  svg.append(lines);
  let y = 4;
  const ends = others.map(n => {
    const top = y, link = up.get(n.id), tall = nodeBox(svg, { ...n, up: link?.up }, devices, wide + gap - 4, y, wide);
    y += tall + 18;
    return { link, y: top + tall / 2 };
  });
  const own = devices.filter(d => d.node === self?.id).length, tallSelf = 54 + 18 * Math.min(own, 3), tall = Math.max(y - 14, tallSelf + 8);
  const from = { x: 4 + wide, y: tall / 2 };
  if (self) nodeBox(svg, self, devices, 4, tall / 2 - tallSelf / 2, wide);
  for (const e of ends) {
    const x = wide + gap - 4, middle = (from.x + x) / 2;
    lines.append(drawn("path", { class: "link" + (e.link?.up ? "" : " away"), d: `M${from.x} ${from.y} C${middle} ${from.y} ${middle} ${e.y} ${x} ${e.y}` }));
    const label = e.link ? [e.link.bytes_per_second ? bytes(e.link.bytes_per_second) + "/s" : "nothing came lately", e.link.latency_seconds ? duration(e.link.latency_seconds) : ""].filter(Boolean).join(", ") : "not known";
    lines.append(drawn("text", { x: x - 10, y: e.y - 8, class: "dim label", "text-anchor": "end" }, label));
  }
  svg.setAttribute("viewBox", `0 0 ${full} ${tall}`);
  if (nodes.length <= drawnNodes + 1) return [svg];
  return [svg, make("p", "and " + counted(nodes.length - drawnNodes - 1, "more node"), "empty")];
};

// Memory: a block for each segment, as wide as it is large.
const stateOf = g => g.leaving ? "leaving" : g.idle ? "idle" : g.sealed ? "sealed" : "in use";
const kindOf = g => g.session ? "an OpenCL program's" : g.idle ? "kept ready" : "objects'";
const classes = {
  tenant: g => ["hue-" + hue(g.tenant), g.tenant || "nobody's, kept ready"],
  kind: g => ["hue-" + { "objects'": 0, "an OpenCL program's": 1, "kept ready": 4 }[kindOf(g)], kindOf(g)],
  state: g => ["hue-" + { "in use": 0, sealed: 1, idle: 4, leaving: 2 }[stateOf(g)], stateOf(g)],
};
const dims = { "in use": 1, sealed: .85, idle: .45, leaving: .3 };
let blocks = [];
const memory = (list, by) => {
  const c = $("map"), scale = window.devicePixelRatio || 1, rows = 4;
  c.width = Math.max(1, Math.round(c.clientWidth * scale)); c.height = Math.max(1, Math.round(c.clientHeight * scale));
  const g = c.getContext("2d"), tall = c.height / rows, total = list.reduce((n, x) => n + x.bytes, 0) || 1, sums = new Map();
  const sorted = [...list].sort((a, b) => a.tenant < b.tenant ? -1 : a.tenant > b.tenant ? 1 : a.id - b.id);
  let at = 0;
  blocks = [];
  for (const x of sorted) {
    const [cls, name] = classes[by](x), sum = sums.get(name) || { cls, bytes: 0, states: {} }, state = stateOf(x);
    sums.set(name, sum);
    sum.bytes += x.bytes;
    sum.states[state] = (sum.states[state] || 0) + x.bytes;
    g.fillStyle = colour(cls); g.globalAlpha = by === "state" ? 1 : dims[state];
    const end = at + x.bytes / total * rows * c.width;
    for (let from = at; from < end - 1e-6;) { // a block may go on in the next row
      const row = Math.min(Math.floor(from / c.width + 1e-9), rows - 1), to = Math.min(end, (row + 1) * c.width);
      if (to <= from) break;
      const box = [from - row * c.width, row * tall, Math.max(to - from - scale, .5), tall - 2 * scale];
      g.fillRect(...box);
      blocks.push([...box.map(n => n / scale), x]);
      from = to;
    }
    at = end;
  }
  put($("legend"), ...[...sums].map(([name, s]) => key(s.cls, name + ": " + (by === "tenant" ? Object.entries(s.states).map(([state, n]) => bytes(n) + " " + state).join(", ") : bytes(s.bytes)))));
};
const under = e => {
  const hit = blocks.find(([x, y, w, h]) => e.offsetX >= x && e.offsetX < x + w + 1 && e.offsetY >= y && e.offsetY < y + h)?.[4];
  $("map").title = hit ? `Segment ${hit.id} of ${hit.tenant || "nobody"}: ${bytes(hit.bytes)}, ${bytes(hit.used_bytes)} used by ${counted(hit.objects, "object")}, ${stateOf(hit)}, ${counted(hit.readers, "connection")}` : "";
};
// The bar above it: what each tenant is charged of the capacity.
const bar = (tenants, capacity) => {
  const svg = drawn("svg", { viewBox: "0 0 1000 14", preserveAspectRatio: "none", role: "img", class: "bar", "aria-label": "Of " + bytes(capacity) + ": " + (tenants.map(([t, n]) => t + " " + bytes(n)).join(", ") || "nothing") });
  svg.append(drawn("rect", { width: 1000, height: 14, class: "track" }));
  let x = 0;
  for (const [tenant, n] of tenants) {
    const wide = Math.max(n / capacity * 1000, 1.5);
    svg.append(drawn("rect", { x, width: wide, height: 14, class: "hue-" + hue(tenant) }));
    x += wide;
  }
  return svg;
};

// The last hour: one small chart for each question. Layers are stacked where they are parts of one thing.
const chart = (title, unit, times, layers, stacked) => {
  const wide = 320, tall = 84, n = times.length, sums = new Array(n).fill(0);
  const tops = layers.map(l => l.values.map((v, i) => stacked ? sums[i] += v : v));
  const most = Math.max(...tops.flat(), 1e-9), text = unit === "bytes" ? bytes : count;
  const x = i => n > 1 ? i / (n - 1) * wide : wide, y = v => tall - 2 - v / most * (tall - 6);
  const now = stacked ? sums[n - 1] : layers.length === 1 ? layers[0].values[n - 1] : undefined;
  const figure = make("figure"), caption = make("figcaption", title + " ");
  caption.append(make("span", now === undefined || !n ? "" : text(now), "count"));
  const svg = drawn("svg", { viewBox: `0 0 ${wide} ${tall}`, preserveAspectRatio: "none", role: "img", "aria-label": title + ": " + layers.map(l => (l.label ? l.label + " " : "") + "now " + text(l.values[n - 1] || 0) + ", at most " + text(Math.max(...l.values, 0))).join("; ") });
  for (const v of [.5, 1]) svg.append(drawn("line", { x1: 0, x2: wide, y1: y(most * v), y2: y(most * v), class: "grid" }));
  layers.forEach((l, k) => {
    const line = tops[k].map((v, i) => x(i).toFixed(1) + " " + y(v).toFixed(1));
    if (n === 1) line.unshift("0 " + y(tops[k][0]).toFixed(1));
    if (stacked) {
      const base = k ? tops[k - 1].map((v, i) => x(i).toFixed(1) + " " + y(v).toFixed(1)) : [`0 ${tall}`, `${wide} ${tall}`];
      if (n === 1 && k) base.unshift("0 " + y(tops[k - 1][0]).toFixed(1));
      svg.append(drawn("path", { class: "area " + l.cls, d: "M" + line.join("L") + "L" + base.reverse().join("L") + "Z" }));
    } else svg.append(drawn("path", { class: "curve " + l.cls, d: "M" + line.join("L"), "vector-effect": "non-scaling-stroke" }));
  });
  figure.append(caption, svg, make("p", "at most " + text(most < 1e-6 ? 0 : most), "scale"));
  if (layers.length > 1) {
    const legend = make("ul", undefined, "legend");
    legend.append(...layers.map(l => key(l.cls, l.label)));
    figure.append(legend);
  }
  return figure;
};
const past = h => {
  const named = (name, by) => h.series.filter(s => s.name === name && (s.by || "") === (by || ""));
  const plain = (name, i) => named(name).map(s => ({ label: "", values: s.values, cls: "hue-" + i }));
  const kinds = named("memory_bytes", "kind").map((s, i) => ({ label: s.label, values: s.values, cls: "hue-" + i }));
  const tenants = named("charged_bytes", "tenant").slice(0, hues).map(s => ({ label: tenantName(s.label), values: s.values, cls: "hue-" + hue(s.label) }));
  return [
    chart("Memory by kind", "bytes", h.times, kinds, true), chart("Memory by tenant", "bytes", h.times, tenants, true),
    chart("Objects", "", h.times, plain("objects", 0)), chart("Requests a second", "", h.times, plain("requests_per_second", 1)),
    chart("Sessions", "", h.times, plain("sessions", 3)), chart("Device memory in use", "bytes", h.times, plain("device_bytes", 2)),
    chart("On disk", "bytes", h.times, plain("disk_bytes", 5)),
  ];
};
