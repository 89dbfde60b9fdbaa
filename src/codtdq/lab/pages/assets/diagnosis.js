"use strict";
/* The page of a diagnosis: every part is set up once. */
function scores() {
  const columns = [
    { key: "title", label: "method", text: true, lead: true },
    ...DATA.metrics.map((key) => ({ key, label: key, title: key === "MAE" ? "lower is better" : "higher is better", digits: 3 })),
    { key: "weight", label: "bits / weight", digits: 2 }, { key: "activation", label: "bits / activation", digits: 2 },
  ];
  const rows = DATA.methods.map((m) => ({ id: m.id, title: m.title, ...m.metrics, ...m.bits }));
  new DataTable($("score-table"), columns, { sort: { key: "none" } }).show(rows);
}

function weights() {
  const columns = [
    { key: "name", label: "weight", text: true, lead: true, path: true }, { key: "method", label: "method", text: true },
    { key: "role", label: "role", text: true }, { key: "mean", label: "mean" }, { key: "std", label: "std" },
    { key: "p99", label: "P99" }, { key: "absmax", label: "AbsMax" },
  ];
  const table = new DataTable($("weight-table"), columns);
  function draw() {
    const shown = table.show(DATA.weights, wordTest($("weight-filter").value, ["name", "method", "role"]));
    $("weight-count").textContent = `${shown} of ${DATA.weights.length} rows`;
  }
  $("weight-filter").addEventListener("input", draw);
  draw();
}

scores();
layerViews();
gallery();
weights();
copyButton($("copy-command"), $("command"));
