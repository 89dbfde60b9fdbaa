// The page: pictures in, masks drawn. The worker computes.
const PROGRAM = "vit.codtdq"; // beside this page
const TINT = [255, 106, 0], STRENGTH = 0.6;
const $ = (id) => document.getElementById(id);
const worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
const waiting = new Map();
let number = 0, ready = false, shown = null;

worker.onmessage = ({ data: { id, result, error } }) => {
  const { resolve, reject } = waiting.get(id);
  waiting.delete(id);
  if (error === undefined) resolve(result);
  else reject(new Error(error));
};
worker.onerror = () => say("The engine did not start: this browser has no module workers.", true);

function ask(kind, rest, transfer = []) {
  return new Promise((resolve, reject) => {
    waiting.set(++number, { resolve, reject });
    worker.postMessage({ id: number, kind, ...rest }, transfer);
  });
}

function say(text, bad = false) {
  $("status").textContent = text;
  $("status").classList.toggle("error", bad);
}

// One thing at a time: what is asked meanwhile would wait for it.
async function busy(work) {
  const controls = document.querySelectorAll("#samples button, input[type=file]");
  for (const one of controls) one.disabled = true;
  try {
    await work();
  } catch (error) {
    say(error.message, true);
  }
  for (const one of controls) one.disabled = false;
}

const mebibytes = (bytes) => `${(bytes / 2 ** 20).toFixed(1)} MiB`;

async function openProgram(data) {
  const bytes = data.byteLength;
  say("Checking and unpacking the network.");
  const { info, shape, weightBytes, set, milliseconds } = await ask("open", { data }, [data]);
  const [, , height, width] = shape.input;
  $("network").textContent =
    `${info.model}, ${info.method}: ${mebibytes(bytes)}, input ${height} x ${width}, opened in ` +
    `${Math.round(milliseconds)} ms. In memory: weights ${mebibytes(weightBytes)}, a run ` +
    `${mebibytes(shape.arenaBytes)}. Instruction set: ${set}, one thread.`;
  ready = true;
  say("Ready: choose a picture.");
}

async function fetchProgram() {
  say("Loading the network.");
  const answer = await fetch(PROGRAM);
  if (!answer.ok)
    throw new Error(
      `${PROGRAM} is not beside this page; open a program file below, or write it: ` +
        `codtdq export vit-cod-w4a4 --to program --out ${PROGRAM}`,
    );
  await openProgram(await answer.arrayBuffer());
}

async function pixelsOf(blob) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(blob, { colorSpaceConversion: "none" });
  } catch {
    throw new Error("This file is no picture that the browser reads.");
  }
  const { width, height } = bitmap;
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0);
  bitmap.close();
  return context.getImageData(0, 0, width, height);
}

async function segment(blob, name) {
  if (!ready) throw new Error("No network is open; open a program file below.");
  say("Looking.");
  const photo = await pixelsOf(blob);
  const { data: rgba, width, height } = photo;
  const { mask, milliseconds } = await ask("predict", { rgba, height, width });
  shown = { photo, mask };
  $("result").hidden = false;
  $("time").textContent = `${Math.round(milliseconds)} ms`;
  $("size").textContent = `${width} x ${height} pixels`;
  const found = mask.reduce((count, value) => count + (value >= 128), 0);
  $("share").textContent = `found: ${((100 * found) / mask.length).toFixed(1)} %`;
  await offerMask(name);
  draw();
  say("Done.");
}

// Pixels of the picture or the mask, or both: what was found is tinted.
function painted(view) {
  const { photo, mask } = shown, made = new ImageData(photo.width, photo.height);
  const from = photo.data, to = made.data;
  for (let i = 0; i < mask.length; i++) {
    const part = view === "overlay" ? (STRENGTH * mask[i]) / 255 : 0;
    for (let c = 0; c < 3; c++)
      to[4 * i + c] =
        view === "mask" ? mask[i] : from[4 * i + c] * (1 - part) + TINT[c] * part;
    to[4 * i + 3] = 255;
  }
  return made;
}

function put(canvas, image) {
  canvas.width = image.width;
  canvas.height = image.height;
  canvas.getContext("2d").putImageData(image, 0, 0);
}

function draw() {
  put($("view"), painted(document.querySelector("#views input:checked").value));
}

async function offerMask(name) {
  const canvas = document.createElement("canvas");
  put(canvas, painted("mask"));
  const file = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  const link = $("save");
  if (link.href) URL.revokeObjectURL(link.href);
  link.href = URL.createObjectURL(file);
  link.download = `${name.replace(/^.*\/|\.[^.]*$/g, "")}-mask.png`;
}

$("views").onchange = draw;
$("file").onchange = ({ target }) => {
  const [file] = target.files;
  if (file) busy(() => segment(file, file.name)).then(() => (target.value = ""));
};
$("program").onchange = ({ target }) => {
  const [file] = target.files;
  if (file)
    busy(async () => openProgram(await file.arrayBuffer())).then(() => (target.value = ""));
};
$("samples").onclick = ({ target }) => {
  const name = target.closest("button")?.dataset.file;
  if (name) busy(async () => segment(await (await fetch(name)).blob(), name));
};
for (const kind of ["dragover", "dragleave", "drop"])
  $("drop").addEventListener(kind, (event) => {
    event.preventDefault();
    $("drop").classList.toggle("over", kind === "dragover");
    const [file] = kind === "drop" ? event.dataTransfer.files : [];
    if (file && !$("file").disabled) busy(() => segment(file, file.name));
  });
busy(fetchProgram);
