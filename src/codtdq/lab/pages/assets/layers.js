"use strict";
/* Layer table, profiles over layers, and the page's view of one layer. */
const METHODS = DATA.methods.filter((m) => DATA.layers[m.id]);
const titleOf = (id) => DATA.methods.find((m) => m.id === id)?.title ?? id;

function layerViews() {
  const first = METHODS[0];
  if (!first) { for (const id of ["layers", "profiles", "detail"]) $(id).hidden = true; return; }
  const names = [...new Map(METHODS.flatMap((m) => DATA.layers[m.id]).map((r) => [r.name, r.order]))]
    .sort((a, b) => a[1] - b[1]).map(([name]) => name);
  const detail = layerDetail(names);
  layerTable(first, detail);
  layerProfile(names, detail);
}

function layerTable(first, detail) {
  let method = first.id;
  const table = new DataTable($("layer-table"), DATA.columns, { onpick: (row) => detail(row.name, true) });
  const roles = [...new Set(METHODS.flatMap((m) => DATA.layers[m.id].map((r) => r.role)))].sort();
  options($("layer-role"), [["", "all"], ...roles.map((r) => [r, r])]);
  function draw() {
    const words = wordTest($("layer-filter").value, ["name", "role", "kind"]);
    const role = $("layer-role").value;
    const rows = DATA.layers[method];
    const shown = table.show(rows, (row) => words(row) && (!role || row.role === role));
    $("layer-count").textContent = `${shown} of ${rows.length} layers`;
  }
  buttonSwitch($("layer-method"), METHODS.map((m) => [m.id, m.title]), method, (id) => { method = id; draw(); });
  $("layer-filter").addEventListener("input", draw);
  $("layer-role").addEventListener("change", draw);
  draw();
}

function layerProfile(names, detail) {
  const what = $("profile-what"), columns = DATA.columns.filter((c) => c.profile);
  options(what, columns.map((c) => [c.key, `${c.label}: ${c.title}`]), "rho0");
  const hidden = new Set();
  legend($("profile-legend"), METHODS.map((m) => [m.title, m.index]), (index, on) => {
    if (on) hidden.delete(index); else hidden.add(index);
    draw();
  });
  const rowsOf = new Map(METHODS.map((m) => [m.id, new Map(DATA.layers[m.id].map((r) => [r.name, r]))]));
  function draw() {
    const column = columns.find((c) => c.key === what.value);
    lineChart($("profile"), {
      name: `${column.title}, by layer`, x: "layer, in the order of the forward pass", y: column.label, log: column.log,
      series: METHODS.filter((m) => !hidden.has(m.index)).map((m) => ({ label: m.title, index: m.index,
        points: names.map((name, i) => [i, rowsOf.get(m.id).get(name)?.[column.key] ?? null]) })),
      onmove: (i) => {
        const read = METHODS.map((m) => `${m.title} ${number(rowsOf.get(m.id).get(names[i])?.[column.key], column.digits)}`);
        $("profile-reading").textContent = `${names[i]}: ${read.join(", ")}`;
      },
      onpick: (i) => detail(names[i], true),
    });
  }
  what.addEventListener("change", draw);
  keepDrawn(draw);
}

const REGION_COLUMNS = [
  { key: "where", label: "tokens of", text: true, lead: true }, { key: "method", label: "method", text: true },
  { key: "tokens", label: "tokens", digits: 0 }, { key: "magnitude", label: "mean |x|" }, { key: "step", label: "Δ" },
  { key: "eta", label: "η", digits: 3 }, { key: "rho0", label: "ρ₀", digits: 3 },
  { key: "zeroed", label: "zeroed", digits: 3, title: "share of non-zero activations that became 0" },
  { key: "sqnr_db", label: "SQNR (dB)", digits: 1 },
];

function layerDetail(names) {
  const choice = $("detail-layer");
  const table = new DataTable($("region-table"), REGION_COLUMNS);
  options(choice, names.map((n) => [n, n]));
  legend($("detail-legend"), METHODS.map((m) => [m.title, m.index]));
  const charts = Object.entries(DATA.histogramTitles).map(([key, title]) => {
    const box = el("div", { class: "chart" });
    $("detail-charts").append(el("figure", {}, box, el("figcaption", {}, `${title}, share of them per bin`)));
    return [key, title, box];
  });
  function draw() {
    const name = choice.value;
    const found = METHODS.map((m) => [m, DATA.layers[m.id].find((r) => r.name === name)]).filter(([, r]) => r);
    $("detail-facts").textContent = found.map(([m, r]) => `${m.title}: ${r.bits} bits, ${r.mode}`).join("; ") +
      `. ${found[0][1].kind}, ${found[0][1].channels} channels, ` + (found[0][1].tokens ? `${found[0][1].tokens} tokens.` : "tokens without a place in the image.");
    table.show(found.flatMap(([m, r]) => ["boundary", "elsewhere"].filter((w) => r.regions[w])
      .map((where) => ({ id: `${m.id} ${where}`, where, method: m.title, ...r.regions[where] }))));
    $("region-table").parentElement.hidden = !table.rows.length;
    for (const [key, title, box] of charts) {
      lineChart(box, {
        name: `${title} of ${name}`, x: title, y: "share", step: true, height: 210, logX: !key.endsWith("rho0"),
        series: METHODS.map((m) => ({ index: m.index, points: outline(DATA.histograms[m.id][name]?.[key]) })),
      });
    }
  }
  choice.addEventListener("change", draw);
  keepDrawn(draw);
  return (name, jump) => {
    choice.value = name;
    draw();
    if (jump) { $("detail").scrollIntoView(); choice.focus({ preventScroll: true }); }
  };
}

/* Edges and shares of a histogram as the corners of its outline. */
function outline(histogram) {
  if (!histogram) return [];
  const points = histogram.shares.map((share, i) => [histogram.edges[i], share]);
  points.push([histogram.edges.at(-1), 0]);
  return points;
}
