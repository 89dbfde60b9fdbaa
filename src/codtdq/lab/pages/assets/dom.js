"use strict";
/* Small helpers: elements, numbers, the page's data. */
const DATA = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);

function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") node.addEventListener("click", value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

/* Digits that matter: fixed ones where a column asks for them, else four significant. */
function number(value, digits) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (digits !== undefined && digits !== null) return value.toFixed(digits);
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e4 || size < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(3)));
}

const colour = (index) => `var(--c${index === 0 ? 0 : 1 + (index - 1) % 6})`;
const DASHES = ["", "6 3", "2 3", "8 3 2 3"];
const dash = (index) => DASHES[index % DASHES.length];

function options(select, items, chosen) {
  select.replaceChildren(...items.map(([value, label]) => el("option", { value }, label)));
  if (chosen !== undefined) select.value = chosen;
}

/* A row of buttons of which one is pressed. */
function buttonSwitch(box, items, chosen, onchange) {
  const buttons = items.map(([value, label]) =>
    el("button", { type: "button", "data-value": value, onclick: () => press(value) }, label));
  box.append(...buttons);
  function press(value, quiet) {
    for (const b of buttons) b.setAttribute("aria-pressed", String(b.dataset.value === value));
    if (!quiet) onchange(value);
  }
  press(chosen, true);
  return press;
}

function copyButton(button, source) {
  button.addEventListener("click", async () => {
    const range = document.createRange();
    range.selectNodeContents(source);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    let copied = false;
    try { await navigator.clipboard.writeText(source.textContent); copied = true; } catch { copied = false; }
    button.textContent = copied ? "Copied" : "Selected";
  });
}

/* Say below a box that it scrolls sideways, while there is more on its right. */
function watchWidth() {
  for (const cue of document.querySelectorAll(".cue")) {
    const box = cue.previousElementSibling;
    const look = () => { cue.hidden = box.scrollWidth - box.clientWidth - box.scrollLeft < 4; };
    new ResizeObserver(look).observe(box);
    new ResizeObserver(look).observe(box.firstElementChild);
    box.addEventListener("scroll", look, { passive: true });
  }
}
watchWidth();
