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

  const draw = () => {
    const css = getComputedStyle(root);
    const family = getComputedStyle(document.body).fontFamily;
    return Promise.all(figures.map((figure) => {
      const width = document.getElementById(figure.name).clientWidth - 60;
      const own = thinned(figure.layout, width);
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
})();
