// Cuts plotly.js down to the traces that the reports draw, without a change to a statement that stays.
//
//   apt-get install nodejs node-acorn node-eslint-scope
//   NODE_PATH=/usr/share/nodejs node docs/tools/cut_plotly.mjs \
//       .venv/lib/python3*/site-packages/plotly/package_data/plotly.min.js bindings/orrery/report/plotly.min.js bar
//
// plotly.min.js is one function whose top-level statements are modules that run when first asked for. The last one
// registers every trace (scatter is part of the core). Its list is cut to the traces named, and then every top-level
// statement goes that nothing else reaches; who names whom is resolved by scope.

import { createRequire } from "module";
import fs from "fs";
const require = createRequire(import.meta.url);
const { parse } = require("acorn");
const { analyze } = require("eslint-scope");

const [source, target, ...kept] = process.argv.slice(2);
if (!kept.length) throw new Error("expected SOURCE TARGET TRACE...");
const text = fs.readFileSync(source, "utf8");
const tree = parse(text, { ecmaVersion: 2022, ranges: true });

const bundle = (() => {
  let found = null;
  const visit = (node) => {
    if (Array.isArray(node)) return node.forEach(visit);
    if (!node || typeof node !== "object") return;
    const isLarger = node.type === "ArrowFunctionExpression" && node.body.type === "BlockStatement";
    if (isLarger && (!found || node.body.body.length > found.body.body.length)) found = node;
    for (const key in node) if (key !== "type") visit(node[key]);
  };
  visit(tree);
  return found;
})();
const statements = bundle.body.body;
const textOf = (i) => text.slice(statements[i].start, statements[i].end);

const indexAt = (position) => {
  let [low, high] = [0, statements.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (statements[middle].start <= position) low = middle;
    else high = middle - 1;
  }
  return low;
};

const owner = new Map(); // name -> the statement that defines it
const uses = statements.map(() => new Set());
for (const variable of analyze(tree, { ecmaVersion: 2022, sourceType: "script" }).acquire(bundle).variables) {
  if (!variable.defs.length) continue;
  owner.set(variable.name, indexAt(variable.defs[0].name.start));
  for (const { identifier } of variable.references) uses[indexAt(identifier.start)].add(owner.get(variable.name));
}

const registering = statements.findLastIndex((_, i) => /\.register\(\[/.test(textOf(i)));
const list = /\.register\(\[(.*?)\]\)/;
const traces = textOf(registering).match(list)[1].split(",").map((call) => call.replace("()", ""));
const traceName = (id) => {
  for (let step = 0; step < 6; ++step) {
    const body = textOf(owner.get(id));
    if (body.includes("moduleType")) return body.match(/\bname:"([a-z0-9]+)"/)?.[1];
    id = body.match(/exports=([\w$]+)\(\)/)?.[1];
    if (!id) return undefined;
  }
};
const stay = traces.filter((id) => kept.includes(traceName(id)));
if (stay.length !== kept.length) throw new Error(`found ${stay.map(traceName)} of ${kept}`);
for (const id of traces) if (!stay.includes(id)) uses[registering].delete(owner.get(id));

// "f(exported, {...})" fills an object of exports: it is needed where the object is.
const roots = [];
statements.forEach(({ type, expression }, i) => {
  const first = type === "ExpressionStatement" && expression.type === "CallExpression" ? expression.arguments[0] : null;
  if (first?.type === "Identifier" && owner.has(first.name)) uses[owner.get(first.name)].add(i);
  else if (type === "ReturnStatement" || type === "ExpressionStatement") roots.push(i);
});
const reached = new Set();
while (roots.length) {
  const i = roots.pop();
  if (reached.has(i)) continue;
  reached.add(i);
  roots.push(...uses[i]);
}

let cut = text.slice(0, statements[0].start);
for (const i of [...reached].sort((a, b) => a - b)) {
  cut += i === registering ? textOf(i).replace(list, `.register([${stay.map((id) => id + "()")}])`) : textOf(i);
}
cut += text.slice(statements[statements.length - 1].end);
fs.writeFileSync(target, cut);
console.log(`${text.length} characters to ${cut.length}, ${statements.length} statements to ${reached.size}`);
