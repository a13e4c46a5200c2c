// Draws what ring.py has worked out, which is DATA: who sends what, and what has gone through whom.
import { INK, copyLink, drawing, element, labelled, letters, onLines, patterns, place, presets, shape, table } from "./shared.js";

const COLOURS = ["var(--blue)", "var(--orange)", "var(--green)", "var(--pink)", "var(--red)", "var(--sky)", "var(--yellow)", "var(--grey)"];
const status = element("p", { role: "status" });
const shown = element("div", { class: "shown" });
const tables = element("div", { class: "tables" });
let [position, timer] = [0, null];

function choice(name, label, values) {
  const options = values.map(([value, words]) => element("option", { value }, words));
  const select = element("select", { name }, ...options);
  select.value = DATA.start[name];
  return [select, labelled(label, select)];
}

const [way, wayLabel] = choice("way", "algorithm", Object.entries(DATA.ways));
const [processes, processesLabel] = choice("processes", "processes", DATA.processes.map((size) => [size, size]));
const [chunks, chunksLabel] = choice("chunks", "chunks", DATA.chunks.map((count) => [count, count]));
const slider = element("input", { type: "range", name: "step", min: 0, step: 1, value: 0 });
const output = element("output");
const buttons = ["to the start", "back", "step", "play"].map((word) => element("button", { type: "button" }, word));
const [first, back, step, play] = buttons;

function run() {
  const runs = DATA.runs[way.value][processes.value];
  return runs[way.value === "ring" ? chunks.value : DATA.start.chunks];
}

// A step of another way, or its last one where it has fewer.
function server(at) {
  const { steps } = DATA.runs.server[processes.value][DATA.start.chunks];
  return steps[Math.min(at, steps.length) - 1];
}

// What each process has in each chunk, after so many steps: its own at first, then what has arrived last.
function held(found, at) {
  const cells = Array.from({ length: Number(processes.value) }, (_, rank) => Array(found.chunks).fill(String(rank)));
  for (const { moves } of found.steps.slice(0, at)) {
    for (const [, target, chunk, content] of moves) cells[target][chunk] = content;
  }
  return cells;
}

const pale = (colour, part) => `color-mix(in srgb, ${colour} ${part}%, white)`;

function draw() {
  const found = run();
  const size = Number(processes.value);
  const now = position ? found.steps[position - 1] : { moves: [], through: Array(size).fill(0), most: 0 };
  const side = 52;
  const wide = Math.max(280, shown.clientWidth);
  const step = Math.min(110, (wide - side) / size);
  const [cell, high] = [Math.min(80, step - 4), 26];
  const [top, left] = [64, (rank) => side + step * rank + (step - cell) / 2];
  const bottom = top + 22 + high * found.chunks;
  const title = `What ${size} processes hold after ${position} steps`;
  const made = drawing(side + step * size, bottom + 104, title);
  made.append(patterns());
  const middle = (rank) => left(rank) + cell / 2;
  for (const pair of new Set(now.moves.map(([source, target]) => `${source} ${target}`))) {
    const [source, target] = pair.split(" ").map(Number);
    const turn = target > source ? 5 : -5;
    const [from, to] = [middle(source) + turn, middle(target) - turn];
    const lift = Math.min(52, 14 + 6 * Math.abs(target - source)) + (turn < 0 ? 8 : 0);
    const d = `M${from} ${top - 4}C${from} ${top - 4 - lift} ${to} ${top - 4 - lift} ${to} ${top - 4}`;
    made.append(shape("path", { d, fill: "none", stroke: INK, "stroke-width": 1.6, "marker-end": "url(#head)" }));
  }
  const arrived = new Set(now.moves.map(([, target, chunk]) => `${target} ${chunk}`));
  const cells = held(found, position);
  for (let rank = 0; rank < size; rank += 1) {
    const name = step > 50 ? `rank ${rank}` : String(rank);
    made.append(letters(middle(rank), top + 13, name, { "text-anchor": "middle", "font-weight": "bold" }));
  }
  if (step <= 50) made.append(letters(0, top + 13, "rank", { "font-weight": "bold" }));
  for (let chunk = 0; chunk < found.chunks; chunk += 1) {
    const y = top + 22 + high * chunk;
    made.append(letters(0, y + 17, `chunk ${chunk}`));
    for (let rank = 0; rank < size; rank += 1) {
      const content = cells[rank][chunk];
      const isNew = arrived.has(`${rank} ${chunk}`);
      const part = 15 + (45 * (content.length - 1)) / (size - 1);
      const tile = { x: left(rank), y: y + 2, width: cell, height: high - 4, fill: pale(COLOURS[chunk % 8], part) };
      if (isNew) Object.assign(tile, { stroke: INK, "stroke-width": 2.5, class: "come" });
      made.append(shape("rect", tile));
      const text = content.length === size ? "Σ" : content;
      const lines = text.length > 5 ? [text.slice(0, 4), text.slice(4)] : [text];
      lines.forEach((line, index) => {
        const at = lines.length > 1 ? y + 11 + 9 * index : y + 17;
        const style = { fill: "var(--dark)", "text-anchor": "middle", "font-size": lines.length > 1 ? 9.5 : 12 };
        if (text === "Σ") style["font-weight"] = "bold";
        made.append(letters(middle(rank), at, line, { ...style, "data-cell": `${rank} ${chunk}` }));
      });
    }
  }
  bars(made, now, { left, cell, middle, bottom, whole: server(Infinity).most, beside: position ? server(position).most : 0 });
  shown.replaceChildren(made);
}

// Below each process a bar: the bytes through it so far, on the scale of what goes through the server in all.
function bars(made, now, { left, cell, middle, bottom, whole, beside }) {
  const [high, floor] = [58, bottom + 82];
  const across = { x1: 0, x2: made.getAttribute("width") };
  made.append(shape("line", { ...across, y1: floor, y2: floor, stroke: INK }));
  now.through.forEach((amount, rank) => {
    const height = (high * amount) / whole;
    const bar = { x: left(rank), y: floor - height, width: cell, height };
    made.append(shape("rect", { ...bar, fill: "var(--blue)", "data-through": rank }), shape("rect", { ...bar, fill: "url(#stripes)" }));
    made.append(letters(middle(rank), floor + 16, `${amount.toFixed(2)} x`, { "text-anchor": "middle", "font-size": 11 }));
  });
  const y = floor - (high * beside) / whole;
  made.append(shape("line", { ...across, y1: y, y2: y, stroke: INK, "stroke-width": 1.5, "stroke-dasharray": "5 4", "data-server": beside }));
  const words = beside ? "bytes through each process so far (1 x: all gradients); dashed: through a server" : "bytes through each process so far";
  made.append(onLines(0, bottom + 18, words, { "font-size": 11 }));
}

function say() {
  const found = run();
  const count = found.steps.length;
  const ways = DATA.ways[way.value];
  if (!position) {
    status.textContent = `${ways}, ${processes.value} processes, ${found.chunks} chunks. Each process begins with its own gradients; ${count} steps follow.`;
    return;
  }
  const { name, working, most } = found.steps[position - 1];
  const end = position === count ? " All processes have the sum." : "";
  status.textContent =
    `Step ${position} of ${count}, ${name}: ${working} of ${processes.value} processes send or receive. Bytes through the busiest ` +
    `process so far: ${most.toFixed(2)} x; through a parameter server after as many steps: ${server(position).most.toFixed(2)} x, ` +
    `and ${server(Infinity).most.toFixed(2)} x in total.${end}`;
}

function show() {
  const { steps } = run();
  position = Math.min(position, steps.length);
  slider.max = steps.length;
  slider.value = position;
  output.textContent = `${position} of ${steps.length}`;
  slider.setAttribute("aria-valuetext", output.textContent);
  first.disabled = back.disabled = position === 0;
  step.disabled = position === steps.length;
  chunks.disabled = way.value !== "ring";
  chunks.value = chunks.disabled ? processes.value : chunks.value;
  say();
  draw();
  const said = { way: way.value, processes: processes.value, chunks: chunks.value, step: position };
  history.replaceState(null, "", `#${new URLSearchParams(said)}`);
}

function pause() {
  clearInterval(timer);
  timer = null;
  play.textContent = "play";
}

function toggle() {
  if (timer) return pause();
  if (position === run().steps.length) position = 0;
  play.textContent = "pause";
  timer = setInterval(() => {
    go(position + 1);
    if (position === run().steps.length) pause();
  }, 1200);
}

function go(to) {
  position = Math.max(0, Math.min(to, run().steps.length));
  show();
}

const examples = presets(DATA.presets, ({ inputs }) => {
  for (const select of [processes, way, chunks]) select.value = inputs[select.name];
  change();
});

// Only some ways are there for each number of processes.
function change() {
  pause();
  for (const option of way.options) option.disabled = !(processes.value in DATA.runs[option.value]);
  if (way.selectedOptions[0].disabled) way.value = "ring";
  position = 0;
  const shownNow = { way: way.value, processes: Number(processes.value), chunks: Number(way.value === "ring" ? chunks.value : processes.value) };
  examples.mark(({ inputs }) => Object.keys(inputs).every((name) => name === "chunks" && inputs.way !== "ring" ? true : inputs[name] === shownNow[name]));
  const caption = `${processes.value} processes`;
  const names = Object.keys(DATA.ways).filter((name) => processes.value in DATA.runs[name]);
  const rows = DATA.tables[processes.value];
  tables.replaceChildren(table({ caption, head: DATA.head, rows, chosen: names.indexOf(way.value) }));
  show();
}

function fromAddress() {
  const said = new URLSearchParams(location.hash.slice(1));
  for (const select of [processes, way, chunks]) {
    const there = [...select.options].some((option) => option.value === said.get(select.name));
    if (there) select.value = said.get(select.name);
  }
  change();
  go(Number(said.get("step")) || 0);
}

first.addEventListener("click", () => (pause(), go(0)));
back.addEventListener("click", () => (pause(), go(position - 1)));
step.addEventListener("click", () => (pause(), go(position + 1)));
play.addEventListener("click", toggle);
slider.addEventListener("input", () => (pause(), go(Number(slider.value))));
for (const select of [way, processes]) {
  select.addEventListener("change", () => {
    if (way.value === "ring") chunks.value = processes.value;
    change();
  });
}
chunks.addEventListener("change", change);
addEventListener("hashchange", fromAddress);
const sliderLabel = labelled("step", slider, output);
const walk = element("div", { class: "buttons" }, ...buttons);
const all = element("form", {}, wayLabel, processesLabel, chunksLabel, sliderLabel, walk);
place.replaceChildren(examples.all, all, status, copyLink(), shown, tables, element("p", { class: "note" }, DATA.note));
fromAddress();
let width = shown.clientWidth;
new ResizeObserver(() => {
  if (shown.clientWidth !== width) draw();
  width = shown.clientWidth;
}).observe(shown);
