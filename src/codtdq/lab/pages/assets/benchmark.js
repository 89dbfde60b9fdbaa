"use strict";
/* The page of a benchmark: one choice of model, metric and filter drives all parts. */
const state = { scope: DATA.scopes[0], metric: "S" };
const mean = (values) => {
  const known = values.filter((v) => v !== null);
  return known.length && known.length === values.length ? known.reduce((a, b) => a + b) / known.length : null;
};
const better = (metric, a, b) => (metric === "MAE" ? a < b : a > b);
const short = (dataset) => dataset.replace(/^camosynth\/(test-)?/, "");

function scoreRows() {
  const { scope, metric } = state;
  const rows = scope.methods.map((m) => {
    const scores = m.scores[metric], row = { ...m, mean: mean(scores) };
    scores.forEach((score, i) => { row[`d${i}`] = score; });
    row.best = [];
    return row;
  });
  for (const key of ["mean", ...scope.datasets.map((_, i) => `d${i}`)]) {
    let top = null;
    for (const row of rows) {
      if (row.ranked && row[key] !== null && (top === null || better(metric, row[key], top))) top = row[key];
    }
    for (const row of rows) if (row.ranked && row[key] !== null && row[key] === top) row.best.push(key);
  }
  return rows;
}

function test() {
  const words = wordTest($("score-filter").value, ["title", "method", "bits", "granularity"]);
  const ranges = $("score-ranges").value, group = $("score-group").value;
  return (row) => words(row) && (!ranges || row.ranges === ranges) && (!group || row.group === group);
}

function drawScores() {
  const { scope, metric } = state;
  const columns = [
    { key: "title", label: "method", text: true, lead: true },
    { key: "mean", label: scope.datasets.length > 1 ? `mean ${metric}` : metric, digits: 3, title: DATA.metrics[metric] },
    ...(scope.datasets.length > 1 ? scope.datasets.map((d, i) => ({ key: `d${i}`, label: short(d), digits: 3, title: d })) : []),
    { key: "bits", label: "bits", text: true }, { key: "weight", label: "eff. W", digits: 2, title: "effective bits per weight" },
    { key: "activation", label: "eff. A", digits: 2, title: "effective bits per activation" },
    { key: "ranges", label: "ranges", text: true, title: "static: fixed by calibration; dynamic: from each input" },
    { key: "sqnr", label: "SQNR (dB)", digits: 1, title: "mean signal to noise of quantized inputs" },
  ];
  const sort = state.table?.sort ?? { key: "mean", down: true };
  state.table = new DataTable($("score-table"), columns, { sort: state.fresh ? { key: "mean", down: metric !== "MAE" } : sort });
  state.fresh = false;
  filterScores();
}

function filterScores() {
  const rows = scoreRows(), shown = state.table.show(rows, test());
  $("score-count").textContent = `${shown} of ${rows.length} methods`;
  drawBars();
}

function drawBars() {
  const { scope, metric } = state, index = Number($("split").value);
  const rows = scope.methods.filter(test()).map((m) => ({ ...m, value: m.scores[metric][index] }))
    .filter((m) => m.value !== null).sort((a, b) => (better(metric, a.value, b.value) ? -1 : 1));
  const float = scope.methods.find((m) => m.float)?.scores[metric][index] ?? null;
  const top = Math.max(metric === "MAE" ? 0 : 1, ...rows.map((r) => r.value), float ?? 0) || 1;
  $("bars").replaceChildren(...rows.flatMap((row) => {
    const fill = el("div", { class: `fill${row.float ? " float" : row.ours ? " ours" : ""}`, style: `width: ${(100 * row.value / top).toFixed(2)}%` });
    const track = el("div", { class: "track", "aria-hidden": "true" }, fill);
    if (float !== null) track.append(el("div", { class: "line", style: `left: ${(100 * float / top).toFixed(2)}%` }));
    return [el("div", { class: "name", title: row.title }, row.title), track, el("div", { class: "value" }, number(row.value, 3))];
  }));
  $("split-legend").replaceChildren(...[["var(--c1)", "published and naive"], ["var(--c2)", "COD-TDQ and its ablations"], ["var(--c0)", "FP32"]]
    .map(([paint, label]) => el("span", {}, el("span", { class: "swatch", style: `background: ${paint}; height: 10px` }), label)));
}

function drawScatter() {
  const { scope } = state, id = $("scatter-method").value;
  const method = scope.methods.find((m) => m.id === id);
  const points = [], found = [];
  let worse = 0;
  scope.datasets.forEach((dataset, i) => {
    const images = scope.images[dataset], own = images?.scores[id], float = images?.scores.fp32;
    if (!own || !float) return;
    found.push([short(dataset), i + 1]);
    own.forEach((score, k) => {
      worse += score < float[k];
      points.push([float[k], score, `${images.names[k]}: FP32 ${number(float[k], 3)}, ${method.title} ${number(score, 3)}`, i + 1]);
    });
  });
  const label = method?.title ?? "";
  scatterChart($("scatter"), { points, x: "S under FP32", y: `S under ${label}`, name: `S per image, FP32 against ${label}`,
    onpick: (text) => { $("scatter-reading").textContent = text; } });
  legend($("scatter-legend"), found, undefined, true);
  $("scatter-reading").textContent = points.length ? `${worse} of ${points.length} images score lower than under FP32.` : "";
}

function drawMethods() {
  const columns = [
    { key: "title", label: "method", text: true, lead: true }, { key: "group", label: "group", text: true },
    { key: "bits", label: "bits", text: true }, { key: "ranges", label: "ranges", text: true },
    { key: "granularity", label: "granularity", text: true }, { key: "calibration", label: "calibration images", digits: 0 },
    { key: "gradients", label: "gradients", text: true }, { key: "reconstructs", label: "reconstructs", text: true },
    { key: "seeds", label: "seeds", digits: 0 }, { key: "failed", label: "failed cells", digits: 0 },
    { key: "evidence", label: "made from", text: true }, { key: "source", label: "source", text: true },
    { key: "description", label: "description", text: true },
  ];
  new DataTable($("method-table"), columns, { sort: { key: "none" } }).show(state.scope.methods);
}

function choose(title) {
  state.scope = DATA.scopes.find((s) => s.title === title);
  const { methods, datasets } = state.scope;
  const distinct = (key) => [...new Set(methods.map((m) => m[key]).filter((v) => v && v !== "-"))];
  options($("score-ranges"), [["", "all"], ...distinct("ranges").map((v) => [v, v])], "");
  options($("score-group"), [["", "all"], ...distinct("group").map((v) => [v, v])], "");
  options($("split"), datasets.map((d, i) => [String(i), d]));
  const compared = methods.filter((m) => !m.float);
  const before = $("scatter-method").value;
  options($("scatter-method"), compared.map((m) => [m.id, m.title]),
    (compared.find((m) => m.id === before) ?? compared.find((m) => m.method === "w4a4") ?? compared[0])?.id);
  state.fresh = true;
  drawScores();
  drawScatter();
  drawMethods();
}

options($("metric"), Object.entries(DATA.metrics).map(([key, title]) => [key, `${key}: ${title}`]), "S");
buttonSwitch($("scope"), DATA.scopes.map((s) => [s.title, s.title]), state.scope.title, choose);
$("metric").addEventListener("change", () => { state.metric = $("metric").value; state.fresh = true; drawScores(); });
$("score-filter").addEventListener("input", filterScores);
for (const id of ["score-ranges", "score-group"]) $(id).addEventListener("change", filterScores);
$("split").addEventListener("change", drawBars);
$("scatter-method").addEventListener("change", drawScatter);
choose(state.scope.title);
keepDrawn(drawScatter);
copyButton($("copy-command"), $("command"));
