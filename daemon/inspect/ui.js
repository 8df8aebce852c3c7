"use strict";
(() => {
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
    return (i ? n.toFixed(1) : n) + " " + units[i];
  };
  const when = t => t && !t.startsWith("0001") ? new Date(t).toLocaleString() : "";
  const short = id => (id || "").slice(0, 12);
  const make = (tag, text, cls) => {
    const e = document.createElement(tag);
    if (text !== undefined) e.textContent = text;   // text only: names are chosen by strangers
    if (cls) e.className = cls;
    return e;
  };
  // A column: its title, its text, its class, and what it is sorted by where that is not its text.
  const columns = {
    nodes: [["Name", x => x.name + (x.self ? " (this one)" : "")], ["Role", x => x.leader ? "leader" : x.voter ? "voter" : "member"], ["Addresses", x => (x.client_addresses || []).join(", ")], ["Version", x => x.version], ["Joined", x => when(x.joined)], ["ID", x => short(x.id)]],
    devices: [["Name", x => x.name], ["Type", x => x.type], ["Memory", x => bytes(x.memory_bytes), "n"], ["Units", x => x.compute_units, "n"], ["Sessions", x => x.sessions, "n"], ["Driver", x => x.driver], ["Node", x => short(x.node)]],
    sessions: [["Program", x => x.program], ["Tenant", x => x.tenant], ["From", x => x.peer || "pid " + x.pid], ["Transport", x => x.transport], ["Devices", x => (x.devices || []).join(", ")], ["Memory", x => bytes(x.bytes), "n"], ["Since", x => when(x.started)]],
    objects: [["Name", x => x.name || "–"], ["Size", x => bytes(x.size_bytes), "n", x => x.size_bytes], ["State", x => x.state], ["Class", x => x.class], ["Kind", x => x.kind], ["Refs", x => x.refs, "n", x => x.refs], ["Tenant", x => x.tenant], ["Created", x => when(x.created), "", x => x.created], ["ID", x => short(x.id)]],
  };
  let sorted = asked.get("sort") || "";
  const inOrder = items => {
    const down = sorted.startsWith("-"), column = columns.objects.find(c => c[0].toLowerCase() === sorted.replace("-", ""));
    if (!column) return items;
    const of = column[3] || column[1], way = down ? -1 : 1;
    return [...items].sort((a, b) => { const x = of(a), y = of(b); return x < y ? -way : x > y ? way : 0; });
  };
  const sortable = (th, title) => {
    const key = title.toLowerCase(), up = sorted === key, b = make("button", title + (up ? " ▲" : sorted === "-" + key ? " ▼" : ""));
    b.type = "button";
    b.dataset.key = "sort-" + key;
    th.ariaSort = up ? "ascending" : sorted === "-" + key ? "descending" : "none";
    b.addEventListener("click", () => { sorted = up ? "-" + key : key; objects(); });
    th.replaceChildren(b);
  };
  const table = (name, items) => {
    if (!items.length) return make("p", "None.", "empty");
    const t = make("table"), head = t.createTHead().insertRow(), body = t.createTBody();
    for (const [title, , cls] of columns[name]) {
      const th = make("th", title, cls);
      th.scope = "col";
      if (name === "objects") sortable(th, title);
      head.append(th);
    }
    for (const item of items) {
      const row = body.insertRow();
      columns[name].forEach(([, value, cls], i) => {
        const cell = make(i ? "td" : "th", String(value(item) ?? ""), cls);
        if (!i) cell.scope = "row";
        if (name === "objects" && !i) {
          const b = make("button", cell.textContent);
          b.type = "button";
          b.title = "Preview";
          b.dataset.key = "object-" + item.id;
          b.addEventListener("click", () => preview(item.id));
          cell.replaceChildren(b);
        }
        row.append(cell);
      });
    }
    return t;
  };
  // put replaces what an element holds, and leaves the keyboard where it was.
  const put = (e, child) => {
    const key = e.contains(document.activeElement) && document.activeElement.dataset.key;
    e.replaceChildren(child);
    if (key) [...e.querySelectorAll("button")].find(b => b.dataset.key === key)?.focus();
  };
  const overview = s => {
    const pairs = [["Version", s.version], ["Started", when(s.started)], ["Objects", s.objects], ["Sessions", s.sessions], ["Workers", s.workers], ["Store", bytes(s.used_bytes) + " of " + bytes(s.capacity_bytes)]];
    const out = pairs.map(([k, v]) => { const d = make("div"); d.append(make("dt", k), make("dd", String(v ?? ""))); return d; });
    const meter = make("meter");
    meter.max = s.capacity_bytes || 1; meter.value = s.used_bytes || 0; meter.high = meter.max * .9;
    meter.setAttribute("aria-label", "store in use");
    out[5].append(meter);
    for (const note of s.notes || []) { const d = make("div"); d.append(make("dt", "Note"), make("dd", note)); out.push(d); }
    return out;
  };
  // The map: a block for each segment, as wide as it is large; the colour is its tenant's, the shade its state.
  const shades = { "in use": 1, sealed: .75, session: .55, idle: .35, leaving: .2 };
  const stateOf = g => g.leaving ? "leaving" : g.idle ? "idle" : g.session ? "session" : g.sealed ? "sealed" : "in use";
  const hues = ["#0b6b53", "#2f6fb7", "#b0622a", "#8347a8", "#a8324c", "#6d7a1f", "#1f7f8c", "#7d5b3f"];
  const map = (list, more) => {
    const c = $("map"), g = c.getContext("2d"), rows = 4, tall = c.height / rows;
    const total = list.reduce((n, x) => n + x.bytes, 0) || 1, tenants = new Map();
    g.clearRect(0, 0, c.width, c.height);
    let at = 0;
    for (const x of [...list].sort((a, b) => a.tenant < b.tenant ? -1 : a.tenant > b.tenant ? 1 : 0)) {
      const sums = tenants.get(x.tenant) || { hue: hues[tenants.size % hues.length], states: {} }, state = stateOf(x);
      tenants.set(x.tenant, sums);
      sums.states[state] = (sums.states[state] || 0) + x.bytes;
      g.fillStyle = sums.hue; g.globalAlpha = shades[state];
      const end = at + x.bytes / total * rows * c.width;
      for (let from = at; from < end;) { // a block may go on in the next row
        const row = Math.floor(from / c.width + 1e-9), to = Math.min(end, (row + 1) * c.width);
        if (row >= rows || to <= from) break;
        g.fillRect(from - row * c.width, row * tall, Math.max(to - from - 1, .5), tall - 2);
        from = to;
      }
      at = end;
    }
    g.globalAlpha = 1;
    $("legend").replaceChildren(...[...tenants].map(([name, sums]) => {
      const li = make("li"), svg = document.createElementNS("http:" + "//www.w3.org/2000/svg", "svg"), box = document.createElementNS(svg.namespaceURI, "rect");
      box.setAttribute("width", "100%"); box.setAttribute("height", "100%"); box.setAttribute("fill", sums.hue);
      svg.setAttribute("aria-hidden", "true");
      svg.append(box);
      li.append(svg, (name || "kept ready") + ": " + Object.entries(sums.states).map(([s, n]) => bytes(n) + " " + s).join(", "));
      return li;
    }));
    $("c-map").textContent = list.length + (more ? " segments and more" : " segments");
  };
  const ask = async (path, headers) => {
    const r = await fetch(path, { headers: { ...headers, ...(token && { Authorization: "Bearer " + token }) }, cache: "no-store" });
    if (r.ok) return r;
    const body = await r.json();
    throw new Error(body.detail + " – " + body.next);
  };
  const get = async path => (await ask(path)).json();
  const say = (text, bad) => {
    if ($("state").textContent !== text) $("state").textContent = text;
    $("state").className = bad ? "bad" : "";
  };

  // Objects: a page at a time; places has the beginnings of the pages before this one.
  let places = [""], page = { items: [] };
  $("prefix").value = asked.get("prefix") || ""; $("ostate").value = asked.get("state") || ""; $("tenant").value = asked.get("tenant") || "";
  const objectsPath = () => {
    const q = new URLSearchParams({ limit: 100 });
    for (const [k, v] of [["prefix", $("prefix").value], ["state", $("ostate").value], ["tenant", $("tenant").value], ["after", places.at(-1)]]) if (v) q.set(k, v);
    return "/v1/objects?" + q;
  };
  const objects = () => {
    put($("objects"), table("objects", inOrder(page.items)));
    $("c-objects").textContent = page.items.length + (page.next || places.length > 1 ? ", page " + places.length : "");
    $("on").disabled = !page.next; $("back").disabled = places.length < 2;
  };
  const turn = on => {
    if (on && page.next) places.push(page.next);
    else if (!on && places.length > 1) places.pop();
    else return;
    refresh();
  };

  // Previews look at the first 256 KiB. Pictures are drawn from pixels: nothing that an object holds becomes markup.
  const readers = { u1: "getUint8", i1: "getInt8", u2: "getUint16", i2: "getInt16", u4: "getUint32", i4: "getInt32", f4: "getFloat32", f8: "getFloat64" };
  const numbers = (buffer, dtype) => {
    const read = readers[dtype.slice(1)], size = +dtype.slice(2), view = new DataView(buffer), out = [];
    for (let at = 0; read && at + size <= buffer.byteLength && out.length < 1 << 18; at += size) out.push(view[read](at, dtype[0] !== ">"));
    return out;
  };
  const draw = (what, paint) => {
    const c = $("p-canvas");
    c.hidden = false;
    c.setAttribute("aria-label", what);
    const g = c.getContext("2d");
    g.clearRect(0, 0, c.width, c.height);
    g.strokeStyle = g.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--accent");
    paint(g, c.width, c.height);
    return what;
  };
  const range = list => { let lo = Infinity, hi = -Infinity; for (const x of list) if (Number.isFinite(x)) { lo = Math.min(lo, x); hi = Math.max(hi, x); } return lo <= hi ? [lo, hi] : [0, 0]; };
  const line = list => {
    const [lo, hi] = range(list);
    return draw("Line of " + list.length + " values, " + lo + " to " + hi, (g, w, h) => {
      g.beginPath();
      list.forEach((x, i) => g.lineTo(i / Math.max(list.length - 1, 1) * w, h - 2 - (x - lo) / (hi - lo || 1) * (h - 4)));
      g.stroke();
    });
  };
  const histogram = list => {
    const [lo, hi] = range(list), bins = new Array(64).fill(0);
    for (const x of list) if (Number.isFinite(x)) bins[Math.min(63, Math.floor((x - lo) / (hi - lo || 1) * 64))]++;
    const most = Math.max(...bins, 1);
    return draw("Histogram of " + list.length + " values, " + lo + " to " + hi, (g, w, h) =>
      bins.forEach((n, i) => g.fillRect(i * w / 64, h - n / most * h, w / 64 - 1, n / most * h)));
  };
  const picture = (list, tall, wide, deep) => draw("Image of " + wide + " × " + tall + " pixels", (g, w, h) => {
    const [lo, hi] = range(list), bytesAlready = lo >= 0 && hi <= 255 && hi > 1, shown = Math.min(tall, Math.floor(list.length / (wide * deep)));
    const whole = document.createElement("canvas"), level = x => bytesAlready ? x : (x - lo) / (hi - lo || 1) * 255;
    if (!shown) return;
    whole.width = wide; whole.height = shown;
    const data = new ImageData(wide, shown);
    for (let i = 0; i < wide * shown; i++) for (let k = 0; k < 4; k++) data.data[i * 4 + k] = k === 3 ? (deep === 4 ? level(list[i * 4 + 3]) : 255) : level(list[i * deep + (deep > 1 ? k : 0)]);
    whole.getContext("2d").putImageData(data, 0, 0);
    const scale = Math.min(w / wide, h / shown);
    g.imageSmoothingEnabled = scale < 1;
    g.drawImage(whole, 0, 0, wide * scale, shown * scale);
  });
  const dump = buffer => {
    const b = new Uint8Array(buffer, 0, Math.min(buffer.byteLength, 512)), text = new TextDecoder().decode(b);
    $("p-text").hidden = false;
    $("p-text").textContent = /[\u0000-\u0008\u000e-\u001f\ufffd]/.test(text) ? [...b].map((x, i) => x.toString(16).padStart(2, "0") + (i % 16 === 15 ? "\n" : " ")).join("") : text;
    return "The first " + b.length + " bytes";
  };
  const show = (o, buffer) => {
    const { dtype, shape, strides } = o.meta || {};
    if (typeof dtype !== "string" || !/^[<>|=][uif][1248]$/.test(dtype) || !readers[dtype.slice(1)] || !Array.isArray(shape) || !shape.every(n => Number.isInteger(n) && n > 0)) return dump(buffer);
    const list = numbers(buffer, dtype), [a, b, c] = shape;
    if (shape.length === 1) return line(list);
    if (!strides && b <= 4096 && b > 1 && (shape.length === 2 || shape.length === 3 && (c === 1 || c === 3 || c === 4))) return picture(list, a, b, c || 1);
    return histogram(list);
  };
  let previewed = null;
  const preview = async id => {
    const back = previewed ? previewed.back : document.activeElement;
    previewed = { id, back };
    $("preview").hidden = false; $("p-canvas").hidden = $("p-text").hidden = true;
    $("p-what").textContent = "Reading…";
    $("preview").focus();
    try {
      const o = await get("/v1/objects/" + encodeURIComponent(id));
      const buffer = o.size_bytes ? await (await ask("/v1/objects/" + encodeURIComponent(id) + "/data", { Range: "bytes=0-262143" })).arrayBuffer() : new ArrayBuffer(0);
      if (previewed?.id !== id) return;
      $("p-what").textContent = (o.name || o.id) + ", " + bytes(o.size_bytes) + ". " + show(o, buffer) + ".";
    } catch (e) {
      if (previewed?.id === id) $("p-what").textContent = e.message;
    }
  };
  const close = () => {
    $("preview").hidden = true;
    if (previewed?.back?.isConnected) previewed.back.focus();
    previewed = null;
  };

  let paused = false, timer, round = 0;
  const refresh = async () => {
    clearTimeout(timer);
    const mine = ++round;
    try {
      const [status, segments, objectPage, ...lists] = await Promise.all(["/v1/status", "/v1/segments?limit=1000", objectsPath(), "/v1/nodes", "/v1/devices", "/v1/sessions"].map(get));
      if (mine !== round) return; // somebody turned the page meanwhile
      $("node").textContent = status.name;
      document.title = status.name + " – Tendril";
      $("overview").replaceChildren(...overview(status));
      map(segments.items, segments.next);
      page = objectPage;
      objects();
      ["nodes", "devices", "sessions"].forEach((name, i) => {
        put($(name), table(name, lists[i].items));
        $("c-" + name).textContent = lists[i].items.length + (lists[i].next ? " and more" : "");
      });
      say(paused ? "Paused" : "Live", false);
    } catch (e) {
      if (mine !== round) return;
      say(e instanceof TypeError ? "The node does not answer. Trying again." : e.message, true);
    }
    if (!paused && !document.hidden) timer = setTimeout(refresh, 2000);
  };
  $("pause").addEventListener("click", () => {
    paused = !paused;
    $("pause").setAttribute("aria-pressed", paused);
    if (paused) { clearTimeout(timer); say("Paused", false); } else refresh();
  });
  $("filter").addEventListener("submit", e => { e.preventDefault(); places = [""]; refresh(); });
  $("on").addEventListener("click", () => turn(true));
  $("back").addEventListener("click", () => turn(false));
  $("p-close").addEventListener("click", close);
  document.addEventListener("keydown", e => {
    if (e.key === "Escape" && !$("preview").hidden) { close(); return; }
    if (e.ctrlKey || e.altKey || e.metaKey || /^(INPUT|SELECT)$/.test(document.activeElement?.tagName)) return;
    if (e.key === "/") { e.preventDefault(); $("prefix").focus(); }
    if (e.key === "n") turn(true);
    if (e.key === "p") turn(false);
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden && !paused) refresh(); });
  refresh().then(() => { if (asked.get("object")) preview(asked.get("object")); });
})();
