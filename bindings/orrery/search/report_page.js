// The parts of the page that answer to a reader: the front with axes to choose, the table of all plans that sorts and
// filters, and the page of one plan. Text is set as text, never as markup; what Plotly would read as markup is escaped.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = Object.fromEntries(data.columns.map((name, i) => [name, i]));
  const cell = (row, name) => (name === "verdict" ? data.verdicts[row] : data.rows[row][at[name]] ?? "");
  const value = (row, name) => { const text = cell(row, name); return text === "" ? NaN : Number(text); };
  const rowOf = Object.fromEntries(data.rows.map((row, i) => [row[at.id], i]));
  const meets = (row) => /^(meets|keeps up)/.test(data.verdicts[row]);
  data.points.sort((p, q) => p[0] - q[0] || p[1] - q[1]); // shape by shape, as its line goes

  // ---- numbers as report/quantities.py writes them
  const digits = (x) => {
    if (!Number.isFinite(x)) return "–";
    if (x === 0) return "0";
    const decimals = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(Number(x.toPrecision(3))))));
    return x.toLocaleString("en-US", { minimumFractionDigits: Math.min(decimals, 12), maximumFractionDigits: Math.min(decimals, 12) });
  };
  const seconds = (x) => {
    if (!Number.isFinite(x)) return "–";
    const scales = [[0.9995e-3, 1e6, "µs"], [0.9995, 1e3, "ms"], [600, 1, "s"], [7200, 1 / 60, "min"], [Infinity, 1 / 3600, "h"]];
    const [, factor, unit] = scales.find(([below]) => Math.abs(x) < below);
    return `${digits(x * factor)} ${unit}`;
  };
  const money = (x) => (Number.isFinite(x) ? "$" + x.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 }) : "–");
  const share = (x) => (Number.isFinite(x) ? `${(100 * x).toFixed(1)} %` : "–");
  const count = (x) => (Number.isFinite(x) ? x.toLocaleString("en-US") : "–");
  const FORMATS = { s: seconds, usd: money, share, count, number: digits };
  const shown = (row, column) => {
    if (column.kind !== "text") return FORMATS[column.kind](value(row, column.key));
    const text = cell(row, column.key);
    return column.key === "limit" ? data.limit_words[text] ?? text : text;
  };

  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, given] of Object.entries(attributes)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), given);
      else if (given !== undefined && given !== false) element.setAttribute(name, given === true ? "" : given);
    }
    element.append(...children.filter((child) => child !== undefined && child !== null));
    return element;
  };
  const $ = (id) => document.getElementById(id);

  // ---- the table
  const table = { columns: data.shown, filters: {}, sort: null, down: false, most: 20 };
  const isNumber = (name) => data.rows.some((row) => row[at[name]] !== "" && row[at[name]] !== undefined)
    && data.rows.every((row) => row[at[name]] === "" || Number.isFinite(Number(row[at[name]])));
  const allColumns = () => [...data.shown, ...data.columns.filter((name) => !data.shown.some((s) => s.key === name)).map((name) => ({
    key: name, title: name, kind: !isNumber(name) ? "text" : /_s(_|$)/.test(name) && !name.includes("_per_s") ? "s" : "number",
  }))];

  // A predicate of a column's filter, undefined for what is none.
  const UNITS = { us: 1e-6, "µs": 1e-6, ms: 1e-3, s: 1, min: 60, "%": 0.01 };
  const predicate = (text, column) => {
    if (column.kind === "text") return (row) => shown(row, column).toLowerCase().includes(text.toLowerCase());
    const number = "\\$?\\s*([0-9][0-9,]*\\.?[0-9]*|\\.[0-9]+)\\s*(us|µs|ms|s|min|%)?";
    const scaled = (digitsOf, unit, other) => Number(digitsOf.replaceAll(",", "")) * (UNITS[unit ?? other] ?? 1);
    const range = text.match(new RegExp(`^${number}\\s*(?:\\.\\.|–|to)\\s*${number}$`));
    if (range) {
      const [low, high] = [scaled(range[1], range[2], range[4]), scaled(range[3], range[4], range[2])];
      return (row) => value(row, column.key) >= low && value(row, column.key) <= high;
    }
    const single = text.match(new RegExp(`^(<=|>=|≤|≥|<|>|=)?\\s*${number}$`));
    if (!single) return undefined;
    const limit = scaled(single[2], single[3]);
    const compare = { "<": (x) => x < limit, "<=": (x) => x <= limit, "≤": (x) => x <= limit, ">": (x) => x > limit, ">=": (x) => x >= limit,
      "≥": (x) => x >= limit }[single[1]] ?? ((x) => Math.abs(x - limit) <= 5e-3 * Math.abs(limit));
    return (row) => compare(value(row, column.key));
  };

  const passing = () => {
    const tests = [];
    for (const [key, text] of Object.entries(table.filters)) {
      const test = text.trim() && predicate(text.trim(), allColumns().find((column) => column.key === key));
      if (test) tests.push(test);
    }
    return data.rows.map((_, row) => row).filter((row) => tests.every((test) => test(row)));
  };

  const sorted = (rows) => {
    const column = allColumns().find((one) => one.key === table.sort);
    if (!column) return rows;
    const sign = table.down ? -1 : 1;
    const keys = rows.map((row) => (column.kind === "text" ? shown(row, column) : value(row, column.key)));
    const isEmpty = (key) => key === "" || Number.isNaN(key);
    const order = rows.map((_, i) => i).sort((a, b) => {
      const [x, y] = [keys[a], keys[b]];
      if (isEmpty(x) || isEmpty(y)) return isEmpty(x) - isEmpty(y) || a - b; // empty cells last, either way
      return sign * (column.kind === "text" ? x.localeCompare(y, "en", { numeric: true }) : x - y) || a - b;
    });
    return order.map((i) => rows[i]);
  };

  const drawHead = () => {
    const titles = table.columns.map((column) => make("th", {
      scope: "col", class: column.kind === "text" ? undefined : "number",
      "aria-sort": table.sort === column.key ? (table.down ? "descending" : "ascending") : undefined, "data-key": column.key,
    }, make("button", { type: "button", onclick: () => {
      [table.down, table.sort] = [table.sort === column.key && !table.down, column.key];
      drawHead(); drawBody();
      document.querySelector(`#plans-table th[data-key="${CSS.escape(column.key)}"] button`).focus();
    } }, column.title, table.sort === column.key ? (table.down ? " ▼" : " ▲") : "")));
    const filters = table.columns.map((column) => make("td", {}, make("input", {
      type: "text", "aria-label": `filter by ${column.title}`, placeholder: column.kind === "text" ? "contains" : "< …", value: table.filters[column.key],
      oninput: (event) => {
        const text = event.target.value;
        table.filters[column.key] = text;
        event.target.setAttribute("aria-invalid", String(Boolean(text.trim()) && !predicate(text.trim(), column)));
        drawBody(); drawFront();
      },
    })));
    $("plans-table").tHead.replaceChildren(make("tr", {}, ...titles), make("tr", {}, ...filters));
  };

  const drawBody = () => {
    const rows = sorted(passing());
    const body = rows.slice(0, table.most).map((row) => make("tr", { "data-id": data.rows[row][at.id], "aria-current": row === current && "true" },
      ...table.columns.map((column, i) => (i === 0
        ? make("th", { scope: "row" }, make("a", { href: `#plan-${data.rows[row][at.id]}` }, shown(row, column)))
        : make("td", { class: column.kind === "text" ? undefined : "number" }, shown(row, column))))));
    $("plans-table").tBodies[0].replaceChildren(...body);
    $("count").textContent = rows.length === data.rows.length ? `${count(rows.length)} plans` : `${count(rows.length)} of ${count(data.rows.length)} plans`;
    $("more").hidden = rows.length <= table.most;
    $("more").textContent = `Show all ${count(rows.length)}`;
  };

  const quoted = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const csv = () => [data.columns, ...sorted(passing()).map((row) => data.rows[row])].map((line) => line.map(quoted).join(",") + "\n").join("");
  $("download").addEventListener("click", () => {
    const link = make("a", { href: URL.createObjectURL(new Blob([csv()], { type: "text/csv" })), download: "plans.csv" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
  $("clear").addEventListener("click", () => { table.filters = {}; drawHead(); drawBody(); drawFront(); });
  $("more").addEventListener("click", () => { table.most = Infinity; drawBody(); });
  $("all-columns").addEventListener("change", (event) => {
    table.columns = event.target.checked ? allColumns() : data.shown;
    drawHead(); drawBody();
  });

  // ---- the page of one plan
  let current = rowOf[data.best];
  const pairs = (list) => make("dl", { class: "totals" }, ...list.map(([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, text))));
  const grid = (caption, head, rows) => make("div", {}, make("table", {}, make("caption", {}, caption),
    head.length ? make("thead", {}, make("tr", {}, ...head.map((text, i) => make("th", { scope: "col", class: i ? "number" : undefined }, text)))) : null,
    make("tbody", {}, ...rows.map(([first, ...cells]) => make("tr", {}, make("th", { scope: "row" }, first),
      ...cells.map((text) => make("td", { class: "number" }, text)))))));
  const check = (row, limit) => {
    const names = ["checked", "low", "high"].map((part) => `${limit.name}_${part}`);
    const [found, low, high] = names.map((name) => value(row, name));
    const format = /^(ttft|tpot|itl|e2e)_/.test(limit.name) ? seconds : digits;
    const good = limit.at_most ? found <= limit.limit : found >= limit.limit;
    return [limit.words, limit.limit_words, `${good ? "✓" : "✕"} ${format(found)}`, Number.isFinite(low) ? `${format(low)} to ${format(high)}` : "–"];
  };

  const limiting = (row) => {
    const sentences = [];
    if (data.rows[row][at.id] === String(data.best)) {
      const most = data.limits.filter((limit) => limit.gain > 0.005).map((limit) => `${limit.what} would add ${(100 * limit.gain).toFixed(0)} % to the highest rate`);
      if (most.length) sentences.push(most.join(", ") + ".");
    }
    if (cell(row, "limit")) sentences.push(`Requests are held up by ${data.limit_words[cell(row, "limit")] ?? cell(row, "limit")}.`);
    const nearest = data.slo.map((limit) => [limit.at_most ? value(row, `${limit.name}_checked`) / limit.limit : limit.limit / value(row, `${limit.name}_checked`), limit])
      .filter(([used]) => Number.isFinite(used)).sort((a, b) => b[0] - a[0])[0];
    if (nearest) sentences.push(`${nearest[1].words} takes ${(100 * nearest[0]).toFixed(0)} % of its limit, the most of all limits.`);
    if (cell(row, "impossible")) sentences.push(`No load can meet it: ${cell(row, "impossible")}.`);
    if (!cell(row, "simulated") && !cell(row, "impossible")) {
      const used = value(row, "estimated_utilisation");
      sentences.push(used >= 1 ? `Closed form offers it ${digits(used)} times what it can serve; it was not simulated.`
        : "It was not simulated: the search had a plan that costs less.");
    }
    return sentences.join(" ");
  };

  const drawPlan = () => {
    const row = current;
    const id = data.rows[row][at.id];
    const settings = data.settings.filter((name) => cell(row, name) !== "").map((name) => `--set ${name}=${cell(row, name)}`);
    const parts = [
      make("h3", { dir: "auto" }, `${cell(row, "plan")}${id === String(data.best) ? (data.is_met ? " – the answer" : " – the nearest") : ""}`),
      pairs([["GPUs", count(value(row, "num_gpus"))], ["Cost", Number.isFinite(value(row, "usd_per_hour"))
        ? `${money(value(row, "usd_per_hour"))} an hour${Number.isFinite(value(row, "usd_per_million_output_tokens")) ? `, ${money(value(row, "usd_per_million_output_tokens"))} per million tokens` : ""}` : "no price known"],
      ...(Number.isFinite(value(row, "j_per_output_token")) ? [["Energy", `${digits(value(row, "j_per_output_token"))} J per output token, ${digits(value(row, "j_per_request"))} J per request (model)`]] : []),
      ["SLO", data.verdicts[row] + (data.slo.length && data.margin_words[cell(row, "chance")] ? `: ${data.margin_words[cell(row, "chance")]}` : "")],
      ["Simulated", { full: `${count(value(row, "requests"))} requests`, short: "the first part of the workload" }[cell(row, "simulated")] ?? "no, closed form only"]]),
    ];
    const tables = [];
    const figures = [["TTFT", "ttft_s"], ["TPOT", "tpot_s"], ["end to end", "e2e_s"]].filter(([, key]) => Number.isFinite(value(row, `${key}_mean`)));
    if (figures.length) {
      tables.push(grid("Simulated latency", ["", "mean", "p50", "p90", "p95", "p99"],
        figures.map(([title, key]) => [title, ...["mean", "p50", "p90", "p95", "p99"].map((part) => seconds(value(row, `${key}_${part}`)))])));
    }
    const checks = data.slo.filter((limit) => Number.isFinite(value(row, `${limit.name}_checked`)));
    if (checks.length) tables.push(grid("Limits", ["", "limit", "simulated", "80 % interval"], checks.map((limit) => check(row, limit))));
    tables.push(grid("Closed form", [], [["highest rate", `${digits(value(row, "estimated_capacity_requests_per_s"))} requests/s`],
      ["load of what is asked", share(value(row, "estimated_utilisation"))], ["TTFT", seconds(value(row, "estimated_ttft_s"))],
      ["TPOT", seconds(value(row, "estimated_tpot_s"))]]));
    const rest = [["tokens/s per GPU", digits(value(row, "output_tokens_per_s_per_gpu"))], ["goodput", `${digits(value(row, "goodput"))} requests/s`],
      ["GPUs busy", share(value(row, "busy"))], ["preemptions", count(value(row, "preemptions"))],
      ...["measured", "interpolated", "borrowed", "roofline"].map((name) => [`device time ${name}`, share(value(row, `basis_${name}`))])];
    if (figures.length) tables.push(grid("Simulated service", [], rest.filter(([, text]) => !text.startsWith("–"))));
    parts.push(make("div", { class: "plan-tables" }, ...tables));
    const why = data.why[id];
    const words = [limiting(row), why && id !== String(data.best) ? `Beside the answer: ${why}.` : ""].filter(Boolean).join(" ");
    if (words) parts.push(make("h3", {}, "What limits it"), make("p", {}, words));
    // scenario.yaml is the best plan with its defaults spelled out; any other is a choice of what the question leaves open.
    const file = id === String(data.best) ? "scenario.yaml" : ["question.yaml", ...settings].join(" ");
    const lines = [`orrery run ${file} -o runs/plan-${id}`, `orrery saturate ${file}`];
    if (["vllm", "sglang", "trtllm"].includes(data.engine)) lines.push(`orrery emit ${file} --engine ${data.engine}`);
    parts.push(make("h3", {}, "Commands"), make("div", { class: "plan-command" }, ...lines.map((line) => make("code", {}, line))));
    $("plan-page").replaceChildren(...parts);
    drawBody();
    drawFront();
  };
  const follow = (event) => {
    const id = /^#plan-(\d+)$/.exec(location.hash)?.[1];
    if (id === undefined || rowOf[id] === undefined) return;
    current = rowOf[id];
    drawPlan();
    if (event) { $("plan").scrollIntoView(); $("plan-title").focus({ preventScroll: true }); }
  };
  addEventListener("hashchange", follow);

  // ---- the front
  const AXES = [
    { key: "per_user", metric: "tpot", title: "tokens/s per user", up: true, point: (p) => p[6], row: (row) => 1 / value(row, "tpot_s_mean"), text: digits },
    { key: "per_gpu", title: "tokens/s per GPU", up: true, point: (p) => p[5], row: (row) => value(row, "output_tokens_per_s_per_gpu"), text: digits },
    { key: "ttft", metric: "ttft", title: "TTFT", up: false, point: (p) => p[2], row: (row) => value(row, "ttft_s_mean"), text: seconds },
    { key: "tpot", metric: "tpot", title: "TPOT", up: false, point: (p) => p[3], row: (row) => value(row, "tpot_s_mean"), text: seconds },
    { key: "usd", title: "$ per million tokens", up: false, point: (p) => p[4] ?? NaN, row: (row) => value(row, "usd_per_million_output_tokens"), text: money },
    { key: "joules", title: "J per output token", up: false, point: (p) => p[7] ?? NaN, row: (row) => value(row, "j_per_output_token"), text: digits },
  ].filter((axis) => data.points.some((p) => Number.isFinite(axis.point(p))));
  const shapes = Object.fromEntries(data.shapes.map((shape) => [shape.id, shape]));
  const hidden = new Set(); // shapes that a reader has put away
  const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const colourOf = (shape) => `$${shapes[shape]?.colour ?? "c-grey"}`;
  const figure = orrery.figures.find((one) => one.name === "front");

  const ticks = (low, high, isLog) => {
    if (!isLog) return undefined;
    const found = [];
    for (let decade = Math.floor(Math.log10(low)); decade <= Math.log10(high); decade++) {
      for (const mantissa of Math.log10(high / low) > 2.5 ? [1, 3] : [1, 2, 5]) found.push(mantissa * 10 ** decade);
    }
    return found.filter((tick) => tick >= 0.98 * low && tick <= 1.02 * high);
  };
  const short = (axis, tick) => {
    if (axis.text === money) return "$" + Number(tick.toPrecision(6)).toLocaleString("en-US");
    if (axis.text === seconds) { const [factor, unit] = tick >= 0.9995 ? [1, "s"] : tick >= 0.9995e-3 ? [1e3, "ms"] : [1e6, "µs"]; return `${Number((tick * factor).toPrecision(6))} ${unit}`; }
    return Number(tick.toPrecision(6)).toLocaleString("en-US");
  };
  const place = (values, axis) => {
    const finite = values.filter((x) => Number.isFinite(x) && x > 0);
    const [low, high] = [Math.min(...finite), Math.max(...finite)];
    const isLog = high > 8 * low;
    const tickvals = ticks(low, high, isLog);
    return { title: { text: axis.title }, type: isLog ? "log" : "linear", ...(isLog ? { tickvals, ticktext: tickvals.map((t) => short(axis, t)),
      range: [Math.log10(low) - 0.06 * Math.log10(high / low), Math.log10(high) + 0.08 * Math.log10(high / low)] }
      : axis.text === seconds ? { rangemode: "tozero", tickformat: "~s", ticksuffix: "s" } : { rangemode: "tozero", tickprefix: axis.text === money ? "$" : "" }) };
  };

  const frontOf = (points, x, y) => {
    if (x === y) return [];
    const order = points.slice().sort((a, b) => (x.up ? x.point(b) - x.point(a) : x.point(a) - x.point(b)) || (y.up ? y.point(b) - y.point(a) : y.point(a) - y.point(b)));
    const found = [];
    for (const point of order) {
      const last = found[found.length - 1];
      if (!last || (y.up ? y.point(point) > y.point(last) : y.point(point) < y.point(last))) found.push(point);
    }
    return found;
  };

  // The limits of the SLO that an axis can show: TTFT, TPOT, and TPOT as what a user gets of tokens.
  const limitLines = (axes, places) => {
    const [shapes_, annotations] = [[], []];
    axes.forEach((axis, i) => {
      const [along, across] = i ? ["y", "x"] : ["x", "y"];
      const layout = places[i][1];
      for (const limit of data.slo.filter((one) => one.name.split("_")[0] === axis.metric)) {
        const where = axis.key === "per_user" ? 1 / limit.limit : limit.limit;
        const drawn = layout.type === "log" ? Math.log10(where) : where;
        if (layout.range && (drawn < layout.range[0] || drawn > layout.range[1])) continue;
        shapes_.push({ type: "line", [`${along}0`]: where, [`${along}1`]: where, [`${across}0`]: 0, [`${across}1`]: 1, [`${across}ref`]: "paper",
          line: { color: "$c-red", width: 1.5, dash: "dash" } });
        annotations.push({ text: `limit ${limit.words} ${limit.limit_words}`, showarrow: false, font: { color: "$c-red", size: 12 }, bgcolor: "$c-card",
          ...(i ? { xref: "paper", x: 0.99, xanchor: "right", y: drawn, yanchor: "bottom", yshift: 2 }
            : { yref: "paper", y: 0.03, yanchor: "bottom", x: drawn, xanchor: "right", xshift: -4 }) });
      }
    });
    return { shapes: shapes_, annotations };
  };

  const specify = () => {
    const [x, y] = ["axis-x", "axis-y"].map((id) => AXES.find((axis) => axis.key === $(id).value));
    const rows = passing();
    const wanted = new Set(rows.map((row) => Number(data.rows[row][at.shape])));
    const isShown = (shape) => wanted.has(shape) && !hidden.has(shapes[shape]?.colour ? shape : "others");
    const points = data.points.filter((p) => isShown(p[0]) && Number.isFinite(x.point(p)) && Number.isFinite(y.point(p)));
    const hover = (p) => `<b>${escaped(shapes[p[0]].words)}</b>, batch ${count(p[1])}, ${p[8] ? "served in full" : "closed form"}<br>${x.title} ${x.text(x.point(p))}<br>${y.title} ${y.text(y.point(p))}`;
    const isCrowded = data.shapes.length > 24; // lines of all of them would hide what they lie behind
    const traces = new Map();
    for (const p of points) {
      const key = shapes[p[0]].colour ? p[0] : "others";
      const trace = traces.get(key) ?? { type: "scatter", mode: key === "others" && isCrowded ? "markers" : "lines+markers", connectgaps: false, x: [], y: [], text: [], customdata: [], hovertemplate: "%{text}<extra></extra>",
        line: { color: colourOf(p[0]), width: 1.2 }, opacity: key === "others" ? (isCrowded ? 0.3 : 0.45) : 0.9, marker: { size: key === "others" && isCrowded ? 4 : 5.5, color: colourOf(p[0]) } };
      traces.set(key, trace);
      const last = trace.customdata[trace.customdata.length - 1];
      if (last !== undefined && last !== `s${p[0]}`) { trace.x.push(null); trace.y.push(null); trace.text.push(""); trace.customdata.push(`s${p[0]}`); }
      trace.x.push(x.point(p)); trace.y.push(y.point(p)); trace.text.push(hover(p)); trace.customdata.push(`s${p[0]}`);
    }
    const served = points.filter((p) => p[8]);
    const front = frontOf(served.length ? served : points, x, y);
    const line = { type: "scatter", mode: "lines", x: front.map(x.point), y: front.map(y.point), line: { color: "$c-ink", width: 2.5, shape: "linear" }, opacity: 0.75, hoverinfo: "skip" };
    const simulated = rows.filter((row) => cell(row, "simulated") === "full" && isShown(Number(data.rows[row][at.shape])) && Number.isFinite(x.row(row)) && Number.isFinite(y.row(row)));
    const marks = [true, false].map((good) => {
      const own = simulated.filter((row) => meets(row) === good);
      const colours = own.map((row) => colourOf(Number(data.rows[row][at.shape])));
      return { type: "scatter", mode: "markers", x: own.map(x.row), y: own.map(y.row), customdata: own.map((row) => `p${data.rows[row][at.id]}`),
        text: own.map((row) => `<b>${escaped(cell(row, "plan"))}</b>, ${count(value(row, "num_gpus"))} GPUs: ${escaped(data.verdicts[row])}<br>${x.title} ${x.text(x.row(row))}<br>${y.title} ${y.text(y.row(row))}`),
        hovertemplate: "%{text}<extra></extra>",
        marker: { size: own.map((row) => (row === current ? (good ? 19 : 15) : good ? 12 : 8)), symbol: good ? "diamond" : "x-thin", color: colours, opacity: 1,
          line: { color: good ? "$c-ink" : colours, width: good ? 1.5 : 2 } } };
    });
    const every = [[x, "xaxis"], [y, "yaxis"]].map(([axis, name]) => [name, place([...points.map(axis.point), ...simulated.map(axis.row)], axis)]);
    const kept = [...traces.values(), line, ...marks].filter((trace) => trace.x.length);
    figure.data = kept;
    figure.layout = { margin: figure.layout.margin, ...(kept.length ? { ...Object.fromEntries(every), ...limitLines([x, y], every) } : {}) };
  };
  const drawFront = () => {
    if (!figure) return;
    specify();
    if (document.documentElement.dataset.drawn !== undefined) orrery.draw(); // else the first drawing is to come
  };

  if (figure) {
    for (const [id, first] of [["axis-x", "per_user"], ["axis-y", "per_gpu"]]) {
      $(id).append(...AXES.map((axis) => make("option", { value: axis.key, selected: axis.key === first }, axis.title)));
      $(id).addEventListener("change", drawFront);
    }
    const named = data.shapes.filter((shape) => shape.colour);
    const entries = [...named.map((shape) => [shape.id, shape.words, shape.colour]), ...(named.length < data.shapes.length ? [["others", `${data.shapes.length - named.length} other shapes`, "c-grey"]] : [])];
    $("shapes").append(...entries.map(([id, words, colour]) => make("li", {}, make("button", { type: "button", "aria-pressed": "true", onclick: (event) => {
      if (!hidden.delete(id)) hidden.add(id);
      event.currentTarget.setAttribute("aria-pressed", String(!hidden.has(id)));
      drawFront();
    } }, make("span", { class: "swatch", style: `--swatch: var(--${colour})` }), words))));
    specify();
    document.addEventListener("DOMContentLoaded", () => setTimeout(() => $("front").on("plotly_click", (event) => {
      const target = event.points[0].customdata;
      if (target === undefined) return;
      const own = target[0] === "p" ? [target.slice(1)] : data.rows.filter((row) => row[at.shape] === target.slice(1)).map((row) => row[at.id]);
      location.hash = `plan-${own.find((id) => meets(rowOf[id])) ?? own[0]}`;
    })));
  }
  drawHead();
  drawPlan();
  follow();
})();
