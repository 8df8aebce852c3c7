// The page itself: what is asked, when, and where it goes.
const columns = {
  nodes: [["Name", x => x.name + (x.self ? " (this one)" : "")], ["Role", x => x.leader ? "leader" : x.voter ? "voter" : "member"], ["Addresses", x => (x.client_addresses || []).join(", ")], ["Version", x => x.version], ["Joined", x => when(x.joined)], ["ID", x => short(x.id)]],
  devices: [["Name", x => x.name], ["Type", x => x.type], ["Memory", x => bytes(x.memory_bytes), "n"], ["Units", x => x.compute_units, "n"], ["Leased to", x => x.owner || "–"], ["Driver", x => x.driver], ["Node", x => nodeName(x.node)]],
  links: [["With", x => x.name || x.with], ["Kind", x => x.kind], ["Goes over", x => (x.up ? "" : "lost: ") + x.transport], ["Bandwidth", x => x.bytes_per_second ? bytes(x.bytes_per_second) + "/s" : "–", "n"], ["One way", x => x.latency_seconds ? duration(x.latency_seconds) : "–", "n"], ["Why not better", x => x.why || "nothing better is needed"]],
  sessions: [["Program", x => x.program], ["Tenant", x => x.tenant], ["From", x => x.peer || "pid " + x.pid], ["Goes over", x => x.transport], ["Workers", x => (x.workers || []).length, "n"], ["Runs for", x => since(x.started), "n"]],
  flying: [["State", x => x.state], ["Kind", x => x.kind], ["Kernel", x => x.kernel || "–"], ["Age", x => duration(x.age_seconds), "n"], ["Queue", x => x.queue, "n"], ["Device", x => x.device ? deviceName(x.device) : "a sub-device"]],
  calls: [["Call", x => x.what], ["For", x => duration(x.seconds), "n"], ["Worker", x => x.worker, "n"], ["PID", x => x.pid, "n"]],
  sums: [["Kind", x => x.kind], ["Kernel", x => x.kernel || "–"], ["Count", x => count(x.count), "n"], ["Failed", x => x.failed, "n"], ["Timed", x => count(x.timed), "n"], ["Time", x => duration(x.seconds), "n"]],
  ended: [["Kind", x => x.kind], ["Kernel", x => x.kernel || "–"], ["Status", x => x.status || "ok"], ["Took", x => duration(x.seconds), "n"], ["Ago", x => duration(x.ago_seconds), "n"]],
  workers: [["Platform", x => x.platform], ["State", x => x.state], ["Session", x => x.session || "–"], ["Device memory", x => bytes(x.device_bytes), "n"], ["PID", x => x.pid, "n"], ["Runs for", x => since(x.started), "n"]],
  leases: [["Tenant", x => x.tenant], ["Program", x => x.holder || "–"], ["Devices", x => x.count + ": " + (x.devices || []).map(d => deviceName(d)).join(", ")], ["State", x => x.place ? "waits, place " + x.place : "has them"], ["For", x => since(x.since), "n"], ["Until", x => when(x.until) || "its program ends"]],
  streams: [["Name", x => x.name], ["Tenant", x => x.tenant], ["State", x => x.state], ["Frames", x => x.frames + " of " + x.frames_at_most, "n"], ["Pushed", x => count(x.pushed), "n"], ["Popped", x => count(x.popped), "n"], ["Dropped", x => count(x.dropped), "n"], ["Who waits", x => x.waiting_writers ? x.waiting_writers + " writers" : x.waiting_readers ? x.waiting_readers + " readers" : "–"]],
  names: [["Name", x => x.name], ["Tenant", x => x.tenant], ["Size", x => bytes(x.size_bytes), "n"], ["On", x => (x.replicas || []).map(nodeName).join(", ")], ["Published", x => when(x.created)]],
  members: [["Node", x => nodeName(x.id)], ["Address", x => x.address], ["Votes", x => x.voter ? "yes" : "no"]],
  config: [["Setting", x => x.key], ["Value", x => x.value || "–"], ["From", x => x.origin]],
  objects: [["Name", x => calledName(x), "", x => x.name || x.published || ""], ["Size", x => bytes(x.size_bytes), "n", x => x.size_bytes], ["State", x => x.state], ["Class", x => x.class], ["Kind", x => x.kind], ["Refs", x => x.refs, "n", x => x.refs], ["Tenant", x => x.tenant], ["Created", x => when(x.created), "", x => x.created], ["ID", x => short(x.id)]],
};
let nodes = [], devices = [];
const calledName = x => x.name || (x.published ? (x.cached ? "copy of " : "replica of ") + x.published : "–");
const nodeName = id => nodes.find(n => n.id === id)?.name || short(id);
// What a node keeps for others, such as replicas that it is being sent, is its own tenant's.
const tenantName = tenant => tenant.startsWith("node:") ? "node " + nodeName(tenant.slice(5)) : tenant;
const deviceName = id => devices.find(d => d.uuid === id)?.name || short(id);

// Objects: a page at a time; places has the beginnings of the pages before this one, starts how many are before each.
let places = [""], starts = [0], page = { items: [] }, sorted = asked.get("sort") || "";
$("prefix").value = asked.get("prefix") || ""; $("ostate").value = asked.get("state") || ""; $("tenant").value = asked.get("tenant") || "";
const objectsPath = () => {
  const q = new URLSearchParams({ limit: 100 });
  for (const [k, v] of [["prefix", $("prefix").value], ["state", $("ostate").value], ["tenant", $("tenant").value], ["after", places.at(-1)]]) if (v) q.set(k, v);
  return "/v1/objects?" + q;
};
const inOrder = items => {
  const down = sorted.startsWith("-"), column = columns.objects.find(c => c[0].toLowerCase() === sorted.replace("-", ""));
  if (!column) return items;
  const of = column[3] || column[1], way = down ? -1 : 1;
  return [...items].sort((a, b) => { const x = of(a), y = of(b); return x < y ? -way : x > y ? way : 0; });
};
const sortable = (th, title) => {
  const name = title.toLowerCase(), up = sorted === name, b = make("button", title + (up ? " ▲" : sorted === "-" + name ? " ▼" : ""));
  b.type = "button";
  b.dataset.key = "sort-" + name;
  th.ariaSort = up ? "ascending" : sorted === "-" + name ? "descending" : "none";
  b.addEventListener("click", () => { sorted = up ? "-" + name : name; objects(); });
  th.replaceChildren(b);
};
const opens = (cell, o) => {
  const b = make("button", cell.textContent);
  b.type = "button";
  b.title = "Preview";
  b.dataset.key = "object-" + o.id;
  b.addEventListener("click", () => preview(o.id));
  cell.replaceChildren(b);
};
// howMany says which objects these are, and of how many: a filter's are not counted.
const howMany = (before, here) => {
  if (!page.next && !before) return count(here);
  const these = here ? count(before + 1) + "–" + count(before + here) : "none here";
  return these + (page.total ? " of " + count(page.total) : page.next ? " and more" : "");
};
const objects = () => {
  put($("objects"), table(columns.objects, inOrder(page.items), { head: sortable, first: opens, none: "No such objects." }));
  $("c-objects").textContent = howMany(starts.at(-1), page.items.length);
  $("on").disabled = !page.next; $("back").disabled = places.length < 2;
};
const turn = on => {
  if (on && page.next) { places.push(page.next); starts.push(starts.at(-1) + page.items.length); }
  else if (!on && places.length > 1) { places.pop(); starts.pop(); }
  else return;
  refresh();
};

// One session's commands: its workers are asked for them only while somebody looks.
let session = null, commanding = false;
const commands = async () => {
  if (!session || session.over || commanding) return;
  const { id } = session;
  commanding = true;
  try {
    const c = await get("/v1/sessions/" + encodeURIComponent(id) + "/commands");
    if (session?.id === id) {
      put($("x-notes"), ...c.notes.map(n => make("li", n)));
      put($("flying"), table(columns.flying, c.in_flight, { none: "Nothing is in flight." }));
      $("c-flying").textContent = c.more ? c.in_flight.length + " and " + count(c.more) + " more" : "";
      $("x-calls").hidden = !c.calls.length;
      put($("calls"), table(columns.calls, c.calls));
      put($("sums"), table(columns.sums, c.sums, { none: "Nothing has ended yet." }));
      put($("ended"), table(columns.ended, c.last, { none: "Nothing has ended since somebody looked." }));
    }
  } catch (e) {
    if (session?.id === id) put($("x-notes"), make("li", e.message));
  }
  commanding = false;
};
const openSession = x => {
  session = { id: x.id, back: document.activeElement };
  $("h-session").firstChild.textContent = "Session " + x.id + ": " + x.program + " ";
  for (const part of ["x-notes", "flying", "calls", "sums", "ended"]) put($(part));
  $("session").hidden = false;
  $("session").focus();
  commands();
};
const closeSession = () => {
  $("session").hidden = true;
  const b = [...$("sessions").querySelectorAll("button")].find(b => b.dataset.key === "session-" + session?.id);
  session = null;
  b?.focus();
};
// overWith asks no more for a session that a list has not.
const overWith = list => {
  if (!session || list.next || list.items.some(x => x.id === session.id)) return;
  session.over = true;
  put($("x-notes"), make("li", "The session has ended."));
};
const opensSession = (cell, x) => {
  const b = make("button", cell.textContent);
  b.type = "button";
  b.title = "What it does";
  b.dataset.key = "session-" + x.id;
  b.addEventListener("click", () => openSession(x));
  cell.replaceChildren(b);
};

// The parts of the page, in the order in which they are asked for: objects and the overview first.
const overview = s => {
  put($("overview"), ...facts([["Version", s.version], ["Runs for", since(s.started)], ["Objects", count(s.objects)], ["Sessions", s.sessions], ["Workers", s.workers], ["Store", bytes(s.used_bytes) + " of " + bytes(s.capacity_bytes)]]));
  const notes = s.notes || [];
  $("without").hidden = !notes.length;
  put($("notes"), ...notes.map(n => make("li", n)));
};
let segments = [], links = [];
const drawCluster = () => put($("cluster"), ...cluster(nodes, devices, links));
const drawMemory = () => memory(segments, $("by").value);
const all = {
  "/v1/status": s => { $("node").textContent = s.name; document.title = s.name + " – Tendril"; status = s; overview(s); },
  objects: p => { page = p; objects(); if (!painted) { painted = true; performance.mark("objects"); } }, // make bench asks for the mark
  "/v1/nodes": p => { nodes = p.items; drawCluster(); put($("nodes"), table(columns.nodes, nodes)); $("c-nodes").textContent = nodes.length; },
  "/v1/devices": p => { devices = p.items; drawCluster(); put($("devices"), table(columns.devices, devices, { none: "No device. tendril doctor says why." })); $("c-devices").textContent = devices.length; },
  "/v1/links": p => { links = p.items; drawCluster(); put($("links"), table(columns.links, p.items, { none: "No link: this node is alone, and no program runs." })); $("c-links").textContent = p.items.length + (p.next ? " and more" : ""); },
  "/v1/segments?limit=1000": p => {
    segments = p.items;
    $("c-map").textContent = segments.length + (p.next ? " segments and more" : segments.length === 1 ? " segment" : " segments");
    const sums = new Map();
    for (const g of segments) sums.set(g.tenant, (sums.get(g.tenant) || 0) + g.bytes);
    put($("charged"), bar([...sums].sort((a, b) => b[1] - a[1]), status?.capacity_bytes || 1));
    drawMemory();
  },
  "/v1/sessions": p => { put($("sessions"), table(columns.sessions, p.items, { first: opensSession })); overWith(p); $("c-sessions").textContent = p.items.length + (p.next ? " and more" : ""); },
  "/v1/workers": p => put($("workers"), table(columns.workers, p.items)),
  "/v1/leases": p => { put($("leases"), table(columns.leases, p.items)); $("c-leases").textContent = p.items.length + (p.next ? " and more" : ""); },
  "/v1/streams": p => { put($("streams"), table(columns.streams, p.items)); $("c-streams").textContent = p.items.length + (p.next ? " and more" : ""); },
  "/v1/names": p => { put($("names"), table(columns.names, p.items)); $("c-names").textContent = p.items.length + (p.next ? " and more" : ""); },
  "/v1/raft": r => {
    put($("raft"), ...facts([["State", r.state.toLowerCase()], ["Leader", nodeName(r.leader) || "none"], ["Term", r.term], ["Applied", r.applied_index + " of " + r.commit_index], ["Snapshot", r.snapshot_index], ["Log", r.log_store], ["Fault", r.fault || ""]]));
    put($("members"), table(columns.members, r.members || []));
  },
  "/v1/history": h => put($("past"), ...past(h)),
};
let status = null, painted = false;
const seldom = { "/v1/history": 20, "/v1/raft": 5, "/v1/names": 5 }; // seconds between two askings
const askedAt = {};
const due = path => !askedAt[path] || Date.now() - askedAt[path] >= (seldom[path] || 0) * 1000;

const say = (text, bad) => {
  if ($("state").textContent !== text) $("state").textContent = text;
  $("state").className = bad ? "bad" : "";
};
let paused = false, timer, round = 0, last = 0, live = false, busy = false, again = false;
const refresh = async () => {
  clearTimeout(timer);
  last = Date.now();
  busy = true; again = false;
  const mine = ++round, patience = setTimeout(() => stream?.abort(60000), 8000);
  try {
    // Two at a time: a browser has six connections to a place, and the stream of events keeps one.
    const paths = Object.keys(all).filter(due), next = async () => {
      for (let path; path = paths.shift();) {
        askedAt[path] = Date.now();
        const answer = await get(path === "objects" ? objectsPath() : path);
        if (mine !== round) { delete askedAt[path]; return; } // somebody turned the page meanwhile
        all[path](answer);
      }
    };
    await Promise.all([next(), next()]);
    commands(); // nobody waits for it: a worker may hang
    if (mine === round) say(paused ? "Paused" : live ? "Live" : "Live, asking every 5 s", false);
  } catch (e) {
    if (mine === round) say(e instanceof TypeError ? "The node does not answer. Trying again." : e.message, true);
  }
  clearTimeout(patience);
  if (mine !== round) return; // a later one goes on
  busy = false;
  if (!paused && !document.hidden) timer = setTimeout(refresh, again ? 500 : 5000);
};
// soon refreshes because something has changed: at most once in half a second.
const soon = () => {
  if (paused || document.hidden) return;
  if (busy) { again = true; return; }
  clearTimeout(timer);
  timer = setTimeout(refresh, Math.max(0, 500 - (Date.now() - last)));
};

// Events come over a stream that this reads itself: the browser's own EventSource sends no key.
const eventText = { object: e => `object ${e.name || short(e.id)} ${e.change}` + (e.size_bytes ? ", " + bytes(e.size_bytes) : ""), name: e => `name ${e.name} ${e.change}`, session: e => `session of ${e.name} ${e.change}`, lease: e => `lease ${e.id} ${e.change}`, cluster: e => `node ${e.name} ${e.change}`, missed: () => "some events were missed: what is shown is asked for anew" };
const shownEvents = 100;
let place = "", fresh = [], stream;
const tell = (kind, e) => {
  fresh.push([e.at ? new Date(e.at) : new Date(), kind, (eventText[kind] || (() => kind))(e), e.tenant || ""]);
  if (fresh.length > shownEvents) fresh.shift();
  soon();
};
const showEvents = () => {
  if (!fresh.length) return;
  const list = $("events");
  if (list.firstElementChild?.className === "empty") list.replaceChildren();
  for (const [at, kind, text, tenant] of fresh.splice(0)) {
    const li = make("li");
    li.append(make("time", at.toLocaleTimeString()), make("span", kind, "kind " + kind), make("span", text), make("span", tenant, "count"));
    list.prepend(li);
  }
  while (list.children.length > shownEvents) list.lastElementChild.remove();
};
// A browser has six connections to a place, and all its tabs share them: a page that is hidden gives its stream up, and
// so does one that gets no answers beside it.
const follow = async () => {
  if (stream || document.hidden) return;
  const own = stream = new AbortController();
  let pause = 1000;
  own.signal.addEventListener("abort", () => { pause = own.signal.reason; });
  try {
    const r = await ask("/v1/events", place ? { "Last-Event-ID": place } : {}, own.signal), reader = r.body.pipeThrough(new TextDecoderStream()).getReader();
    live = true;
    say(paused ? "Paused" : "Live", false);
    for (let text = ""; ;) {
      const { value, done } = await reader.read();
      if (done) break;
      const blocks = (text + value).split("\n\n");
      text = blocks.pop();
      for (const block of blocks) {
        const fields = new Map(block.split("\n").map(l => [l.slice(0, l.indexOf(":")), l.slice(l.indexOf(":") + 2)]));
        if (fields.get("id")) place = fields.get("id");
        if (fields.get("event")) tell(fields.get("event"), JSON.parse(fields.get("data")));
      }
      if (!paused) showEvents();
    }
  } catch (e) {
    if (e instanceof Refused && (e.status === 401 || e.status === 403)) pause = 0;
  }
  live = false;
  stream = undefined;
  if (pause) setTimeout(follow, pause);
};

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", paused);
  if (paused) { clearTimeout(timer); say("Paused", false); } else { showEvents(); refresh(); }
});
$("filter").addEventListener("submit", e => { e.preventDefault(); places = [""]; starts = [0]; refresh(); });
$("on").addEventListener("click", () => turn(true));
$("back").addEventListener("click", () => turn(false));
$("p-close").addEventListener("click", close);
$("x-close").addEventListener("click", closeSession);
$("settings").addEventListener("toggle", async () => { // only its owner may see it: asked for when somebody wants it
  if (!$("settings").open) return;
  try { put($("config"), table(columns.config, (await get("/v1/config")).items)); } catch (e) { put($("config"), make("p", e.message, "empty")); }
});
$("by").addEventListener("change", drawMemory);
$("map").addEventListener("mousemove", under);
addEventListener("resize", drawMemory);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawMemory);
document.addEventListener("keydown", e => {
  if (e.key === "Escape" && !$("preview").hidden) { close(); return; }
  if (e.key === "Escape" && session) { closeSession(); return; }
  if (e.ctrlKey || e.altKey || e.metaKey || /^(INPUT|SELECT)$/.test(document.activeElement?.tagName)) return;
  if (e.key === "/") { e.preventDefault(); $("prefix").focus(); }
  if (e.key === "n") turn(true);
  if (e.key === "p") turn(false);
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) { stream?.abort(0); return; }
  follow();
  if (!paused) refresh();
});
refresh().then(() => { if (asked.get("object")) preview(asked.get("object")); });
follow();
