// Draws the circuit explorer: from the JSON beside it, into a shadow root, so that view and page leave each other alone.
//
// The JSON. title; shape: [layers, heads, MLPs or not]; edges: how many the graph has; most: where the slider ends; size:
// where it starts; truth: the known circuit, or null; roles: [[role, heads], …]; methods. An edge is its place in
// Graph.edges. A method has a name and either scores (of all edges in order; with ids: of these, the strongest first) and
// perhaps a curve [sizes, faithfulness]; or steps: circuits from small to large, each with at (its threshold), ids, perhaps
// faithfulness; omitted says how many were too large.
(function () {
"use strict";

const STATUS = ["", "hit", "false", "missed"], HIT = 1, FALSE = 2, MISSED = 3;
const MEANING = ["", "kept and true", "kept, not true", "true, not kept"];
const GLYPH = ["", "●", "✕", "○"];
const BUTTON = { tabindex: -1, role: "button", "aria-pressed": "false" };
const THUMB = 18; // width of the slider's thumb
const INSET = 12; // room for the numbers beside the chart
const FEW = 60; // up to this size one step of the slider is one edge
const NEAR = 9; // how far from a line the pointer may be, in pixels
const NARROW = 560; // in less room than this one picture is shown first, and not all below each other

// --- elements: every text goes in as a text node

function set(element, attributes) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === null || value === false) element.removeAttribute(key);
    else element.setAttribute(key, value === true ? "" : value);
  }
  return element;
}
const filled = (element, attributes, children) => {
  set(element, attributes || {}).append(...children.flat().filter((child) => child !== null));
  return element;
};
const html = (name, attributes, ...children) => filled(document.createElement(name), attributes, children);
const svg = (name, attributes, ...children) =>
  filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

const count = (n) => n.toLocaleString("en");
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
const share = (x) => (Number.isFinite(x) ? x.toFixed(2).replace("-0.00", "0.00") : "–");
const range = (n) => [...Array(n).keys()];
const last = (list) => list[list.length - 1];
const clamp = (x, low, high) => Math.max(low, Math.min(high, x));
const closest = (list, far) => list.reduce((best, one) => (far(one) < far(best) ? one : best));

function short(x) {
  const plain = x === 0 || (Math.abs(x) >= 1e-4 && Math.abs(x) < 1000);
  return (plain ? String(Number(x.toPrecision(3))) : x.toExponential(1)).replaceAll("-", "−").replace("e+", "e");
}

// --- what the JSON says

// Nodes and edges, the edges in the order of Graph.edges: by receiver, then by sender.
function readGraph([layers, heads, mlps]) {
  const nodes = [{ name: "embed", row: 0, bar: true }], from = [], to = [], part = [];
  let row = 0;
  function reads(node, parts, senders) {
    for (const p of parts) for (const s of range(senders)) { from.push(s); to.push(node); part.push(p); }
  }
  for (const layer of range(layers)) {
    const upstream = nodes.length;
    row += 1;
    for (const head of range(heads)) {
      reads(upstream + head, "qkv", upstream);
      nodes.push({ name: `a${layer}.${head}`, row, column: head, head: String(head), layer });
    }
    if (!mlps) continue;
    row += 1;
    reads(nodes.length, [""], nodes.length);
    nodes.push({ name: `m${layer}`, row, column: heads });
  }
  reads(nodes.length, [""], nodes.length);
  nodes.push({ name: "logits", row: row + 1, bar: true });
  const sender = (e) => nodes[from[e]].name, receiver = (e) => nodes[to[e]].name + (part[e] && "." + part[e]);
  const name = (e) => `${sender(e)}→${receiver(e)}`;
  return { nodes, from, to, part, sender, receiver, name, columns: heads + (mlps ? 1 : 0), rows: row + 2, mlps };
}

// What a method keeps at a size, and what it says of an edge.
function readMethod(method, index, data) {
  const read = method.steps ? readSteps(method.steps) : readRanking(method, data);
  return { index, label: method.name || "scores", circuits: Boolean(method.steps), ...read };
}

function readRanking({ scores, ids, curve }, data) {
  const score = new Map(ids ? ids.map((e, i) => [e, scores[i]]) : scores.entries());
  const strength = (e) => Math.abs(score.get(e) || 0);
  const order = ids || range(scores.length).sort((a, b) => strength(b) - strength(a) || a - b);
  const rank = new Map(order.slice(0, data.most).map((e, i) => [e, i + 1]));
  const at = curve && straight(curve, data.edges), largest = order.length ? strength(order[0]) : 0;
  const value = (e) => (score.has(e) ? short(score.get(e)) : "too weak to be here");
  return {
    measured: curve ? curve[0] : null,
    pick: (k) => ({
      ids: order.slice(0, k),
      limit: k ? `|score| ≥ ${short(strength(order[k - 1]))}` : "no threshold",
      faithfulness: at ? at(k) : null,
    }),
    width: (e) => 1.2 + 2.6 * Math.sqrt(largest ? strength(e) / largest : 0),
    heading: "Score",
    value,
    rank: (e) => rank.get(e) || null,
    says: (e) => `score ${value(e)}${rank.has(e) ? `, rank ${count(rank.get(e))}` : ""}`,
  };
}

// A row of circuits, such as ACDC's: shown is the one nearest in size. Edges of the smallest circuits come first.
function readSteps(steps) {
  const first = new Map();
  steps.forEach((step, i) => step.ids.forEach((e) => first.has(e) || first.set(e, i)));
  const single = steps.length === 1, bare = steps.some((step) => step.at === null), how = bare ? "Kept from" : "Kept up to";
  const name = (i) => (!bare ? `τ = ${short(steps[i].at)}` : single ? "one circuit" : `circuit ${i + 1} of ${steps.length}`);
  const nearest = (k) => closest(range(steps.length), (i) => Math.abs(steps[i].ids.length - k));
  const value = (e) => (first.has(e) ? name(first.get(e)) : "never");
  return {
    sizes: steps.map((step) => step.ids.length),
    measured: steps[0].faithfulness === undefined ? null : steps.map((step) => step.ids.length),
    pick: (k, step) => {
      const i = step === undefined ? nearest(k) : step, known = steps[i].faithfulness;
      return {
        ids: [...steps[i].ids].sort((a, b) => first.get(a) - first.get(b) || a - b),
        limit: name(i),
        faithfulness: known === undefined ? null : { value: known, exact: true },
      };
    },
    width: () => 2.2,
    heading: how,
    value,
    rank: () => null,
    says: (e) => (first.has(e) ? `${how.toLowerCase()} ${value(e)}` : "never kept"),
  };
}

// Between two sizes that were measured a curve is straight. 0 without edges and 1 with all hold by definition.
function straight([sizes, values], n) {
  const known = new Map([[0, 0], [n, 1], ...sizes.map((k, i) => [k, values[i]])]);
  const xs = [...known.keys()].sort((a, b) => a - b);
  return (k) => {
    if (known.has(k)) return { value: known.get(k), exact: true };
    const i = xs.findIndex((x) => x > k), a = xs[i - 1], b = xs[i];
    return { value: known.get(a) + ((k - a) / (b - a)) * (known.get(b) - known.get(a)), exact: false };
  };
}

// Where the slider stops: at each size while they are small, then in steps of 4 %, and at each size that has a meaning.
// A single row of circuits has a stop for each of them.
function readStops(methods, data) {
  const rankings = methods.filter((method) => !method.circuits);
  if (!rankings.length && methods.length === 1) return methods[0].sizes.map((k, step) => ({ k, step }));
  const sizes = new Set(methods.flatMap((method) => [...(method.sizes || []), ...(method.measured || [])]));
  if (rankings.length) {
    for (let k = 0; k < data.most; k = k < FEW ? k + 1 : Math.ceil(k * 1.04)) sizes.add(k);
    for (const k of [data.most, data.size, data.truth ? data.truth.length : 0]) sizes.add(k);
  }
  const known = rankings.length ? data.most : Infinity; // of a ranking no more edges are known; circuits are known whole
  return [...sizes].filter((k) => k <= known).sort((a, b) => a - b).map((k) => ({ k }));
}

// --- where things are

// Rows go up from the embedding to the logits, as the model computes. A line to the next row bends once. A longer one goes
// up through the free lane beside its receiver, so that no line runs behind a node.
function layOut({ nodes, columns, rows, mlps, from, to, part }, width) {
  const longest = Math.max(...nodes.map((node) => (node.head ? node.name.length : 0)));
  const fits = (width / columns) * 0.74 >= longest * 6.3 + 5; // else a head is its number, and the layer stands at the left
  const left = fits ? 2 : 26, right = fits || !mlps ? 2 : 12, pitch = Math.max(21, (width - left - right) / columns);
  const box = Math.min(62, pitch * 0.74);
  const letters = box >= 27, gap = mlps ? 34 : 44, top = [], bottom = [];
  let y = 2;
  for (const row of range(rows).reverse()) {
    const node = nodes.find((one) => one.row === row);
    top[row] = y;
    bottom[row] = y + (node.head && letters ? 31 : 20);
    y = bottom[row] + gap;
  }
  const middle = left + (columns * pitch) / 2;
  const mlp = Math.min(box + right - 2, 62); // its name has no layer at the left to be shorter for
  const widths = nodes.map((node) => (node.bar ? columns * pitch : node.head ? box : mlp));
  const x = (i) => (nodes[i].bar ? middle : left + (nodes[i].column + 0.5) * pitch + (widths[i] - box) / 2);
  const port = (e) => x(to[e]) + ({ q: -0.29, v: 0.29 }[part[e]] || 0) * box;
  function lane(e, column) {
    const beside = ((from[e] % 5) - 2) * Math.min(1.7, (pitch - box) / 9);
    return clamp(left + column * pitch + beside, left + 1.5, left + columns * pitch - 1.5);
  }

  // The embedding and the logits are as wide as the picture: a line leaves or meets them wherever it runs.
  function points(e) {
    const s = nodes[from[e]], r = nodes[to[e]];
    const leaves = s.bar ? null : x(from[e]), meets = r.bar ? null : port(e);
    const [x0, x1] = [leaves ?? meets ?? middle, meets ?? leaves ?? middle];
    if (r.row === s.row + 1) return upward(x0, top[s.row], x1, bottom[r.row]);
    const across = lane(e, besides(e, s, r));
    return [
      ...upward(leaves ?? across, top[s.row], across, bottom[s.row + 1]),
      ...upward(across, top[r.row - 1], meets ?? across, bottom[r.row]),
    ];
  }
  function besides(e, s, r) {
    if (!r.bar) return r.column + Number(s.bar ? part[e] === "v" : s.column > r.column);
    return s.bar ? 0 : s.column + Number(s.column < columns / 2);
  }
  return { x, top, bottom, box, widths, letters, fits, points, width: left + columns * pitch + right, height: y - gap + 2 };
}

// The points of an upright curve. They are drawn, and the pointer is compared with them.
function upward(x0, y0, x1, y1) {
  const steps = Math.abs(x0 - x1) < 0.5 ? 1 : 10;
  return range(steps + 1).map((i) => {
    const t = i / steps;
    return [x0 + (x1 - x0) * t * t * (3 - 2 * t), y0 + (y1 - y0) * t];
  });
}
const drawn = (points) => "M" + points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L");

function distance([x, y], points) {
  let best = Infinity;
  for (let i = 1; i < points.length; i++) {
    const [ax, ay] = points[i - 1], dx = points[i][0] - ax, dy = points[i][1] - ay;
    const t = clamp(((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy || 1), 0, 1);
    best = Math.min(best, Math.hypot(x - ax - t * dx, y - ay - t * dy));
  }
  return best;
}

// --- one picture: the nodes, and the lines of one method

function makePanel(method, view) {
  const { graph, data } = view, status = new Uint8Array(graph.from.length), lines = new Map(), places = new Map();
  const layers = STATUS.map((name) => svg("g", { class: name })), boxes = svg("g");
  const picture = svg("svg", { role: "group" }, layers[MISSED], layers[FALSE], layers[HIT], boxes);
  const limit = html("span", { class: "limit" }), frame = html("div", { class: "frame" }, picture);
  const figure = html("figure", {}, html("figcaption", {}, html("b", {}, method.label), limit), frame);
  const nodes = graph.nodes.map(makeNode);
  let plan = null, listed = [], hot = [];
  // Letters stand outside of their node: they are no part of its name.
  boxes.append(...nodes.map((node) => node.element), ...nodes.flatMap((node) => node.letters));
  set(nodes[0].element, { tabindex: 0 });

  function makeNode(node, i) {
    const box = svg("rect", { rx: 6 }), name = svg("text", { class: "name" });
    const letters = node.head ? [..."qkv"].map((p) => svg("text", { class: "part" }, p)) : [];
    const role = view.rolesOf(i) ? "node playing" : "node";
    const element = svg("g", { ...BUTTON, class: role }, box, name);
    element.means = { node: i };
    return { element, box, name, letters };
  }

  function place(width) {
    plan = layOut(graph, width);
    places.clear();
    set(picture, { width: plan.width, height: plan.height, viewBox: `0 0 ${plan.width} ${plan.height}` });
    const wide = plan.width > width + 1, label = `${method.label}, scrolls sideways`;
    set(frame, { tabindex: wide && "0", role: wide && "region", "aria-label": wide && label });
    nodes.forEach((node, i) => placeNode(graph.nodes[i], node, plan.x(i), plan.widths[i]));
    boxes.querySelectorAll(".layer").forEach((label) => label.remove());
    if (!plan.fits) boxes.append(...graph.nodes.filter((node) => node.head === "0").map(layerLabel));
    lines.forEach((line, e) => set(line, { d: drawn(where(e)) }));
  }

  function placeNode(node, { box, name, letters }, x, width) {
    const y = plan.top[node.row], height = plan.bottom[node.row] - y, lit = node.head && plan.letters;
    set(box, { x: x - width / 2, y, width, height });
    set(name, { x, y: lit ? y + 13 : y + height / 2 + 4 });
    name.textContent = plan.fits || !node.head ? node.name : node.head;
    letters.forEach((letter, p) => {
      set(letter, { x: x + (p - 1) * 0.29 * plan.box, y: y + height - 4, display: lit ? null : "none" });
    });
  }

  function layerLabel(node) {
    const y = (plan.top[node.row] + plan.bottom[node.row]) / 2 + 4;
    return svg("text", { class: "layer", x: 0, y }, `a${node.layer}`);
  }

  function where(e) {
    if (!places.has(e)) places.set(e, plan.points(e));
    return places.get(e);
  }

  // Shows the edges of ids, and the true ones that are not among them.
  function show({ ids, limit: text }) {
    const next = new Uint8Array(status.length);
    for (const e of data.truth || []) next[e] = MISSED;
    for (const e of ids) next[e] = !data.truth || view.isTrue(e) ? HIT : FALSE;
    next.forEach((now, e) => now !== status[e] && change(e, now));
    listed = [...ids, ...(data.truth || []).filter((e) => next[e] === MISSED)];
    limit.textContent = `${plural(ids.length, "edge")}, ${text}`;
    const keys = "Tab: its edges, then its nodes; arrow keys move among them.";
    set(picture, { "aria-label": `${method.label}, ${plural(ids.length, "edge")}. ${keys}` });
    const faint = (n) => (n > 400 ? 0.35 : n > 120 ? 0.6 : 1);
    picture.style.setProperty("--kept", faint(ids.length));
    picture.style.setProperty("--first", data.truth ? 1 : faint(ids.length));
    picture.style.setProperty("--lost", faint(listed.length - ids.length));
    rove("line", lines.get(listed[0]));
    light(ids);
  }

  function change(e, now) {
    const line = lines.get(e) || makeLine(e);
    status[e] = now;
    line.remove();
    if (now) {
      layers[now].append(set(line, { "aria-label": view.edgeText(e, method, now) }));
      lines.set(e, line);
    } else lines.delete(e);
  }

  function makeLine(e) {
    const line = svg("path", { ...BUTTON, class: "line", d: drawn(where(e)) });
    line.style.setProperty("--w", method.width(e).toFixed(1));
    line.means = { edge: e };
    return line;
  }

  // Nodes that no kept edge touches step back. Of q, k and v, those that are read light up.
  function light(ids) {
    const read = new Set(ids.map((e) => graph.to[e] + graph.part[e])), into = new Map(), out = new Map();
    for (const e of ids) {
      into.set(graph.to[e], (into.get(graph.to[e]) || 0) + 1);
      out.set(graph.from[e], (out.get(graph.from[e]) || 0) + 1);
    }
    nodes.forEach(({ element, letters }, i) => {
      const [reads, writes] = [into.get(i) || 0, out.get(i) || 0], roles = view.rolesOf(i);
      element.classList.toggle("idle", !reads && !writes);
      letters.forEach((letter, p) => letter.classList.toggle("read", read.has(i + "qkv"[p])));
      const name = graph.nodes[i].name + (roles && `, ${roles}`);
      set(element, { "aria-label": `${name}: ${plural(reads, "edge")} in, ${count(writes)} out` });
    });
  }

  // One stop of the Tab key for all nodes, one for all lines.
  function rove(kind, to) {
    picture.querySelectorAll(`.${kind}[tabindex="0"]`).forEach((one) => set(one, { tabindex: -1 }));
    if (to) set(to, { tabindex: 0 });
  }

  function heat(edges, touched) {
    hot.forEach((one) => one.classList.remove("hot"));
    hot = [...edges.map((e) => lines.get(e)), ...touched.map((i) => nodes[i].element)].filter(Boolean);
    hot.forEach((one) => one.classList.add("hot"));
    picture.classList.toggle("hushed", touched.length > 0);
  }

  const shown = (e) => !picture.closest(`.without-${STATUS[status[e]]}`);
  const edgesOf = (i) => listed.filter((e) => graph.from[e] === i || graph.to[e] === i);
  const elementOf = (thing) => (thing.edge === undefined ? nodes[thing.node].element : lines.get(thing.edge));

  // What the pointer means: a node, else the nearest line. Of two equally near, the stronger.
  function under(event) {
    const node = event.target.closest(".node");
    if (node) return node.means;
    const from = picture.getBoundingClientRect(), at = [event.clientX - from.left, event.clientY - from.top];
    let best = null, least = NEAR;
    for (const e of listed.filter(shown)) {
      const far = distance(at, where(e));
      if (far < least - 0.5) [best, least] = [{ edge: e }, far];
    }
    return best;
  }

  // The room that a node or a line takes, with the nodes at its ends.
  function room({ node, edge }) {
    const ends = edge === undefined ? [node] : [graph.from[edge], graph.to[edge]];
    const points = edge === undefined ? [] : where(edge);
    const rows = ends.map((i) => graph.nodes[i].row), small = ends.filter((i) => !graph.nodes[i].bar);
    const sides = small.flatMap((i) => [plan.x(i) - plan.widths[i] / 2, plan.x(i) + plan.widths[i] / 2]);
    const xs = [...points.map(([x]) => x), ...sides];
    const [left, right] = xs.length ? [Math.min(...xs), Math.max(...xs)] : [plan.width / 2, plan.width / 2];
    return { left, right, top: plan.top[Math.max(...rows)], bottom: plan.bottom[Math.min(...rows)] };
  }

  function onKey(event) {
    const thing = event.target.means;
    if (!thing) return;
    const to = thing.edge === undefined ? nextNode(thing.node, event.key) : nextEdge(thing.edge, event.key);
    if (event.key === "Enter" || event.key === " ") view.pin(panel, thing);
    else if (to) {
      rove(thing.edge === undefined ? "node" : "line", to);
      to.focus();
    } else return;
    event.preventDefault();
  }

  function nextEdge(e, key) {
    const all = listed.filter(shown), at = all.indexOf(e), end = all.length - 1;
    const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: end }[key];
    return to === undefined ? null : lines.get(all[clamp(to, 0, end)]);
  }

  function nextNode(i, key) {
    const up = { ArrowUp: 1, ArrowDown: -1 }[key] || 0, row = clamp(graph.nodes[i].row + up, 0, graph.rows - 1);
    const inRow = range(nodes.length).filter((j) => graph.nodes[j].row === row), at = inRow.indexOf(i);
    if (up) return nodes[closest(inRow, (j) => Math.abs(plan.x(j) - plan.x(i)))].element;
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: inRow.length - 1 }[key];
    return to === undefined ? null : nodes[inRow[clamp(to, 0, inRow.length - 1)]].element;
  }

  // Without a pointer on something, what has the keyboard's focus counts.
  const focused = () => picture.querySelector(":focus-visible")?.means || null;
  const point = (thing) => view.point(panel, thing || focused());
  set(picture, {
    onpointermove: (event) => event.pointerType !== "touch" && point(under(event)),
    onpointerleave: () => point(null),
    onclick: (event) => view.pin(panel, under(event)),
  });
  // On the frame, for an svg element that listens to the focus would become a stop of the Tab key itself.
  set(frame, { onfocusin: () => point(null), onfocusout: () => view.point(panel, null), onkeydown: onKey });

  const panel = {
    method, figure, picture, place, show, heat, room, edgesOf,
    status: (e) => status[e],
    listed: () => listed,
    press: (thing, on) => elementOf(thing) && set(elementOf(thing), { "aria-pressed": String(on) }),
  };
  return panel;
}

// --- faithfulness against size, above the slider and on its axis

function makeChart(methods, stops, data, go) {
  const curves = methods.filter((method) => method.measured), height = curves.length ? 112 : 0;
  const byCircuit = methods.every((method) => method.circuits);
  const value = (method, stop) => method.pick(stop.k, stop.step).faithfulness.value;
  const values = curves.flatMap((method) => stops.map((stop) => value(method, stop)));
  const low = clamp(Math.min(...values), -1, 0), high = clamp(Math.max(...values), 1, 2);
  const picture = svg("svg", { class: "chart", height, "aria-hidden": "true" });
  const axis = svg("svg", { height: 31, "aria-hidden": "true" }), end = Math.max(1, stops.length - 1);
  const cursor = svg("path", { class: "cursor" }), dots = curves.map(() => svg("circle", { r: 4.5 }));
  let width = 0, alone = -1;
  const x = (i) => THUMB / 2 + (i / end) * (width - THUMB);
  const y = (f) => 16 + (height - 24) * (1 - (clamp(f, low, high) - low) / (high - low));

  // A size between two stops lies between their places.
  function at(k) {
    const i = stops.findIndex((stop) => stop.k >= k);
    if (i < 0) return stops.length - 1;
    return i && i - (stops[i].k - k) / (stops[i].k - stops[i - 1].k || 1);
  }

  // Of several curves, that of a method that is shown alone stands out.
  const look = (kind, { index }) => `${kind} m${index}${alone >= 0 && alone !== index ? " faint" : ""}`;

  function place(to, only) {
    alone = only;
    width = Math.max(to, 2 * THUMB);
    set(picture, { width });
    set(axis, { width }).replaceChildren(...ticks());
    const rules = [0, 1].flatMap((f) => [
      svg("path", { class: "rule", d: `M${x(0)} ${y(f)}H${x(end)}` }),
      svg("text", { class: "tick", x: 2 - INSET, y: y(f) + 4 }, String(f)),
    ]);
    const name = svg("text", { class: "tick", x: x(0) + 3, y: y(1) - 5 }, "faithfulness");
    curves.forEach((method, i) => set(dots[i], { class: look("dot", method) }));
    if (curves.length) picture.replaceChildren(...rules, name, cursor, ...curves.flatMap(drawCurve), ...dots);
  }

  // A ranking has a circuit at each size; a row of circuits goes from one to the next in steps.
  function drawCurve(method) {
    const points = stops.map((stop, i) => [x(i), y(value(method, stop))]);
    const steps = points.flatMap(([px, py], i) => {
      const half = i ? (px + points[i - 1][0]) / 2 : px;
      return i ? [[half, points[i - 1][1]], [half, py]] : [[px, py]];
    });
    const marks = points.filter((_, i) => method.measured.includes(stops[i].k));
    return [
      svg("path", { class: look("curve", method), d: drawn(method.circuits ? [...steps, last(points)] : points) }),
      ...marks.map(([cx, cy]) => svg("circle", { cx, cy, r: 2.2, class: look("mark", method) })),
    ];
  }

  function ticks() {
    const first = stops[0].k, most = last(stops).k, known = data.truth ? data.truth.length : -1, taken = [];
    const circuits = byCircuit ? methods.flatMap((method) => method.sizes) : [];
    return [...new Set([first, most, known, 1, 10, 30, 100, 300, 1000, 3, 3000, ...circuits])].flatMap((k) => {
      const px = x(at(k)), half = 5 + 3.7 * count(k).length;
      const free = taken.every(([other, its]) => Math.abs(other - px) > half + its);
      if (k < first || k > most || !free) return [];
      taken.push([px, half]);
      const [anchor, tx] = px < half ? ["start", 3] : px > width - half ? ["end", width] : ["middle", px];
      const text = { class: k === known ? "tick known" : "tick", "text-anchor": anchor, x: tx };
      const label = k === known ? [svg("text", { ...text, y: 28 }, "known circuit")] : [];
      return [svg("path", { class: "rule", d: `M${px} 0V4` }), svg("text", { ...text, y: 16 }, count(k)), ...label];
    });
  }

  function show(index, stop) {
    const px = stop.step === undefined ? x(at(stop.k)) : x(index);
    set(cursor, { d: `M${px} 2V${height}` });
    curves.forEach((method, i) => set(dots[i], { cx: px, cy: y(value(method, stop)) }));
  }

  function onPointerDown(event) {
    const along = event.clientX - picture.getBoundingClientRect().left - x(0);
    go(Math.round((along / (x(end) - x(0))) * end));
  }
  set(picture, { onpointerdown: onPointerDown });
  return { picture, axis, place, show };
}

// --- the counts, a row for each method

function makeCounts(methods, data) {
  const columns = [["Edges", null, (found) => count(found.edges)]];
  if (data.truth) {
    columns.push(["Hits", null, (found) => count(found.hits)], ["Missed", null, (found) => count(found.missed)]);
    columns.push(["False", null, (found) => count(found.false)]);
    columns.push(["Precision", "Prec.", (found) => share(found.precision), (found) => found.precision]);
    columns.push(["Recall", null, (found) => share(found.recall), (found) => found.recall]);
  }
  if (methods.some((method) => method.measured)) {
    const text = ({ faithfulness: f }) => (f ? (f.exact ? "" : "≈ ") + share(f.value) : "–");
    columns.push(["Faithfulness", "Faithf.", text, ({ faithfulness: f }) => (f ? f.value : NaN)]);
  }
  const both = (name, brief) => [html("span", { class: "long" }, name), html("abbr", { title: name }, brief)];
  const head = ([name, brief]) => html("th", { scope: "col" }, brief ? both(name, brief) : name);
  const heads = html("thead", {}, html("tr", {}, [["Method"], ...columns].map(head)));
  const cells = methods.map(() => columns.map(() => html("td")));
  const first = (method) => html("th", { scope: "row" }, swatch(method), method.label);
  const rows = methods.map((method, i) => html("tr", {}, first(method), cells[i]));
  const caption = html("caption", { class: "unseen" }, "What each method keeps at this size");
  const table = html("table", { class: "counts" }, caption, heads, html("tbody", {}, rows));

  function swatch(method) {
    const line = svg("path", { class: `curve m${method.index}`, d: "M0 4H22" });
    return method.measured ? svg("svg", { class: "swatch", width: 22, height: 8, "aria-hidden": "true" }, line) : null;
  }
  function show(all) {
    all.forEach((found, i) => columns.forEach(([, , text, part], c) => {
      const full = part ? part(found) : NaN, cell = cells[i][c];
      cell.textContent = text(found);
      cell.classList.toggle("bar", Number.isFinite(full));
      cell.style.setProperty("--share", `${100 * clamp(full || 0, 0, 1)}%`);
    }));
  }
  return { table, show, rows };
}

// --- the same edges as text, made when somebody opens it

function makeTable(view) {
  const { panels, graph, data } = view, column = (name) => html("th", { scope: "col" }, name);
  const options = panels.map((panel, i) => html("option", { value: i }, panel.method.label));
  const choice = html("select", { onchange: show }, options);
  const caption = html("caption"), body = html("tbody"), value = column("Score");
  const extra = [...(data.truth ? [column("Known circuit")] : []), ...(data.roles.length ? [column("Roles")] : [])];
  const head = html("thead", {}, html("tr", {}, column("Rank"), column("Edge"), value, extra));
  const table = html("table", { class: "edges" }, caption, head, body);
  const scroll = html("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of edges" }, table);
  const label = panels.length > 1 ? html("label", {}, "Edges of ", choice) : null;
  const details = html("details", {}, html("summary", {}, "The edges as a table"), label, scroll);
  set(details, { ontoggle: () => { show(); view.grown(); } });

  function show() {
    if (!details.open) return;
    const panel = panels[Number(choice.value) || 0], listed = panel.listed();
    const kept = listed.filter((e) => panel.status(e) !== MISSED).length, missed = listed.length - kept;
    value.textContent = panel.method.heading;
    const then = missed ? `; then ${count(missed)} missed` : "";
    caption.textContent = `${panel.method.label}: ${plural(kept, "edge")} kept, the strongest first${then}`;
    body.replaceChildren(...listed.map((e) => row(panel, e)));
  }
  function row(panel, e) {
    const status = panel.status(e), rank = panel.method.rank(e), glyph = html("span", { "aria-hidden": "true" }, GLYPH[status]);
    const cells = [html("td", {}, rank ? count(rank) : "–"), html("th", { scope: "row" }, graph.name(e))];
    cells.push(html("td", {}, panel.method.value(e)));
    if (data.truth) cells.push(html("td", { class: STATUS[status] }, glyph, ` ${STATUS[status]}: ${MEANING[status]}`));
    if (data.roles.length) cells.push(html("td", {}, view.rolesText(e)));
    return html("tr", {}, cells);
  }
  const choose = (i) => { choice.value = i; show(); };
  return { details, show, choose };
}

// --- the view

function draw(host) {
  host.dataset.drawn = "1";
  const data = JSON.parse(host.querySelector('script[type="application/json"]').textContent);
  const graph = readGraph(data.shape), methods = data.methods.map((method, i) => readMethod(method, i, data));
  const stops = readStops(methods, data), byStep = stops[0].step !== undefined, known = new Set(data.truth || []);
  const roles = data.roles.map(([role, heads]) => [role.replaceAll("_", " "), heads]);
  const state = { stop: null, index: 0, only: -1, pinned: null, pointed: null, width: 0 }, radios = [];

  const view = { graph, data, rolesOf, rolesText, edgeText, point, pin, grown, isTrue: (e) => known.has(e) };
  const panels = (view.panels = methods.map((method) => makePanel(method, view)));
  const counts = makeCounts(methods, data), table = makeTable(view), chart = makeChart(methods, stops, data, go);
  const wanted = byStep ? "Threshold" : "Edges kept";
  const slider = html("input", { type: "range", min: 0, max: stops.length - 1, "aria-label": wanted });
  const number = html("input", { type: "number", min: 0, max: data.most, "aria-label": "Edges kept, exactly" });
  const live = html("p", { class: "unseen", role: "status" }), tip = html("div", { class: "tip", hidden: true });
  const grid = html("div", { class: "grid" }, panels.map((panel) => panel.figure));
  const root = html("section", { class: "explorer", "aria-label": data.title || "Circuit explorer" },
    data.title ? html("p", { class: "title" }, data.title) : null, controls(),
    html("div", { class: "above" }, chart.picture), html("div", { class: "track" }, slider, chart.axis),
    counts.table, legend(), grid, notes(), table.details, tip, live);

  set(slider, { oninput: () => go(Number(slider.value)) });
  set(number, { onchange: () => exactly(number.valueAsNumber) });
  const shadow = host.attachShadow({ mode: "open" });
  shadow.append(html("style", {}, "STYLE"), root);
  shadow.addEventListener("keydown", onKey);
  place();
  exactly(data.size, false);
  new ResizeObserver(place).observe(root);

  function controls() {
    const button = (text, label, onclick) => html("button", { type: "button", "aria-label": label, onclick }, text);
    const less = button("−", byStep ? "larger threshold, fewer edges" : "fewer edges", () => go(state.index - 1));
    const more = button("+", byStep ? "smaller threshold, more edges" : "more edges", () => go(state.index + 1));
    const size = data.truth ? data.truth.length : Infinity;
    const jump = byStep || size > data.most ? null : button(`as many as known: ${count(size)}`, null, () => exactly(size));
    const methodsShown = methods.length > 1 ? chooser() : null, lead = html("span", { class: "lead" }, wanted);
    return html("div", { class: "controls" }, lead, less, byStep ? null : number, more, jump, methodsShown);
  }

  function chooser() {
    const labels = ["all", ...methods.map((method) => method.label)].map((name, i) => {
      radios.push(html("input", { type: "radio", name: "show", checked: i === 0, onchange: () => only(i - 1) }));
      return html("label", {}, radios[i], html("span", {}, name));
    });
    return html("fieldset", {}, html("legend", { class: "unseen" }, "Methods shown"), labels);
  }

  function legend() {
    const stroke = () => svg("path", { class: "line", d: "M1 5H29", style: "--w:2.4" });
    const line = (name) => svg("svg", { width: 30, height: 10, "aria-hidden": "true", class: name }, stroke());
    function toggle(status) {
      const box = html("input", { type: "checkbox", checked: true }), name = STATUS[status];
      set(box, { onchange: () => { grid.classList.toggle(`without-${name}`, !box.checked); unpin(); } });
      return html("label", {}, box, line(name), html("span", {}, `${name}: ${MEANING[status]}`));
    }
    const items = data.truth ? [HIT, FALSE, MISSED].map(toggle) : html("span", {}, line("hit"), "kept");
    const played = roles.map(([role, heads]) => html("span", {}, html("b", {}, role), ` ${heads.join(", ")}`));
    const below = played.length ? html("p", { class: "roles" }, played) : null;
    return html("div", { class: "legend" }, html("div", { class: "keys" }, items), below);
  }

  function notes() {
    const said = [], truth = data.truth ? ", and the true ones" : "", part = `${count(data.most)} of ${count(data.edges)}`;
    if (data.most < data.edges) said.push(`Of each ranking only the strongest ${part} edges are here${truth}.`);
    for (const { name, omitted } of data.methods) {
      if (omitted) said.push(`${name || "These circuits"}: ${plural(omitted, "circuit")} with more edges left out.`);
    }
    if (methods.some((method) => !method.circuits)) said.push("The stronger an edge, the wider its line.");
    said.push("Point at a line or a node, or go there by Tab and the arrow keys.");
    said.push("A click or Enter keeps what is said, Escape lets go.");
    return html("p", { class: "notes" }, said.join(" "));
  }

  // --- moving

  function go(index) {
    state.index = clamp(index, 0, stops.length - 1);
    show(stops[state.index]);
  }

  function exactly(wanted, spoken = true) {
    const k = Number.isFinite(wanted) ? clamp(Math.round(wanted), 0, data.most) : state.stop.k;
    state.index = closest(range(stops.length), (i) => Math.abs(stops[i].k - k));
    show(byStep ? stops[state.index] : { k }, spoken);
  }

  function show(stop, spoken = true) {
    state.stop = stop;
    unpin();
    const picked = methods.map((method) => method.pick(stop.k, stop.step)), all = picked.map(counted);
    picked.forEach((one, i) => panels[i].show(one));
    counts.show(all);
    chart.show(state.index, stop);
    table.show();
    slider.value = state.index;
    number.value = stop.k;
    set(slider, { "aria-valuetext": (byStep ? `${picked[0].limit}, ` : "") + plural(stop.k, "edge") });
    clearTimeout(state.speaking);
    if (spoken) state.speaking = setTimeout(() => (live.textContent = all.map(spokenText).join(" ")), 400);
  }

  function counted({ ids, faithfulness }) {
    const hits = ids.filter((e) => known.has(e)).length, edges = ids.length, missed = known.size - hits;
    return { edges, hits, missed, false: edges - hits, precision: hits / edges, recall: hits / known.size, faithfulness };
  }

  function spokenText(found, i) {
    const { hits, missed } = found, truth = `, ${plural(hits, "hit")}, ${count(missed)} missed, ${count(found.false)} false`;
    const carried = found.faithfulness ? `, faithfulness ${share(found.faithfulness.value)}` : "";
    return `${methods[i].label}: ${plural(found.edges, "edge")}${data.truth ? truth : ""}${carried}.`;
  }

  function only(i) {
    state.only = i;
    radios[i + 1].checked = true;
    unpin();
    panels.forEach((panel, j) => (panel.figure.hidden = i >= 0 && i !== j));
    counts.rows.forEach((row, j) => row.classList.toggle("chosen", i === j));
    if (i >= 0) table.choose(i);
    place();
    grown();
  }

  // Pictures stand side by side where there is room for the names in them, else below each other.
  function place() {
    const room = root.clientWidth - 2 * parseFloat(getComputedStyle(root).paddingLeft), gap = 18;
    const width = room > 0 ? room : state.width || NARROW; // hidden as yet, in a folded cell or a frame to come
    if (width === state.width && state.only === state.placed) return;
    Object.assign(state, { width, placed: state.only });
    if (room > 0 && !state.seen && methods.length > 1 && room < NARROW) {
      state.seen = true;
      return only(0);
    }
    state.seen = state.seen || room > 0;
    const shown = state.only < 0 ? panels.length : 1, fit = clamp(Math.floor((width + gap) / (300 + gap)), 1, shown);
    const columns = Math.ceil(shown / Math.ceil(shown / fit));
    grid.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
    const each = Math.min(960, Math.floor((width - gap * (columns - 1)) / columns));
    panels.forEach((panel) => panel.place(each));
    chart.place(width - INSET, state.only);
    if (state.stop) chart.show(state.index, state.stop);
    unpin();
  }

  // --- saying

  function rolesOf(i) {
    return roles.filter(([, heads]) => heads.includes(graph.nodes[i].name)).map(([role]) => role).join(", ");
  }
  function rolesText(e) {
    const ends = [rolesOf(graph.from[e]), rolesOf(graph.to[e])];
    return ends[0] || ends[1] ? `${ends[0] || graph.sender(e)} → ${ends[1] || graph.nodes[graph.to[e]].name}` : "";
  }
  function edgeText(e, method, status) {
    const meaning = data.truth ? `; ${MEANING[status]}` : "", played = rolesText(e);
    return `${graph.sender(e)} to ${graph.receiver(e)}: ${method.says(e)}${meaning}${played && `; ${played}`}`;
  }

  // What is pointed at shows in all pictures, so that methods can be compared edge by edge.
  function point(panel, thing) {
    const now = thing && `${panel.method.index} ${thing.edge} ${thing.node}`;
    if (state.pinned || now === state.pointed) return;
    state.pointed = now;
    for (const other of panels) {
      if (!thing) other.heat([], []);
      else if (thing.edge !== undefined) other.heat([thing.edge], [graph.from[thing.edge], graph.to[thing.edge]]);
      else other.heat(other.edgesOf(thing.node), [thing.node]);
    }
    tip.hidden = !thing;
    if (thing) tell(panel, thing);
  }

  function pin(panel, thing) {
    const before = state.pinned, same = before && thing && before.panel === panel;
    unpin();
    if (!thing || (same && before.thing.edge === thing.edge && before.thing.node === thing.node)) return;
    point(panel, thing);
    state.pinned = { panel, thing };
    panel.press(thing, true);
    tip.classList.add("kept");
  }

  function unpin() {
    if (state.pinned) state.pinned.panel.press(state.pinned.thing, false);
    state.pinned = null;
    tip.classList.remove("kept");
    point(panels[0], null);
  }

  function tell(panel, thing) {
    tip.replaceChildren(...(thing.edge === undefined ? tellNode(panel, thing.node) : tellEdge(thing.edge)));
    // Beside what it is about, else below: it hides neither end.
    const from = panel.picture.getBoundingClientRect(), to = root.getBoundingClientRect(), room = panel.room(thing);
    const x = from.left - to.left, y = from.top - to.top, width = tip.offsetWidth, most = Math.max(4, to.width - width - 6);
    const onRight = x + room.right + 12, onLeft = x + room.left - 12 - width;
    const below = clamp(x + (room.left + room.right - width) / 2, 4, most), beside = onRight <= most ? onRight : onLeft;
    tip.style.left = `${beside < 4 ? below : beside}px`;
    tip.style.top = `${y + (beside < 4 ? room.bottom + 8 : (room.top + room.bottom - tip.offsetHeight) / 2)}px`;
  }

  function tellEdge(e) {
    const played = rolesText(e), truth = !data.truth ? "" : known.has(e) ? ": true" : ": not true";
    const rows = panels.map(({ method, status }) => {
      const kept = status(e) === HIT || status(e) === FALSE, rank = method.rank(e);
      const cells = [method.value(e), rank ? `rank ${count(rank)}` : "", kept ? "kept" : "not kept"];
      return html("tr", {}, html("th", { scope: "row" }, method.label), cells.map((text) => html("td", {}, text)));
    });
    const lines = [html("p", {}, html("b", {}, graph.name(e)), truth)];
    return [...lines, ...(played ? [html("p", {}, played)] : []), html("table", {}, html("tbody", {}, rows))];
  }

  function tellNode(panel, i) {
    const kept = panel.edgesOf(i).filter((e) => panel.status(e) !== MISSED), { name } = graph.nodes[i], played = rolesOf(i);
    const into = kept.filter((e) => graph.to[e] === i), out = kept.filter((e) => graph.from[e] === i);
    const sender = (e) => graph.sender(e) + (graph.part[e] && ` (${graph.part[e]})`);
    const where = methods.length > 1 ? `, in ${panel.method.label}` : "";
    const lines = [html("p", {}, html("b", {}, name), played && ` ${played}`, where)];
    if (name !== "embed") lines.push(html("p", {}, `reads ${listed(into.map(sender))}`));
    if (name !== "logits") lines.push(html("p", {}, `is read by ${listed(out.map(graph.receiver))}`));
    return lines;
  }
  function listed(names) {
    const more = names.length > 8 ? ` and ${count(names.length - 8)} more` : "";
    return names.slice(0, 8).join(", ") + more || "nothing";
  }

  // --- the page around

  // A key that means something here must not turn the pages of the book or move through a notebook.
  function onKey(event) {
    if (event.key === "Escape") unpin();
    if (/^(Arrow|Page|Home|End|Enter| |Escape)/.test(event.key)) event.stopPropagation();
  }

  // In Colab an output stands in a frame that may have to be told that it has grown.
  function grown() {
    window.google?.colab?.output?.resizeIframeToContent?.();
  }
}

document.querySelectorAll(".circuitlib-explorer:not([data-drawn])").forEach(draw);
})();
