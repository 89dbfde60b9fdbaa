"use strict";
/* One image at a time: boundary band, masks, and where a layer lost its activations. */
function gallery() {
  const items = DATA.gallery;
  if (!items.length) return;
  const shown = DATA.methods.filter((m) => items[0].masks[m.id]);
  const quantized = shown.filter((m) => items[0].zeroed[m.id]);
  let at = 0, method = (quantized[0] ?? shown.at(-1)).id;
  const choice = $("image-choice"), layer = $("image-layer"), band = $("show-band");
  options(choice, items.map((item, i) => [String(i), item.name]));

  function layers() {
    const before = layer.value, names = Object.keys(items[at].zeroed[method] ?? {});
    options(layer, names.map((n) => [n, n]), names.includes(before) ? before : names[0]);
    layer.disabled = !names.length;
  }

  function draw() {
    const item = items[at], lost = item.zeroed[method]?.[layer.value];
    choice.value = String(at);
    const score = (id) => (item.scores[id] === undefined ? "" : `, S ${number(item.scores[id], 3)}`);
    const overlay = band.checked ? [picture(item.band, "boundary band", "pixels overlay")] : [];
    const tiles = [
      tile(item, "image" + (band.checked ? " with boundary band" : ""), "image", picture(item.image, item.name), ...overlay),
      tile(item, "ground truth", "truth", picture(item.truth, "ground truth")),
    ];
    if (item.masks.fp32 && method !== "fp32") tiles.push(tile(item, `FP32${score("fp32")}`, "float", picture(item.masks.fp32, "mask of FP32")));
    tiles.push(tile(item, `${titleOf(method)}${score(method)}`, "mask", picture(item.masks[method], `mask of ${titleOf(method)}`)));
    if (lost) {
      tiles.push(tile(item, `lost in ${layer.value}: ${number(100 * lost.mean, 1)} % on average`, "heat",
        picture(item.image, item.name, "dim"), picture(lost.uri, `share of channels zeroed in ${layer.value}`, "pixels heat"), ...(band.checked ? [picture(item.outline, "rim of the object", "pixels")] : [])));
    }
    $("tiles").replaceChildren(...tiles);
    $("image-note").textContent = `Image ${at + 1} of ${items.length}: ${item.name}`;
  }

  function go(index) { at = (index + items.length) % items.length; layers(); draw(); }
  $("previous").addEventListener("click", () => go(at - 1));
  $("next").addEventListener("click", () => go(at + 1));
  choice.addEventListener("change", () => go(Number(choice.value)));
  layer.addEventListener("change", draw);
  band.addEventListener("change", draw);
  buttonSwitch($("image-method"), quantized.map((m) => [m.id, m.title]), method, (id) => { method = id; layers(); draw(); });
  $("tiles").setAttribute("tabindex", "0");
  $("tiles").addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (move) { event.preventDefault(); go(at + move); }
  });
  layers();
  draw();
}

const picture = (src, alt, style) => el("img", { src, alt, class: style });

function tile(item, caption, kind, ...pictures) {
  return el("figure", { "data-kind": kind },
    el("div", { class: "tile", style: `--ratio: ${item.ratio}` }, ...pictures), el("figcaption", {}, caption));
}
