// Runs the network beside the page, which stays responsive meanwhile.
import { Engine } from "./codtdq.js";

const loading = fetch(new URL("codtdq.wasm", import.meta.url)).then(async (answer) => {
  if (!answer.ok) throw new Error("codtdq.wasm is not there; run make wasm");
  return Engine.load(await answer.arrayBuffer());
});
let network = null;

async function open({ data }) {
  const engine = await loading;
  const start = performance.now();
  const opened = engine.open(new Uint8Array(data)); // a file that is refused leaves the old network
  network?.close();
  network = opened;
  const { info, shapes, weightBytes } = network;
  const milliseconds = performance.now() - start;
  return { info, shape: shapes[0], weightBytes, set: engine.instructionSet, milliseconds };
}

function predict({ rgba, height, width }) {
  if (!network) throw new Error("no network is open");
  const rgb = new Uint8Array(3 * height * width);
  for (let from = 0, to = 0; to < rgb.length; from += 4, to += 3) {
    rgb[to] = rgba[from];
    rgb[to + 1] = rgba[from + 1];
    rgb[to + 2] = rgba[from + 2];
  }
  const start = performance.now();
  const mask = network.predict(rgb, height, width);
  return { mask, milliseconds: performance.now() - start };
}

onmessage = async ({ data: { id, kind, ...rest } }) => {
  try {
    postMessage({ id, result: await { open, predict }[kind](rest) });
  } catch (error) {
    postMessage({ id, error: error.message });
  }
};
