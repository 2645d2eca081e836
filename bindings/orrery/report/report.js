// Draws the figures whose specifications stand in #figures, in the colours of the theme, and draws
// them again when the theme changes or the page is printed. A page with controls changes them in
// orrery.figures and calls orrery.draw(); its own script, after this one, may do so before the first.
(() => {
  "use strict";
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const root = document.documentElement;

  // "$c-name" anywhere in a string is the CSS variable --c-name.
  const withColors = (value, css) => {
    if (typeof value === "string") {
      return value.includes("$c-")
        ? value.replace(/\$(c-[a-z-]+)/g, (_, name) => css.getPropertyValue("--" + name).trim())
        : value;
    }
    if (Array.isArray(value)) return value.map((item) => withColors(item, css));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, withColors(v, css)]));
    }
    return value;
  };

  const axis = {
    gridcolor: "$c-grid", linecolor: "$c-line", zeroline: false, showline: false, fixedrange: true, tickangle: 0,
    ticks: "outside", ticklen: 5, tickcolor: "rgba(0,0,0,0)", tickfont: { size: 12, color: "$c-muted" }, title: { font: { size: 12.5, color: "$c-muted" }, standoff: 8 },
  };
  const template = {
    layout: {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "closest",
      font: { color: "$c-ink" }, xaxis: axis, yaxis: axis,
      hoverlabel: { bgcolor: "$c-hover", bordercolor: "$c-line", font: { color: "$c-ink", size: 12.5 } },
    },
  };
  const config = { displayModeBar: false, responsive: true, showTips: false };

  // Ticks that the page places itself (logarithmic times) are thinned out where they would collide.
  const kTickPixels = 52;
  const thinned = (layout, width) => {
    const x = layout.xaxis;
    if (!x || !x.tickvals) return layout;
    const stride = Math.ceil((x.tickvals.length * kTickPixels) / Math.max(width, 1));
    const keep = (_, i) => i % stride === 0;
    return { ...layout, xaxis: { ...x, tickvals: x.tickvals.filter(keep), ticktext: x.ticktext.filter(keep) } };
  };

  // What a figure changes in its axes on a phone.
  const kNarrowPixels = 420;
  const fitted = (figure, width) => (!figure.narrow || width > kNarrowPixels ? figure.layout
    : Object.entries(figure.narrow).reduce((layout, [name, change]) => ({ ...layout, [name]: { ...layout[name], ...change } }), figure.layout));

  const draw = () => {
    const css = getComputedStyle(root);
    const family = getComputedStyle(document.body).fontFamily;
    return Promise.all(figures.map((figure) => {
      const width = document.getElementById(figure.name).clientWidth - 60;
      const own = thinned(fitted(figure, width), width);
      const layout = withColors({ ...own, height: figure.height, autosize: true, template }, css);
      layout.template.layout.font.family = family;
      return Plotly.react(figure.name, withColors(figure.data, css), layout, config);
    }));
  };

  globalThis.orrery = { figures, draw };
  addEventListener("DOMContentLoaded", () => draw().then(() => { root.dataset.drawn = String(figures.length); }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  let pending = 0;
  addEventListener("resize", () => { clearTimeout(pending); pending = setTimeout(draw, 100); });

  // Paper is narrow and white: class "printing" sets the page's width and the light theme before
  // the browser lays the page out for print.
  const opened = [];
  addEventListener("beforeprint", () => {
    root.classList.add("printing");
    document.querySelectorAll("details:not([open])").forEach((d) => { d.open = true; opened.push(d); });
    draw();
    figures.forEach((figure) => Plotly.Plots.resize(figure.name));
  });
  addEventListener("afterprint", () => {
    root.classList.remove("printing");
    opened.splice(0).forEach((d) => { d.open = false; });
    draw();
    figures.forEach((figure) => Plotly.Plots.resize(figure.name));
  });

  // A table of class "sortable" sorts by the column whose title is pressed, by mouse or key: times, shares and sizes by
  // what they say with their unit, all else as text; cells without a value last, either way.
  const kUnits = { ns: 1e-9, "µs": 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600 };
  const sortKey = (cell) => {
    const text = (cell.firstElementChild?.tagName === "SPAN" && cell.firstElementChild.textContent || cell.textContent).trim();
    if (["", "–"].includes(text)) return null;
    const found = text.match(/^[<>▲ ]*([\d.,]+)\s*(\S*)/);
    return found ? Number(found[1].replaceAll(",", "")) * (kUnits[found[2]] ?? 1) : text;
  };
  const sortBy = (table, column, down) => {
    const sign = down ? -1 : 1;
    const rows = [...table.tBodies[0].rows].map((row, at) => [sortKey(row.cells[column]), at, row]);
    rows.sort(([a, x], [b, y]) => {
      if (a === null || b === null) return (a === null) - (b === null) || x - y;
      const isNumber = typeof a === "number" && typeof b === "number";
      return sign * (isNumber ? a - b : String(a).localeCompare(String(b), "en", { numeric: true })) || x - y;
    });
    table.tBodies[0].append(...rows.map(([, , row]) => row));
    [...table.tHead.rows[0].cells].forEach((cell, at) => {
      if (at === column) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
  };
  document.querySelectorAll("table.sortable").forEach((table) => [...table.tHead.rows[0].cells].forEach((cell, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...cell.childNodes);
    button.addEventListener("click", () => sortBy(table, column, cell.getAttribute("aria-sort") === "ascending"));
    cell.append(button);
  }));
})();
