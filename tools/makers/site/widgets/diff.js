// Draws what diff.py has worked out, which is DATA and PARTS: no lines are compared here.
import { copyLink, element, labelled, place, presets } from "./shared.js";

const CONTEXT = 3; // lines around a change
const lessons = new Map(DATA.lessons.map((lesson) => [lesson.stem, lesson]));
const order = [...lessons.keys()];
const asked = new Map();

function choice(name) {
  const options = DATA.lessons.map((lesson) => element("option", { value: lesson.stem }, lesson.name));
  return element("select", { name }, ...options);
}

const slider = element("input", { type: "range", min: 0, max: DATA.lessons.length - 1, step: 1, name: "walk" });
const before = choice("from");
const after = choice("to");
const columns = element("input", { type: "checkbox", name: "columns" });
const docstrings = element("input", { type: "checkbox", name: "docstrings" });
const whole = element("input", { type: "checkbox", name: "whole" });
const opened = new Set(); // folds that a reader has opened, of the two lessons that are shown
const status = element("p", { role: "status" });
const shown = element("div", { class: "shown highlight", role: "region", "aria-label": "The difference" });

// The lines of a lesson are in a script of their own. (A page from a disk may not fetch, but may have scripts.)
function load(stem) {
  if (!asked.has(stem)) {
    const script = element("script", { src: new URL(`diff.${stem}.js`, import.meta.url).href });
    const loaded = new Promise((done, fail) => {
      script.addEventListener("load", done);
      script.addEventListener("error", fail);
    });
    asked.set(stem, loaded);
    document.head.append(script);
  }
  return asked.get(stem);
}

// The runs of lines that two lessons have in common.
function common(one, other) {
  if (one === other) return [[0, 0, PARTS[one].lines.length]];
  if (order.indexOf(one) < order.indexOf(other)) return PARTS[other].same[one];
  return PARTS[one].same[other].map(([a, b, size]) => [b, a, size]);
}

// Where the two differ: from, to (in the one), from, to (in the other), and how many lines are the same after it.
function* places(one, other) {
  let [left, right] = [0, 0];
  const ends = [PARTS[one].lines.length, PARTS[other].lines.length, 0];
  for (const [a, b, size] of [...common(one, other), ends]) {
    yield [left, a, right, b, size];
    [left, right] = [a + size, b + size];
  }
}

// Why a line of the one is gone, or why a line of the other was added: the lesson, and which of its sentences.
function whyGone(one, other, number) {
  if (lessons.get(other).from !== one) return because(one, number);
  const { gone } = PARTS[other];
  return number in gone ? [other, gone[number]] : null;
}

function because(stem, number) {
  const why = PARTS[stem].because[number];
  return why && [DATA.lessons[why[0]].stem, why[1]];
}

// The cells of a line: its numbers, none where a file does not have it, its sign, and the line of one of the files.
function cells(numbers, sign, stem, number) {
  const code = element("code");
  code.innerHTML = PARTS[stem].lines[number];
  const kind = { "-": "gone", "+": "come", " ": "same" }[sign];
  return [
    ...numbers.map((one) => element("td", { class: `number ${kind}` }, one === null ? "" : String(one + 1))),
    element("td", { class: `sign ${kind}` }, sign),
    element("td", { class: `line ${kind}` }, code),
  ];
}

// One side of two columns.
function side(stem, number, sign) {
  if (number === null) return [element("td", { colspan: 3, class: "none" })];
  return cells([number], sign, stem, number);
}

function sentenceRow([stem, number], width) {
  const shownAs = lessons.get(stem).shown[number]; // a notebook shows the changes that carry its idea
  const anchor = shownAs === null ? "" : `#sentence-${shownAs}`;
  const link = element("a", { href: `../notebooks/${stem}.html${anchor}` }, `notebook ${stem.split("_")[0]}`);
  const text = element("span");
  text.innerHTML = lessons.get(stem).sentences[number];
  return element("tr", { class: "why" }, element("td", { colspan: width }, text, " (", link, ")"));
}

async function draw() {
  const [one, other] = [before.value, after.value];
  try {
    await Promise.all([load(one), load(other)]);
  } catch {
    status.textContent = "The lines of these lessons could not be loaded.";
    return;
  }
  if (one !== before.value || other !== after.value) return; // while they came, others were chosen
  const isWide = columns.checked && one !== other;
  const width = isWide ? 6 : 4;
  const body = element("tbody");
  let [gone, come, changes, current, told, last] = [0, 0, 0, 0, new Set(), null];

  function tell(why) {
    if (!why || told.has(String(why))) return;
    last = String(why);
    told.add(last);
    body.append(sentenceRow(why, width));
  }

  function row(left, right) {
    if (left !== null && right === null) tell(whyGone(one, other, left));
    if (left !== null && right !== null) tell(whyGone(one, other, left));
    if (right !== null) tell(because(other, right));
    if (isWide) body.append(element("tr", {}, ...side(one, left, "-"), ...side(other, right, "+")));
    else if (left !== null) body.append(element("tr", {}, ...cells([left, null], "-", one, left)));
    else body.append(element("tr", {}, ...cells([null, right], "+", other, right)));
  }

  function same(left, right) {
    const wide = () => [...side(one, left, " "), ...side(other, right, " ")];
    body.append(element("tr", {}, ...(isWide ? wide() : cells([left, right], " ", one, left))));
  }

  // A fold is a row that says what it hides, and a button that shows it.
  function fold(key, words) {
    const button = element("button", { type: "button" }, `${words}: show`);
    button.addEventListener("click", () => (opened.add(key), draw()));
    body.append(element("tr", { class: "fold" }, element("td", { colspan: width }, button)));
  }

  const rows = [];
  for (const [low, high, start, end, size] of places(one, other)) {
    const [minus, plus] = [high - low, end - start];
    if (minus || plus) changes += 1;
    [gone, come] = [gone + minus, come + plus];
    if (isWide) {
      for (let at = 0; at < Math.max(minus, plus); at += 1) {
        rows.push({ left: at < minus ? low + at : null, right: at < plus ? start + at : null, change: changes });
      }
    } else {
      for (let at = low; at < high; at += 1) rows.push({ left: at, right: null, change: changes });
      for (let at = start; at < end; at += 1) rows.push({ left: null, right: at, change: changes });
    }
    for (let at = 0; at < size; at += 1) rows.push({ left: high + at, right: end + at, change: 0 });
  }
  const isOpen = whole.checked || one === other;
  const within = (stem) => (number) => number !== null && PARTS[stem].docstrings.some(([low, high]) => low <= number && number < high);
  const [inOne, inOther] = [within(one), within(other)];
  for (const it of rows) it.doc = (it.left === null || inOne(it.left)) && (it.right === null || inOther(it.right));
  const isFolded = (it) => it.doc && !isOpen && !docstrings.checked;
  for (let at = 0; at < rows.length; ) {
    let next = at + 1;
    const [it, key] = [rows[at], `${rows[at].left} ${rows[at].right}`];
    if (isFolded(it) && !opened.has(key)) {
      while (next < rows.length && isFolded(rows[next])) next += 1;
      const count = rows.slice(at, next).filter((row) => row.change).length;
      fold(key, `docstring, ${count ? `${count} changed lines` : `${next - at} lines, unchanged`}`);
    } else if (isFolded(it)) {
      while (next < rows.length && isFolded(rows[next])) next += 1;
      rows.slice(at, next).forEach(add);
    } else if (it.change) {
      add(it);
    } else {
      while (next < rows.length && !rows[next].change && !isFolded(rows[next])) next += 1;
      const touches = (index) => index >= 0 && index < rows.length && rows[index].change && !isFolded(rows[index]);
      const [head, tail] = [touches(at - 1) ? CONTEXT : 0, touches(next) ? CONTEXT : 0];
      if (isOpen || opened.has(key) || next - at <= head + tail + 1) rows.slice(at, next).forEach(add);
      else {
        rows.slice(at, at + head).forEach(add);
        fold(key, `${next - at - head - tail} unchanged lines`);
        rows.slice(next - tail, next).forEach(add);
      }
    }
    at = next;
  }

  function add(it) {
    if (!it.change) return same(it.left, it.right);
    if (it.change !== current) [told, current] = [new Set([last]), it.change];
    row(it.left, it.right);
  }

  const heads = isWide ? [one, other] : [one === other ? one : `${one}.py to ${other}`];
  const head = heads.map((stem) => element("th", { colspan: isWide ? 3 : 4, scope: "col" }, `${stem}.py`));
  const kinds = isWide ? ["number", "sign", "line"] : ["number", "number", "sign", "line"];
  const sizes = heads.flatMap(() => kinds).map((name) => element("col", { class: name }));
  shown.replaceChildren(element("table", {}, ...sizes, element("thead", {}, element("tr", {}, ...head)), body));
  const differ = `${changes} changes: ${gone} lines removed, ${come} lines added.`;
  status.textContent = one === other ? `${one}.py, the first lesson: there is nothing to compare it with.` : differ;
  chosen.mark((preset) => preset.from === one && preset.to === other);
  slider.value = DATA.lessons.findIndex((lesson) => lesson.stem === other);
  slider.setAttribute("aria-valuetext", lessons.get(other).name);
  history.replaceState(null, "", `#${one}..${other}`);
}

function compare(one, other) {
  [before.value, after.value] = [one, other];
  change();
}

function change() {
  opened.clear();
  draw();
}

function walk() {
  const lesson = DATA.lessons[Number(slider.value)];
  compare(lesson.from || lesson.stem, lesson.stem);
}

function fromAddress() {
  const [one, other] = (location.hash || location.search).slice(1).split("..");
  const [start] = DATA.presets;
  if (lessons.has(one) && lessons.has(other)) compare(one, other);
  else compare(start.from, start.to);
}

const chosen = presets(DATA.presets, (preset) => compare(preset.from, preset.to));

columns.checked = matchMedia("(min-width: 60em)").matches;
slider.addEventListener("input", walk);
for (const control of [before, after]) control.addEventListener("change", change);
for (const control of [columns, docstrings, whole]) control.addEventListener("change", draw);
addEventListener("hashchange", fromAddress);
place.replaceChildren(
  chosen.all,
  element(
    "form",
    {},
    labelled("from", before),
    labelled("to", after),
    labelled("step through all lessons", slider),
    element("div", { class: "boxes" }, labelled("side by side", columns), labelled("docstrings", docstrings), labelled("whole files", whole)),
  ),
  status,
  copyLink(),
  shown,
);
fromAddress();
