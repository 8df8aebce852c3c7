
"use strict";
(() => {
  const $ = id => document.getElementById(id);
  // The token comes in the fragment, which no request carries; it is taken out of the address at once.
  const found = new URLSearchParams(location.hash.slice(1)).get("token");
  if (found) {
    sessionStorage.setItem("token", found);
    history.replaceState(null, "", location.pathname);
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
  const columns = {
    nodes: [["Name", x => x.name + (x.self ? " (this one)" : "")], ["Role", x => x.leader ? "leader" : x.voter ? "voter" : "member"], ["Addresses", x => (x.client_addresses || []).join(", ")], ["Version", x => x.version], ["Joined", x => when(x.joined)], ["ID", x => short(x.id)]],
    devices: [["Name", x => x.name], ["Type", x => x.type], ["Memory", x => bytes(x.memory_bytes), "n"], ["Units", x => x.compute_units, "n"], ["Sessions", x => x.sessions, "n"], ["Driver", x => x.driver], ["Node", x => short(x.node)]],
    sessions: [["Program", x => x.program], ["Tenant", x => x.tenant], ["From", x => x.peer || "pid " + x.pid], ["Transport", x => x.transport], ["Devices", x => (x.devices || []).join(", ")], ["Memory", x => bytes(x.bytes), "n"], ["Since", x => when(x.started)]],
    objects: [["Name", x => x.name || "–"], ["Size", x => bytes(x.size_bytes), "n"], ["State", x => x.state], ["Class", x => x.class], ["Kind", x => x.kind], ["Refs", x => x.refs, "n"], ["Tenant", x => x.tenant], ["ID", x => short(x.id)]],
  };
  const table = (name, items) => {
    if (!items.length) return make("p", "None.", "empty");
    const t = make("table"), head = t.createTHead().insertRow(), body = t.createTBody();
    for (const [title, , cls] of columns[name]) {
      const th = make("th", title, cls);
      th.scope = "col";
      head.append(th);
    }
    for (const item of items) {
      const row = body.insertRow();
      columns[name].forEach(([, value, cls], i) => {
        const cell = make(i ? "td" : "th", String(value(item) ?? ""), cls);
        if (!i) cell.scope = "row";
        row.append(cell);
      });
    }
    return t;
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
  const get = async path => {
    const r = await fetch(path, { headers: token ? { Authorization: "Bearer " + token } : {}, cache: "no-store" });
    const body = await r.json();
    if (!r.ok) throw new Error(body.error + " – " + body.next);
    return body;
  };
  const say = (text, bad) => {
    if ($("state").textContent !== text) $("state").textContent = text;
    $("state").className = bad ? "bad" : "";
  };
  let paused = false, timer;
  const refresh = async () => {
    clearTimeout(timer);
    try {
      const [status, ...lists] = await Promise.all(["/v1/status", "/v1/nodes", "/v1/devices", "/v1/sessions", "/v1/objects"].map(get));
      $("node").textContent = status.name;
      document.title = status.name + " – Tendril";
      $("overview").replaceChildren(...overview(status));
      ["nodes", "devices", "sessions", "objects"].forEach((name, i) => {
        $(name).replaceChildren(table(name, lists[i].items));
        $("c-" + name).textContent = lists[i].items.length + (lists[i].next ? " and more" : "");
      });
      say("Live", false);
    } catch (e) {
      say(e instanceof TypeError ? "The node does not answer. Trying again." : e.message, true);
    }
    if (!paused && !document.hidden) timer = setTimeout(refresh, 2000);
  };
  $("pause").addEventListener("click", () => {
    paused = !paused;
    $("pause").setAttribute("aria-pressed", paused);
    if (paused) { clearTimeout(timer); say("Paused", false); } else refresh();
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden && !paused) refresh(); });
  refresh();
})();
