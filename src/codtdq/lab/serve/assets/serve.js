"use strict";
// The page keeps the chosen picture itself; the server keeps nothing between two requests.

const METHODS = ["fp32", "w4a4", "cod-tdq", "cod-tdq-plus"];
const PATIENCE = 120; // times that a busy or preparing server is asked again
const $ = (id) => document.getElementById(id);

let picture = null; // {blob, url, name} of the chosen picture
let turn = 0; // answers of an earlier choice are dropped
let known = {}; // method -> what /models says
let limits = { bytes: Infinity, pixels: Infinity };
let layers = [];

const wait = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));

function make(tag, fields = {}, ...children) {
  const element = Object.assign(document.createElement(tag), fields);
  element.append(...children);
  return element;
}

function say(id, text, bad = false) {
  $(id).textContent = text;
  $(id).className = bad ? "error" : "";
}

// Sends the picture; a server that is busy or preparing is asked again after the time it names.
async function ask(path, mine, tell) {
  for (let tries = 0; ; tries += 1) {
    const answer = await fetch(path, {
      method: "POST", body: picture.blob, headers: { "Content-Type": "application/octet-stream" },
    });
    if (answer.ok) return answer;
    const { error } = await answer.json().catch(() => ({ error: `the server answers ${answer.status}; try again later` }));
    if (answer.status !== 503 || tries === PATIENCE || mine !== turn) throw new Error(error);
    tell(error);
    await wait(Number(answer.headers.get("Retry-After")) || 2);
    if (mine !== turn) throw new Error("another picture was chosen");
  }
}

async function choose(blob, name) {
  turn += 1;
  const mine = turn;
  if (picture) URL.revokeObjectURL(picture.url);
  picture = { blob, name, url: URL.createObjectURL(blob) };
  $("results").hidden = true;
  $("lost").hidden = true;
  $("lost-view").hidden = true;
  $("layer-field").hidden = true;
  say("lost-status", "");
  $("cards").replaceChildren();
  const shown = new Image();
  shown.src = picture.url;
  try {
    await shown.decode();
  } catch {
    if (mine === turn) say("status", `${name}: this browser cannot show it; choose a JPEG, PNG or WebP.`, true);
    return;
  }
  if (mine !== turn) return;
  const large = tooLarge(blob, shown);
  if (large) {
    say("status", `${name}: ${large}; scale it down.`, true);
    return;
  }
  $("results").hidden = false;
  const cards = METHODS.map((method) => card(method));
  $("cards").replaceChildren(...cards.map((one) => one.element));
  wipe();
  let failed = 0;
  for (const one of cards) {
    say("status", `${name}: computing ${one.title} ...`);
    try {
      const answer = await ask(`predict?method=${one.method}`, mine, (text) => one.say(text));
      const { masks: [found] } = await answer.json();
      if (mine !== turn) return;
      one.fill(found);
    } catch (error) {
      if (mine !== turn) return;
      one.say(error.message, true);
      failed += 1;
    }
  }
  if (failed) say("status", `${name}: ${failed} of ${cards.length} masks could not be computed.`, true);
  else say("status", `${name}: done.`);
  $("lost").hidden = failed === cards.length;
}

// Why the server would refuse a picture, before it is sent.
function tooLarge(blob, shown) {
  const pixels = shown.naturalWidth * shown.naturalHeight;
  if (blob.size > limits.bytes) return `${(blob.size / 2 ** 20).toFixed(1)} MiB, at most ${mebibytes()} are taken`;
  if (pixels > limits.pixels) return `${(pixels / 1e6).toFixed(1)} megapixels, at most ${megapixels()} are taken`;
  return null;
}

const mebibytes = () => Math.round(limits.bytes / 2 ** 20);
const megapixels = () => Math.round(limits.pixels / 1e6);

function card(method) {
  const title = known[method] ? known[method].title : method;
  const note = make("p", { className: "how", textContent: "waiting ..." });
  const view = make("div", { className: "view" }, make("img", { src: picture.url, alt: "The photograph" }));
  const body = make("div", {}, make("h3", { textContent: title }), note);
  const element = make("article", { className: "card" }, view, body);
  element.dataset.method = method;
  return {
    method, title, element,
    say: (text, bad) => { note.textContent = text; note.className = bad ? "error" : "how"; },
    fill: (found) => {
      const data = `data:image/png;base64,${found.png}`;
      view.append(
        make("img", { className: "mask", src: data, alt: `Mask of ${title}: ${Math.round(100 * found.covered)} % of the picture` }),
        make("i"),
      );
      drag(view);
      const facts = make("div", { className: "facts" },
        make("span", { textContent: `${Math.round(found.milliseconds)} ms` }),
        make("span", { textContent: `${found.mib.toFixed(1)} MiB` }));
      const saves = make("div", { className: "saves" },
        save("Mask", `Download the mask of ${title}`, method, "mask", data),
        save("Cut-out", `Download the cut-out of ${title}`, method, "cutout"));
      note.textContent = found.execution;
      body.insertBefore(facts, note);
      body.append(saves);
      wipe();
    },
  };
}

// A button that downloads: the mask that is there already, or the cut-out, which the server draws.
function save(text, label, method, kind, there = null) {
  const button = make("button", { type: "button", textContent: text });
  button.setAttribute("aria-label", label);
  button.addEventListener("click", async () => {
    const name = `${kind}-${method}.png`;
    if (there) { download(there, name); return; }
    button.disabled = true;
    try {
      const answer = await ask(`predict?method=${method}&output=${kind}`, turn, (busy) => say("status", busy));
      const url = URL.createObjectURL(await answer.blob());
      download(url, name);
      setTimeout(() => URL.revokeObjectURL(url), 10000);
      say("status", `${name} is ready.`);
    } catch (error) {
      say("status", error.message, true);
    }
    button.disabled = false;
  });
  return button;
}

function download(url, name) {
  const link = make("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
}

function wipe() {
  const part = Number($("wipe").value);
  for (const view of document.querySelectorAll(".view")) {
    const mask = view.querySelector(".mask");
    if (!mask) continue;
    mask.style.clipPath = `inset(0 ${100 - part}% 0 0)`;
    view.querySelector("i").style.left = `${part}%`;
  }
}

// The slider serves the keyboard; a pointer may also drag on any of the pictures.
function drag(view) {
  const move = (event) => {
    const box = view.getBoundingClientRect();
    $("wipe").value = Math.min(100, Math.max(0, (100 * (event.clientX - box.left)) / box.width));
    wipe();
  };
  view.addEventListener("pointerdown", (event) => { view.setPointerCapture(event.pointerId); move(event); });
  view.addEventListener("pointermove", (event) => { if (view.hasPointerCapture(event.pointerId)) move(event); });
}

async function measure() {
  const mine = turn, method = $("lost-method").value;
  $("lost-run").disabled = true;
  say("lost-status", "Measuring every layer; the first time takes longer ...");
  try {
    const answer = await ask(`evidence?method=${method}`, mine, (text) => say("lost-status", text));
    const found = await answer.json();
    if (mine === turn) showLayers(found.layers, method);
  } catch (error) {
    if (mine === turn) say("lost-status", error.message, true);
  }
  $("lost-run").disabled = false;
}

function showLayers(found, method) {
  layers = found;
  const worst = layers.reduce((best, one, at) => (one.zero_mass > layers[best].zero_mass ? at : best), 0);
  $("layer").replaceChildren(...layers.map((one, at) => make("option", { value: at, textContent: one.layer })));
  $("bars").replaceChildren(...layers.map((one, at) => {
    const filled = make("i");
    filled.style.width = `${100 * one.zero_mass}%`;
    const button = make("button", { type: "button" },
      make("span", { textContent: `\u200e${one.layer}`, title: one.layer }),
      make("i", {}, filled),
      make("b", { textContent: `${Math.round(100 * one.zero_mass)} %` }));
    button.addEventListener("click", () => pick(at));
    return button;
  }));
  $("layer-field").hidden = false;
  $("lost-view").hidden = false;
  say("lost-status", `${known[method].title}: ${layers.length} layers; the one that loses most is shown first.`);
  pick(worst);
}

const STOPS = [[0, 0, 4], [87, 16, 110], [188, 55, 84], [249, 142, 9], [252, 255, 164]];

function colour(value) {
  const at = (value / 255) * (STOPS.length - 1), low = Math.min(Math.floor(at), STOPS.length - 2);
  return STOPS[low].map((part, i) => part + (at - low) * (STOPS[low + 1][i] - part));
}

// Scrolls a list, and only the list, until an entry is in sight.
function reveal(list, entry) {
  const seen = list.getBoundingClientRect(), box = entry.getBoundingClientRect();
  if (box.top < seen.top || box.bottom > seen.bottom) list.scrollTop += box.top - seen.top - seen.height / 2;
}

async function pick(at) {
  const one = layers[at];
  $("layer").value = at;
  [...$("bars").children].forEach((button, i) => button.setAttribute("aria-pressed", i === at));
  reveal($("bars"), $("bars").children[at]);
  $("heat-caption").textContent = `${one.layer}: ${(100 * one.zero_mass).toFixed(1)} % of its non-zero inputs became zero.`;
  const map = new Image(), photo = new Image();
  map.src = `data:image/png;base64,${one.png}`;
  photo.src = picture.url;
  await Promise.all([map.decode(), photo.decode()]);
  const small = make("canvas", { width: map.width, height: map.height });
  const pen = small.getContext("2d");
  pen.drawImage(map, 0, 0);
  const pixels = pen.getImageData(0, 0, map.width, map.height);
  for (let i = 0; i < pixels.data.length; i += 4) pixels.data.set(colour(pixels.data[i]), i);
  pen.putImageData(pixels, 0, 0);
  const heat = $("heat"), width = Math.min(900, photo.naturalWidth);
  heat.width = width;
  heat.height = Math.round((width * photo.naturalHeight) / photo.naturalWidth);
  const canvas = heat.getContext("2d");
  canvas.filter = "grayscale(1)";
  canvas.drawImage(photo, 0, 0, heat.width, heat.height);
  canvas.filter = "none";
  canvas.globalAlpha = 0.72;
  canvas.imageSmoothingEnabled = false;
  canvas.drawImage(small, 0, 0, heat.width, heat.height);
  canvas.globalAlpha = 1;
}

async function start() {
  const answer = await (await fetch("models")).json();
  known = Object.fromEntries(answer.methods.map((one) => [one.method, one]));
  limits = answer.limits;
  $("model").textContent = `${answer.model} on this server`;
  $("limits").textContent = `JPEG, PNG, WebP; up to ${mebibytes()} MiB and ${megapixels()} megapixels`;
  $("lost-method").replaceChildren(...METHODS.slice(1).map((one) => make("option", { value: one, textContent: known[one].title })));
  $("samples").replaceChildren(...answer.samples.map((name, at) => {
    const button = make("button", { type: "button" }, make("img", { src: `samples/${at}`, alt: "" }), make("span", { textContent: name }));
    button.addEventListener("click", async () => choose(await (await fetch(`samples/${at}`)).blob(), name));
    return button;
  }));
}

function accept(files) {
  if (files.length) choose(files[0], files[0].name);
}

$("file").addEventListener("change", () => { accept($("file").files); $("file").value = ""; });
$("wipe").addEventListener("input", wipe);
$("lost-run").addEventListener("click", measure);
$("layer").addEventListener("change", () => pick(Number($("layer").value)));
for (const name of ["dragenter", "dragover"]) {
  document.addEventListener(name, (event) => { event.preventDefault(); $("drop").classList.add("over"); });
}
for (const name of ["dragleave", "drop"]) {
  document.addEventListener(name, (event) => { event.preventDefault(); $("drop").classList.remove("over"); });
}
document.addEventListener("drop", (event) => accept(event.dataTransfer.files));
start().catch((error) => say("status", `The server does not answer (${error.message}).`, true));
