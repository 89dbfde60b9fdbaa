"use strict";
/* Line, step and scatter charts as SVG, drawn to the width at hand. */
const MARGIN = { left: 54, right: 12, top: 10, bottom: 36 };

function frame(box, height) {
  const width = Math.max(280, box.clientWidth || 600);
  const area = { width, height, x0: MARGIN.left, x1: width - MARGIN.right, y0: height - MARGIN.bottom, y1: MARGIN.top };
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  return { root, area };
}

function scale(low, high, from, to, log) {
  const f = log ? Math.log10 : (v) => v;
  if (!(high > low)) { high = log ? low * 10 : low + 1; }
  const a = f(low), b = f(high);
  const place = (v) => from + ((f(v) - a) / (b - a)) * (to - from);
  place.ticks = log ? logTicks(low, high) : linearTicks(low, high);
  return place;
}

function linearTicks(low, high) {
  const raw = (high - low) / 5, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(Number((i * step).toPrecision(6)));
  return ticks;
}

function logTicks(low, high) {
  const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
  if (last - first < 1) return [low, high];
  const every = Math.ceil((last - first + 1) / 6);
  return Array.from({ length: last - first + 1 }, (_, i) => first + i).filter((_, i) => i % every === 0).map((e) => 10 ** e);
}

function axes(root, area, x, y, labels) {
  for (const tick of y.ticks) {
    const at = y(tick);
    root.append(svg("line", { class: "gridline", x1: area.x0, x2: area.x1, y1: at, y2: at }),
      svg("text", { x: area.x0 - 6, y: at + 4, "text-anchor": "end" }, number(tick)));
  }
  const room = Math.max(2, Math.floor((area.x1 - area.x0) / 46));
  const every = Math.ceil(x.ticks.length / room);
  x.ticks.forEach((tick, i) => {
    if (i % every === 0) root.append(svg("text", { x: x(tick), y: area.y0 + 15, "text-anchor": "middle" }, number(tick)));
  });
  root.append(svg("line", { class: "axis", x1: area.x0, x2: area.x1, y1: area.y0, y2: area.y0 }),
    svg("text", { x: (area.x0 + area.x1) / 2, y: area.height - 4, "text-anchor": "middle" }, labels.x));
  root.append(svg("text", { x: 12, y: (area.y0 + area.y1) / 2, "text-anchor": "middle",
    transform: `rotate(-90 12 ${(area.y0 + area.y1) / 2})` }, labels.y));
}

function extent(values, log) {
  const known = values.filter((v) => v !== null && Number.isFinite(v) && (!log || v > 0));
  if (!known.length) return null;
  let low = known.reduce((a, b) => Math.min(a, b)), high = known.reduce((a, b) => Math.max(a, b));
  if (!log) { const pad = (high - low) * 0.04 || Math.abs(high) * 0.04 || 1; if (low !== 0) low -= pad; high += pad; }
  else if (low === high) { low /= 2; high *= 2; }
  return [low, high];
}

/* series: {label, index, points: [[x, y], ...]}; step: draw a histogram's outline. */
function lineChart(box, { series, x: xLabel, y: yLabel, log = false, logX = false, step = false, height = 260, name, onmove, onpick, limit }) {
  const ys = series.flatMap((s) => s.points.map((p) => p[1])).concat(limit?.y ?? []);
  const xs = series.flatMap((s) => s.points.map((p) => p[0])).concat(limit?.x ?? []);
  const ry = extent(ys, log), rx = extent(xs, logX);
  if (!ry || !rx) { box.replaceChildren(el("p", { class: "note" }, "No method measures this here.")); return; }
  const { root, area } = frame(box, height);
  const low = step ? 0 : ry[0];
  const x = scale(...rx, area.x0, area.x1, logX), y = scale(low, ry[1], area.y0, area.y1, log);
  axes(root, area, x, y, { x: xLabel, y: yLabel });
  for (const s of series) {
    let path = "", open = false, before = null;
    for (const [at0, py] of s.points) {
      const px = logX ? Math.max(at0, rx[0]) : at0; /* an edge at 0 has no place on this axis */
      if (py === null || (log && py <= 0)) { open = false; continue; }
      const at = `${x(px).toFixed(1)} ${y(py).toFixed(1)}`;
      if (open && step) path += `L${x(px).toFixed(1)} ${y(before).toFixed(1)}`;
      path += (open ? "L" : "M") + at;
      open = true; before = py;
    }
    root.append(svg("path", { d: path, fill: "none", stroke: colour(s.index), "stroke-width": 1.8, "stroke-dasharray": dash(s.index), "stroke-linejoin": "round" }));
  }
  if (limit?.x !== undefined) {
    root.append(svg("line", { class: "cursor", x1: x(limit.x), x2: x(limit.x), y1: area.y0, y2: area.y1 }),
      svg("text", { x: x(limit.x) + 4, y: area.y1 + 10 }, limit.label));
  }
  root.setAttribute("aria-label", name);
  if (onmove) follow(root, area, x, series[0].points.map((p) => p[0]), onmove, onpick);
  box.replaceChildren(root);
}

/* A cursor that follows the pointer and the arrow keys. */
function follow(root, area, x, places, onmove, onpick) {
  const line = svg("line", { class: "cursor", y1: area.y0, y2: area.y1, visibility: "hidden" });
  let at = 0;
  root.append(line);
  root.setAttribute("tabindex", "0");
  function go(index) {
    at = Math.min(places.length - 1, Math.max(0, index));
    const px = x(places[at]);
    line.setAttribute("x1", px); line.setAttribute("x2", px); line.setAttribute("visibility", "visible");
    onmove(places[at]);
  }
  root.addEventListener("pointermove", (event) => {
    const rect = root.getBoundingClientRect(), px = ((event.clientX - rect.left) / rect.width) * area.width;
    let best = 0;
    places.forEach((p, i) => { if (Math.abs(x(p) - px) < Math.abs(x(places[best]) - px)) best = i; });
    go(best);
  });
  root.addEventListener("click", () => onpick?.(places[at]));
  root.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (move) { event.preventDefault(); go(at + move); }
    else if (event.key === "Enter") onpick?.(places[at]);
  });
}

/* points: [x, y, label, index]; with the diagonal of no change. */
function scatterChart(box, { points, x: xLabel, y: yLabel, name, height = 400, onpick }) {
  if (!points.length) { box.replaceChildren(el("p", { class: "note" }, "No scores per image in these results.")); return; }
  const range = extent(points.flatMap((p) => [p[0], p[1]]), false);
  const { root, area } = frame(box, height);
  const x = scale(...range, area.x0, area.x1), y = scale(...range, area.y0, area.y1);
  axes(root, area, x, y, { x: xLabel, y: yLabel });
  root.append(svg("line", { class: "cursor", x1: x(range[0]), y1: y(range[0]), x2: x(range[1]), y2: y(range[1]) }));
  for (const [px, py, label, index] of points) {
    const mark = svg("circle", { cx: x(px).toFixed(1), cy: y(py).toFixed(1), r: 3.2, fill: colour(index), "fill-opacity": 0.6 });
    mark.append(svg("title", {}, label));
    mark.addEventListener("pointerenter", () => onpick?.(label));
    root.append(mark);
  }
  root.setAttribute("aria-label", name);
  box.replaceChildren(root);
}

/* With `ontoggle` the entries are buttons that hide and show their line; `dots`: as a scatter draws them. */
function legend(box, items, ontoggle, dots) {
  box.replaceChildren(...items.map(([label, index]) => {
    const line = svg("svg", { width: dots ? 10 : 26, height: 8, "aria-hidden": "true" }, dots
      ? svg("circle", { cx: 5, cy: 4, r: 3.2, fill: colour(index), "fill-opacity": 0.6 })
      : svg("line", { x1: 0, x2: 26, y1: 4, y2: 4, stroke: colour(index), "stroke-width": 2.4, "stroke-dasharray": dash(index) }));
    if (!ontoggle) return el("span", {}, line, ` ${label}`);
    const button = el("button", { type: "button", "aria-pressed": "true", "data-index": index }, line, ` ${label}`);
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(on));
      ontoggle(index, on);
    });
    return button;
  }));
}

/* Draw now and whenever the width changes. */
function keepDrawn(draw) {
  let width = innerWidth;
  draw();
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
}
