// Curves are drawn by Vega, which stands above this; all else is plain HTML that works without it.
const $ = (query, root = document) => root.querySelector(query);
const $$ = (query, root = document) => [...root.querySelectorAll(query)];
const read = (id) => JSON.parse($("#data-" + id)?.textContent ?? "null");
const make = (tag, attributes = {}, text = "") => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
};
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const figure = (value) => (Math.abs(value) >= 1e5 ? value.toExponential(3) : String(Number(value.toPrecision(4))));
const SPLITS = { train: "training", valid: "validation", test: "test" };
const PALETTE = 8; // colors of the style sheet, --c0 to --c7
const charts = [];

function redraw() {
  for (const chart of charts) if (chart.root.clientWidth) chart.draw();
  for (const paint of painted) paint();
}
const painted = [];

// Curves ------------------------------------------------------------------------------------------------------------

const rowColor = (number) =>
  number < PALETTE ? color("c" + number) : `hsl(${(number * 137.5) % 360} 55% ${isDark() ? 65 : 45}%)`;

const extent = (values) => [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))];

const interpolate = (points, x) => {
  const after = points.findIndex(([step]) => step >= x);
  if (after < 0) return points.at(-1)[1];
  if (!after || points[after][0] === x) return points[after][1];
  const [[x0, y0], [x1, y1]] = [points[after - 1], points[after]];
  return y0 + ((x - x0) / (x1 - x0)) * (y1 - y0);
};

function smoothed(points, weight) {
  let mean = 0, total = 0; // so that the first point stands for itself, as Adam's moments are corrected
  return points.map(([x, y]) => {
    if (y === null) return [x, null];
    mean = weight * mean + (1 - weight) * y;
    total = weight * total + (1 - weight);
    return [x, mean / total];
  });
}

// Curves of several seeds of a row become their mean, with a band from the lowest to the highest, if their steps agree.
function merged(group) {
  const [first] = group, agree = group.every(({ points }) => points.length === first.points.length && points.every(([x, y], i) => x === first.points[i][0] && y !== null));
  if (group.length < 3 || !agree) return group;
  const values = first.points.map(([x], i) => [x, group.map(({ points }) => points[i][1])]);
  const points = values.map(([x, ys]) => [x, ys.reduce((a, b) => a + b) / ys.length]);
  return [{ one: first.one, points, band: values.map(([x, ys]) => [x, ...extent(ys)]), count: group.length }];
}

class Chart {
  constructor(root, panel, runs, controls) {
    Object.assign(this, { root, panel, runs, controls, window: null });
    const title = make("h3", {}, panel.title), head = make("div", { class: "title" }), buttons = make("span", { class: "buttons" });
    if (panel.better) title.append(make("small", {}, panel.better));
    for (const [label, name, act] of [
      ["+", "zoom in", () => this.zoom(0.5)],
      ["−", "zoom out", () => this.zoom(2)],
      ["←", "to the left", () => this.pan(-0.25)],
      ["→", "to the right", () => this.pan(0.25)],
      ["⤢", "show all", () => this.show(null)],
    ]) {
      const button = make("button", { type: "button", "aria-label": `${panel.title}: ${name}`, title: name }, label);
      button.addEventListener("click", act);
      buttons.append(button);
    }
    head.append(title, buttons);
    this.place = make("div", { class: "plot", tabindex: "0", role: "group", "aria-label": this.described() });
    this.readout = make("p", { class: "readout" });
    root.append(head, this.place, this.readout);
    this.listen();
    charts.push(this);
  }

  described() {
    const last = this.panel.series.map((one) => `${this.label(one)} ${one.points.at(-1)?.[1] ?? "not finite"}`);
    return `${this.panel.title}, last: ${last.slice(0, 6).join(", ")}. Keys: plus, minus, arrows, 0 for all.`;
  }

  label(one, count = 1) {
    const split = SPLITS[one.split] ?? one.split;
    if (count > 1) return `${this.controls.rows[this.row(one.run)]}, mean of ${count}, ${split}`;
    return this.runs.length > 1 ? [this.runs[one.run].name, split].filter(Boolean).join(", ") : split;
  }

  x(run, step) {
    const { offset, axes } = this.runs[run], axis = this.controls.axis;
    return axis === "step" ? offset + step : interpolate(axes[axis], step);
  }

  row(run) {
    return this.runs[run].row;
  }

  has(run) {
    return this.controls.axis === "step" || this.runs[run].axes?.[this.controls.axis];
  }

  curves() {
    const { hidden, log, smoothing } = this.controls, curves = [], groups = new Map();
    for (const one of this.panel.series.filter(({ run }) => !hidden.has(this.row(run)) && this.has(run))) {
      const points = one.points.map(([step, y]) => [this.x(one.run, step), log && y <= 0 ? null : y]);
      const key = `${this.row(one.run)} ${one.split}`;
      groups.set(key, [...(groups.get(key) ?? []), { one, points }]);
    }
    for (const { one, points, band, count } of [...groups.values()].flatMap(merged)) {
      const own = this.runs.length > 1 ? rowColor(this.row(one.run)) : color({ train: "c2", test: "c1" }[one.split] ?? "c0");
      const isTrain = one.split === "train";
      const style = { color: own, width: isTrain ? 1.3 : 2.2, dash: isTrain && this.runs.length > 1 ? [5, 3] : [], opacity: 1 };
      if (smoothing && isTrain) {
        curves.push({ points, style: { ...style, opacity: 0.25 }, label: null });
        curves.push({ points: smoothed(points, smoothing), style, label: this.label(one, count) });
      } else curves.push({ points, band, style, label: this.label(one, count) });
    }
    return curves;
  }

  async draw() {
    const curves = this.curves(), { log } = this.controls;
    const lines = this.panel.lines.filter(({ run, value }) => !(run !== null && this.controls.hidden.has(this.row(run))) && !(log && value <= 0));
    const stages = this.runs.length > 1 ? [] : this.runs[0].stages.map(([step, text]) => ({ x: this.x(0, step), text }));
    this.drawn = { curves, lines, stages };
    const number = (this.number = (this.number ?? 0) + 1);
    const xs = curves.flatMap(({ points }) => points.map(([x]) => x));
    if (!xs.length) {
      this.view?.finalize();
      this.view = null;
      return this.place.replaceChildren("Nothing to draw on this axis.");
    }
    this.whole = extent(xs);
    if (this.whole[0] === this.whole[1]) this.whole = this.whole[0] ? [0, this.whole[0]] : [0, 1];
    const holder = make("div", { "aria-hidden": "true" });
    const config = read("themes")[isDark() ? "dark" : "light"];
    const options = { mode: "vega", renderer: "svg", config, actions: false, tooltip: false, hover: false, defaultStyle: false };
    const { view } = await vegaEmbed(holder, this.spec(curves, lines), options);
    if (number !== this.number) return view.finalize(); // overtaken by another change
    this.view?.finalize();
    this.view = view;
    this.place.replaceChildren(holder);
    this.tell(this.whole[1]);
  }

  domains() {
    const [low, high] = this.window ?? this.whole, { curves, lines } = this.drawn, { log } = this.controls;
    const heights = ({ points, band }) => band ?? points.filter(([, y]) => y !== null);
    const seen = curves.flatMap((curve) => heights(curve).filter(([x]) => x >= low && x <= high).flatMap(([, ...ys]) => ys));
    // A far upper bound would leave the curves little space.
    const ys = [...seen, ...(this.window && seen.length ? [] : lines.filter(({ is_bound }) => !is_bound).map(({ value }) => value))];
    let [bottom, top] = ys.length ? extent(ys) : [1, 2];
    if (log && bottom === top) [bottom, top] = [bottom / 2, top * 2];
    // A few points would magnify their noise: the axis spans at least a tenth of their size.
    const spread = log || seen.length > 4 * curves.length ? 0 : Math.max(0, 0.1 * Math.max(Math.abs(bottom), Math.abs(top)) - (top - bottom)) / 2;
    [bottom, top] = [bottom - spread, top + spread];
    const room = log ? 0 : 0.05 * (top - bottom || Math.abs(top) || 1);
    this.place.dataset.window = `${low} ${high}`;
    return { xd: [low, high], yd: [bottom - room, top + room] };
  }

  spec(curves, lines) {
    const { xd, yd } = this.domains(), ink = color("ink"), font = getComputedStyle(document.body).fontFamily;
    const axis = { grid: true, labelFont: font, titleFont: font, tickCount: 5 };
    const styles = curves.map(({ style }) => style);
    const values = curves.flatMap(({ points }, s) => points.map(([x, y]) => ({ x, y, s, size: points.length > 1 ? 14 : 70 })));
    const levels = lines.map(({ run, name, value }) => ({ text: `${name} ${figure(value)}`, value, color: run === null || this.runs.length < 2 ? ink : rowColor(this.row(run)) }));
    const style = (name) => ({ signal: `styles[datum.s].${name}` });
    const log = this.controls.log, title = this.panel.axis ?? { step: "step", tokens: "tokens, padding and sources aside", hours: "hours" }[this.controls.axis];
    return {
      width: this.place.clientWidth, height: 230, autosize: { type: "fit", contains: "padding", resize: true }, padding: { left: 2, right: 12, top: 4, bottom: 2 },
      signals: [{ name: "xd", value: xd }, { name: "yd", value: yd }, { name: "styles", value: styles },
        { name: "brush", value: [0, 0] }, { name: "at", value: -1 }],
      data: [{ name: "points", values }, { name: "levels", values: levels }, { name: "stages", values: this.drawn.stages },
        { name: "bands", values: curves.flatMap(({ band }, s) => (band ?? []).map(([x, bottom, top]) => ({ x, bottom, top, s }))) }],
      scales: [
        { name: "x", type: this.panel.log ? "log" : "linear", domain: { signal: "xd" }, range: "width", padding: 6, zero: false, nice: false, ...(this.panel.log ? { base: 2 } : {}) },
        { name: "y", type: log ? "log" : "linear", domain: { signal: "yd" }, range: "height", zero: false, nice: false },
      ],
      axes: [
        { ...axis, orient: "bottom", scale: "x", title, format: "~s" },
        { ...axis, orient: "left", scale: "y", ...(log ? { format: ".3~g" } : {}) },
      ],
      marks: [{
        type: "group", clip: true, encode: { update: { width: { signal: "width" }, height: { signal: "height" } } },
        marks: [
          { type: "rule", from: { data: "levels" }, encode: { update: { x: { value: 0 }, x2: { signal: "width" },
            y: { scale: "y", field: "value" }, stroke: { field: "color" }, strokeDash: { value: [2, 3] } } } },
          { type: "text", from: { data: "levels" }, encode: { update: { x: { signal: "width - 4" }, align: { value: "right" },
            y: { signal: "scale('y', datum.value) + (scale('y', datum.value) < 16 ? 12 : -4)" }, fontSize: { value: 11 }, fill: { field: "color" },
            font: { value: font }, text: { field: "text" } } } },
          { type: "rule", from: { data: "stages" }, encode: { update: { x: { scale: "x", field: "x" }, y: { value: 0 }, y2: { signal: "height" },
            stroke: { value: ink }, strokeOpacity: { value: 0.4 }, strokeDash: { value: [6, 3] } } } },
          { type: "text", from: { data: "stages" }, encode: { update: { x: { scale: "x", field: "x", offset: 4 }, y: { value: 10 },
            fontSize: { value: 11 }, fill: { value: ink }, font: { value: font }, text: { field: "text" } } } },
          { type: "group", from: { facet: { name: "band", data: "bands", groupby: "s" } }, marks: [
            { type: "area", from: { data: "band" }, encode: { update: { x: { scale: "x", field: "x" }, y: { scale: "y", field: "bottom" },
              y2: { scale: "y", field: "top" }, fill: style("color"), fillOpacity: { value: 0.18 } } } }] },
          { type: "group", from: { facet: { name: "curve", data: "points", groupby: "s" } }, marks: [
            { type: "line", from: { data: "curve" }, encode: { update: { x: { scale: "x", field: "x" }, y: { scale: "y", field: "y" },
              defined: { signal: "isValid(datum.y)" }, stroke: style("color"), strokeWidth: style("width"),
              strokeDash: style("dash"), strokeOpacity: style("opacity") } } }] },
          ...(values.length > 400 ? [] : [{ type: "symbol", from: { data: "points" }, encode: { update: {
            x: { scale: "x", field: "x" }, y: { scale: "y", field: "y" }, size: { field: "size" }, fill: style("color"),
            fillOpacity: { signal: "isValid(datum.y) ? styles[datum.s].opacity : 0" } } } }]),
          { type: "rule", encode: { update: { x: { signal: "at" }, y: { value: 0 }, y2: { signal: "height" },
            stroke: { value: ink }, strokeOpacity: { signal: "at < 0 ? 0 : 0.5" } } } },
          { type: "rect", encode: { update: { x: { signal: "min(brush[0], brush[1])" }, x2: { signal: "max(brush[0], brush[1])" },
            y: { value: 0 }, y2: { signal: "height" }, fill: { value: color("accent") }, fillOpacity: { value: 0.2 } } } },
        ],
      }],
    };
  }

  show(window) {
    if (!this.view) return;
    this.window = window && [Math.max(window[0], this.whole[0]), Math.min(window[1], this.whole[1])];
    if (this.window && !(this.window[1] > this.window[0])) this.window = null;
    const { xd, yd } = this.domains();
    this.view.signal("xd", xd).signal("yd", yd).run();
  }

  zoom(factor) {
    if (!this.view) return;
    const [low, high] = this.window ?? this.whole, middle = (low + high) / 2, half = ((high - low) / 2) * factor;
    this.show(middle - half <= this.whole[0] && middle + half >= this.whole[1] ? null : [middle - half, middle + half]);
  }

  pan(part) {
    if (!this.view) return;
    const [low, high] = this.window ?? this.whole, [start, end] = this.whole;
    const by = Math.min(Math.max(part * (high - low), start - low), end - high);
    this.show([low + by, high + by]);
  }

  listen() {
    const pixel = (event) => event.clientX - $("svg", this.place).getBoundingClientRect().left - this.view.origin()[0];
    let from = null;
    this.place.addEventListener("pointerdown", (event) => {
      if (event.button || !this.view) return;
      from = pixel(event);
      this.place.setPointerCapture(event.pointerId);
    });
    this.place.addEventListener("pointermove", (event) => {
      if (!this.view) return;
      if (from !== null) this.view.signal("brush", [from, pixel(event)]);
      this.view.signal("at", pixel(event)).run();
      this.tell(this.view.scale("x").invert(pixel(event)));
    });
    const end = (event) => {
      if (from === null) return;
      const edges = [from, pixel(event)].sort((a, b) => a - b);
      from = null;
      this.view.signal("brush", [0, 0]).run();
      if (event.type === "pointerup" && edges[1] - edges[0] > 8) this.show(edges.map((edge) => this.view.scale("x").invert(edge)));
    };
    this.place.addEventListener("pointerup", end);
    this.place.addEventListener("pointercancel", end);
    this.place.addEventListener("pointerleave", () => {
      if (from !== null || !this.view) return;
      this.view.signal("at", -1).run();
      this.tell(this.whole[1]);
    });
    this.place.addEventListener("dblclick", () => this.show(null));
    this.place.addEventListener("keydown", (event) => {
      const act = { "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.show(null),
        ArrowLeft: () => this.pan(-0.25), ArrowRight: () => this.pan(0.25) }[event.key];
      if (!act || !this.view || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      act();
    });
  }

  tell(x) {
    const near = this.drawn.curves.filter(({ label }) => label).map(({ points, label, style }) => {
      const finite = points.filter(([, y]) => y !== null);
      return finite.length ? { label, style, point: finite.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a)) } : null;
    });
    const bounds = this.drawn.lines.filter(({ is_bound }) => is_bound).map(({ name, value }) => make("span", {}, `${name} ${figure(value)}`));
    this.readout.replaceChildren(...near.filter(Boolean).slice(0, 8).map(({ label, style, point }) => {
      const span = make("span", {}, `${label} ${figure(point[1])} at ${figure(point[0])}`);
      span.style.borderColor = style.color;
      return span;
    }), ...bounds);
  }
}

function curves() {
  const data = read("curves"), form = $("#curve-controls");
  if (!data) return;
  const controls = { axis: "step", log: false, smoothing: 0, hidden: new Set(), rows: data.rows };
  for (const place of $$("[data-panel]")) new Chart(place, data.panels[place.dataset.panel], data.runs, controls);
  form.addEventListener("input", () => {
    controls.axis = form.elements.axis.value;
    controls.log = form.elements.log.checked;
    controls.smoothing = Number(form.elements.smoothing.value);
    form.elements.shown.value = controls.smoothing ? controls.smoothing.toFixed(2) : "off";
    for (const box of $$("[data-row]", form)) controls.hidden[box.checked ? "delete" : "add"](Number(box.dataset.row));
    for (const chart of charts) if (chart.controls === controls) chart.window = null;
    redraw();
  });
  for (const [name, checked] of [["all", true], ["none", false]])
    $(`[data-rows=${name}]`, form)?.addEventListener("click", () => {
      for (const box of $$("[data-row]", form)) box.checked = checked;
      form.dispatchEvent(new Event("input"));
    });
}

// Tables ------------------------------------------------------------------------------------------------------------

const DRAWN = 200; // rows of a long table that are drawn at once
const collator = new Intl.Collator(undefined, { numeric: true });

// The order of two sort keys: numbers by value, texts by the collator, and missing ones last in both directions.
function compared(x, y, sign) {
  if (x === "" || y === "") return (x === "") - (y === "");
  const both = x - y;
  return sign * (Number.isNaN(both) ? collator.compare(x, y) : both);
}

// Sorts and filters a table. Of a long table, only the first rows are in the page's HTML, and the others are data.
function interactive(table) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells], labels = heads.map((head) => head.textContent.trim());
  const input = $(`input[data-filter="${table.id}"]`), more = $(`button[data-more="${table.id}"]`);
  const rows = [...body.rows].map((element) => {
    const values = [...element.cells].map((cell) => cell.dataset.value ?? cell.textContent.trim());
    return { element, values, text: element.textContent.toLowerCase() };
  });
  for (const values of more ? read(table.id) : []) rows.push({ values, text: values.join(" ").toLowerCase() });
  let limit = more ? DRAWN : rows.length;

  const made = ({ values }) => {
    const element = make("tr");
    values.forEach((value, i) => element.insertCell().append(make("span", {}, value)));
    [...element.cells].forEach((cell, i) => Object.assign(cell, { className: i ? "" : "key" }).setAttribute("data-label", labels[i]));
    return element;
  };
  function draw() {
    const wanted = input?.value.toLowerCase() ?? "", matching = rows.filter(({ text }) => text.includes(wanted));
    body.replaceChildren(...matching.slice(0, limit).map((row) => (row.element ??= made(row))));
    if (!more) return;
    more.hidden = matching.length <= limit;
    more.textContent = `Show more: ${Math.min(limit, matching.length).toLocaleString("en")} of ${matching.length.toLocaleString("en")} rows`;
  }

  input?.addEventListener("input", draw);
  more?.addEventListener("click", () => {
    limit += DRAWN;
    draw();
  });
  heads.forEach((head, column) => {
    const button = make("button", { type: "button", class: "sort" });
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      rows.sort((a, b) => compared(a.values[column], b.values[column], down ? -1 : 1));
      draw();
    });
  });
  if (more) draw();
}

// Attention and other pictures of numbers -----------------------------------------------------------------------------

const bytes = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
const rgb = (name) => color(name).match(/\d+/g).map(Number);
const isDark = () => getComputedStyle(document.documentElement).colorScheme === "dark";

function matrices() {
  for (const canvas of $$("canvas[data-matrix]")) {
    const { shape, data, low, high, ends } = read("matrices")[canvas.dataset.matrix], [height, width] = shape;
    Object.assign(canvas, { width, height });
    const context = canvas.getContext("2d"), image = context.createImageData(width, height);
    painted.push(() => {
      const from = rgb("paper-rgb"), plus = rgb("accent-rgb"), minus = rgb("shade"), blank = ends[0] < 0 ? 0 : ends[0];
      bytes(data).forEach((byte, i) => {
        const value = low + (byte / 255) * (high - low) - blank, to = value < 0 ? minus : plus, weight = Math.abs(value) / (ends[1] - blank || 1);
        image.data.set([...from.map((start, c) => start + weight * (to[c] - start)), 255], 4 * i);
      });
      context.putImageData(image, 0, 0);
    });
  }
}

const LABEL = 11; // pixels of a line of text in the map
const svg = (tag, attributes, text = "") => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
};
const short = (token) => (token.length > 12 ? token.slice(0, 11) + "…" : token.trim() || "␣");

// The weights of all queries, as parts of the largest: a row for each, with as many labels as there is room for.
function drawMap(place, values, queries, keys) {
  const margin = 20 + 0.62 * LABEL * Math.max(...[...queries, ...keys].map((token) => short(token).length));
  const cell = Math.max(1, Math.min(22, (place.clientWidth - margin - 2) / keys.length)), every = Math.ceil((LABEL + 1) / cell);
  const [width, height] = [keys.length * cell, queries.length * cell];
  const map = svg("svg", { width: margin + width + 2, height: margin + height + 2, role: "img", "aria-label": "Attention weights: a row for each query, a column for each key" });
  map.append(svg("text", { class: "axis", x: margin + width / 2, y: LABEL, "text-anchor": "middle" }, "keys"));
  map.append(svg("text", { class: "axis", "text-anchor": "middle", transform: `translate(${LABEL} ${margin + height / 2}) rotate(-90)` }, "queries"));
  keys.forEach((token, i) => i % every || map.append(svg("text", { transform: `translate(${margin + (i + 0.5) * cell + 4} ${margin - 4}) rotate(-90)` }, short(token))));
  queries.forEach((token, i) => i % every || map.append(svg("text", { x: margin - 4, y: margin + (i + 0.5) * cell + 4, "text-anchor": "end" }, short(token))));
  values.forEach((value, i) => {
    const [row, column] = [Math.floor(i / keys.length), i % keys.length];
    map.append(svg("rect", { class: "cell", x: margin + column * cell, y: margin + row * cell, width: cell, height: cell, style: `--weight: ${value.toFixed(3)}` }));
  });
  map.append(svg("rect", { class: "frame", x: margin, y: margin, width, height }));
  map.append(svg("rect", { class: "row", x: margin, width, height: cell }));
  place.replaceChildren(map);
  return { mark: (row) => $(".row", map).setAttribute("y", margin + row * cell), rowAt: (y) => Math.floor((y - margin) / cell) };
}

function attention() {
  const examples = read("attention"), root = $("#attention-viewer");
  if (!examples || !root) return;
  const [which, kind, layer, head] = ["example", "kind", "layer", "head"].map((name) => $(`select[name=${name}]`, root));
  const [queries, keys, map, told] = [".queries", ".keys", ".map", ".readout"].map((part) => $(part, root));
  let shown, asked = 0;
  const options = (select, names) => {
    const before = select.value;
    select.replaceChildren(...names.map(([value, text]) => make("option", { value }, text)));
    if (names.some(([value]) => value === before)) select.value = before;
  };
  const numbers = (count, name) => Array.from({ length: count }, (_, i) => [String(i), `${name} ${i}`]);

  function choose() {
    options(kind, Object.keys(examples[which.value].kinds).map((name) => [name, name]));
    const found = examples[which.value].kinds[kind.value], [layers, heads] = found.weights.shape;
    options(layer, numbers(layers, "layer"));
    options(head, [["mean", "mean of heads"], ...numbers(heads, "head")]);
    const [, , rows, columns] = found.weights.shape, size = rows * columns, raw = bytes(found.weights.data);
    const at = (h) => raw.subarray((layer.value * heads + h) * size, (layer.value * heads + h + 1) * size);
    const chosen = head.value === "mean" ? numbers(heads, "").map(([h]) => at(Number(h))) : [at(Number(head.value))];
    const values = Array.from({ length: size }, (_, i) => chosen.reduce((sum, one) => sum + one[i], 0) / (255 * chosen.length));
    const largest = values.reduce((a, b) => Math.max(a, b)), relative = values.map((value) => value / (largest || 1));
    $("output", root).value = figure(largest);
    shown = { values, relative, columns, rows, found, map: drawMap(map, relative, found.queries, found.keys) };
    asked = Math.min(asked, rows - 1);
    const words = (place, texts, tag) => place.replaceChildren(...texts.map((text, i) => make(tag, { "data-i": i }, text.trim() || "␣")));
    words(queries, found.queries, "button");
    words(keys, found.keys, "span");
    $$("button", queries).forEach((button) => (button.type = "button"));
    look(asked);
  }

  function look(number) {
    asked = number;
    const [row, shades] = [shown.values, shown.relative].map((all) => all.slice(number * shown.columns, (number + 1) * shown.columns));
    $$("button", queries).forEach((button, i) => {
      button.setAttribute("aria-pressed", i === number);
      button.tabIndex = i === number ? 0 : -1;
    });
    $$("span", keys).forEach((span, i) => {
      span.style.setProperty("--weight", shades[i]);
      span.title = `${(100 * row[i]).toFixed(1)} %`;
    });
    const best = row.map((weight, i) => [weight, i]).sort((a, b) => b[0] - a[0]).slice(0, 4);
    told.textContent = `“${shown.found.queries[number]}” attends to ` +
      best.map(([weight, i]) => `“${shown.found.keys[i]}” ${(100 * weight).toFixed(0)} %`).join(", ");
    shown.map.mark(number);
  }

  for (const select of [which, kind, layer, head]) select.addEventListener("input", choose);
  for (const type of ["pointerover", "focusin"])
    queries.addEventListener(type, ({ target }) => target.dataset.i !== undefined && look(Number(target.dataset.i)));
  queries.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const next = by && queries.children[asked + by];
    if (!next) return;
    event.preventDefault();
    next.focus();
  });
  map.addEventListener("pointermove", (event) => {
    const row = shown.map.rowAt(event.clientY - map.getBoundingClientRect().top);
    if (row >= 0 && row < shown.rows) look(row);
  });
  options(which, examples.map(({ title }, i) => [String(i), title]));
  painted.push(choose);
}

// Tradeoffs ----------------------------------------------------------------------------------------------------------

function tradeoffs() {
  for (const place of $$("[data-tradeoff]")) {
    const spec = read("tradeoffs")[place.dataset.tradeoff];
    let last = 0;
    painted.push(async () => {
      const number = (last += 1), holder = make("div");
      const config = read("themes")[isDark() ? "dark" : "light"];
      const options = { mode: "vega-lite", renderer: "svg", config, actions: false, defaultStyle: false };
      await vegaEmbed(holder, { ...spec, width: place.clientWidth }, options);
      if (number === last) place.replaceChildren(holder); // not overtaken by another theme or width
    });
  }
}

// The page ----------------------------------------------------------------------------------------------------------

function theme() {
  const button = $("#theme"), root = document.documentElement;
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

theme();
curves();
$$("table.sortable").forEach(interactive);
matrices();
tradeoffs();
attention();
redraw();
for (const details of $$("details")) details.addEventListener("toggle", () => details.open && redraw());
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== width) redraw(); // phones resize the height as their bars come and go
  width = innerWidth;
});
