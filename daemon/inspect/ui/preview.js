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
  g.strokeStyle = g.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--hue-1");
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
    $("p-what").textContent = (o.name || o.published || o.id) + ", " + bytes(o.size_bytes) + ". " + show(o, buffer) + ".";
  } catch (e) {
    if (previewed?.id === id) $("p-what").textContent = e.message;
  }
};
const close = () => {
  $("preview").hidden = true;
  if (previewed?.back?.isConnected) previewed.back.focus();
  previewed = null;
};
