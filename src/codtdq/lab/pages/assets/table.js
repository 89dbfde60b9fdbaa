"use strict";
/* A table that sorts by any column and shows the rows that a test lets through. */
class DataTable {
  /* columns: {key, label, title, text, digits, lead, path}; rows: plain objects. */
  constructor(table, columns, { sort, onpick } = {}) {
    this.table = table;
    this.columns = columns;
    this.onpick = onpick;
    this.rows = [];
    this.test = () => true;
    this.sort = sort ?? { key: columns[0].key, down: false };
    this.body = el("tbody");
    table.replaceChildren(el("thead", {}, this.head()), this.body);
  }

  head() {
    this.heads = new Map();
    const row = el("tr");
    for (const column of this.columns) {
      const button = el("button", { type: "button", title: column.title, onclick: () => this.sortBy(column) }, column.label);
      const head = el("th", { scope: "col", class: this.style(column), "data-key": column.key }, button);
      this.heads.set(column.key, head);
      row.append(head);
    }
    return row;
  }

  style(column) {
    return [column.text ? "text" : "", column.lead ? "lead" : "", column.path ? "path" : ""].join(" ").trim() || null;
  }

  sortBy(column) {
    const same = this.sort.key === column.key;
    this.sort = { key: column.key, down: same ? !this.sort.down : !column.text && column.key !== "order" };
    this.draw();
  }

  show(rows, test) {
    if (rows) this.rows = rows;
    if (test) this.test = test;
    return this.draw();
  }

  draw() {
    const { key, down } = this.sort;
    const kept = this.rows.filter(this.test);
    const order = (a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true }));
    kept.sort((one, other) => {
      const a = one[key] ?? null, b = other[key] ?? null;
      if (a === null || b === null) return (a === null) - (b === null); /* nothing known: last */
      return down ? order(b, a) : order(a, b);
    });
    for (const [name, head] of this.heads) {
      if (name === key) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
    this.body.replaceChildren(...kept.map((row) => this.line(row)));
    return kept.length;
  }

  line(row) {
    const line = el("tr", { "data-id": row.id });
    for (const column of this.columns) {
      const text = number(row[column.key], column.text ? undefined : column.digits);
      const cell = el("td", { class: this.style(column) });
      if (column.lead && this.onpick) {
        cell.append(el("button", { type: "button", class: "link", title: text, onclick: () => this.onpick(row) }, el("bdi", {}, text)));
      } else {
        cell.append(el("bdi", {}, text));
        if (column.text) cell.title = text;
      }
      if (row.best?.includes(column.key)) cell.classList.add("best");
      line.append(cell);
    }
    return line;
  }
}

/* Lowercase words that must all occur somewhere in the text fields of a row. */
function wordTest(query, fields) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  return (row) => {
    const text = fields.map((field) => row[field] ?? "").join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  };
}
