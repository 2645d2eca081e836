// The table of runs sorts by any of its columns and downloads as CSV.
(() => {
  "use strict";
  const table = document.getElementById("runs-table");
  const rows = [...table.tBodies[0].rows];
  const state = { column: -1, down: false };
  const value = (row, i) => { const given = row.cells[i].dataset.value; return given === undefined ? row.cells[i].textContent.trim() : given === "" ? NaN : Number(given); };
  const sort = (i) => {
    [state.down, state.column] = [state.column === i && !state.down, i];
    const sign = state.down ? -1 : 1;
    const ordered = rows.map((row, at) => [value(row, i), at]).sort(([a, x], [b, y]) => {
      const empty = (key) => key === "" || Number.isNaN(key);
      if (empty(a) || empty(b)) return empty(a) - empty(b) || x - y; // empty cells last, either way
      return sign * (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b) || x - y;
    });
    table.tBodies[0].replaceChildren(...ordered.map(([, at]) => rows[at]));
    [...table.tHead.rows[0].cells].forEach((cell, at) => {
      const mark = cell.querySelector(".sorted");
      if (at === i) cell.setAttribute("aria-sort", state.down ? "descending" : "ascending"); else cell.removeAttribute("aria-sort");
      mark.textContent = at === i ? (state.down ? " ▼" : " ▲") : "";
    });
  };
  [...table.tHead.rows[0].cells].forEach((cell, i) => cell.querySelector("button").addEventListener("click", () => sort(i)));

  const data = JSON.parse(document.getElementById("data").textContent);
  const quoted = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  document.getElementById("download").addEventListener("click", () => {
    const names = [...new Set(data.runs.flatMap((run) => Object.keys(run)))];
    const lines = [names, ...data.runs.map((run) => names.map((name) => (run[name] === null || run[name] === undefined ? "" : String(run[name]))))];
    const text = lines.map((line) => line.map(quoted).join(",") + "\n").join("");
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = "runs.csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
})();
