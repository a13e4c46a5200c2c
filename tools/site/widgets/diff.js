// Draws what diff.py has worked out, which is DATA and PARTS: no lines are compared here.
import { element, labelled, place } from "./shared.js";

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
const whole = element("input", { type: "checkbox", name: "whole" });
const status = element("p", { role: "status" });
const shown = element("div", { class: "shown highlight", role: "region", tabindex: 0, "aria-label": "The difference" });

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

// Why a line of the one is gone, or why a line of the other has come: the lesson, and which of its sentences.
function whyGone(one, other, number) {
  if (lessons.get(other).from !== one) return because(one, number);
  const { gone } = PARTS[other];
  return number in gone ? [other, gone[number]] : null;
}

function because(stem, number) {
  const why = PARTS[stem].because[number];
  return why && [DATA.lessons[why[0]].stem, why[1]];
}

function cells(stem, number, sign) {
  if (number === null) return [element("td", { colspan: 3, class: "none" })];
  const code = element("code");
  code.innerHTML = PARTS[stem].lines[number];
  const kind = { "-": "gone", "+": "come", " ": "same" }[sign];
  return [
    element("td", { class: `number ${kind}` }, String(number + 1)),
    element("td", { class: `sign ${kind}` }, sign),
    element("td", { class: `line ${kind}` }, code),
  ];
}

function sentenceRow([stem, number], width) {
  const link = element("a", { href: `../notebooks/${stem}.html#sentence-${number}` }, `notebook ${stem.split("_")[0]}`);
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
  const width = isWide ? 6 : 3;
  const body = element("tbody");
  let [gone, come, changes, told, last] = [0, 0, 0, new Set(), null];

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
    const [first, second] = [cells(one, left, "-"), cells(other, right, "+")];
    body.append(element("tr", {}, ...(isWide ? [...first, ...second] : left !== null ? first : second)));
  }

  function same(left, right) {
    const parts = [...cells(one, left, " "), ...(isWide ? cells(other, right, " ") : [])];
    body.append(element("tr", {}, ...parts));
  }

  for (const [low, high, start, end, size] of places(one, other)) {
    const [minus, plus] = [high - low, end - start];
    if (minus || plus) changes += 1;
    [gone, come, told] = [gone + minus, come + plus, new Set([last])];
    if (isWide) {
      for (let at = 0; at < Math.max(minus, plus); at += 1) {
        row(at < minus ? low + at : null, at < plus ? start + at : null);
      }
    } else {
      for (let at = low; at < high; at += 1) row(at, null);
      for (let at = start; at < end; at += 1) row(null, at);
    }
    const [isFirst, isLast] = [!high && !end, high + size === PARTS[one].lines.length];
    const [head, tail] = [isFirst ? 0 : CONTEXT, isLast ? 0 : CONTEXT];
    const isFolded = !whole.checked && one !== other && size > head + tail + 1;
    for (let at = 0; at < size; at += 1) {
      if (isFolded && at === head) {
        const text = `${size - head - tail} lines are the same`;
        body.append(element("tr", { class: "fold" }, element("td", { colspan: width }, text)));
        at = size - tail;
      }
      if (at < size) same(high + at, end + at);
    }
  }
  const heads = isWide ? [one, other] : [one === other ? one : `${one}.py to ${other}`];
  const head = heads.map((stem) => element("th", { colspan: 3, scope: "col" }, `${stem}.py`));
  const sizes = heads.flatMap(() => ["number", "sign", "line"]).map((name) => element("col", { class: name }));
  shown.replaceChildren(element("table", {}, ...sizes, element("thead", {}, element("tr", {}, ...head)), body));
  const differ = `${changes} places differ: ${gone} lines are gone, ${come} have come.`;
  status.textContent = one === other ? `${one}.py, beside which there is nothing.` : differ;
  slider.value = DATA.lessons.findIndex((lesson) => lesson.stem === other);
  slider.setAttribute("aria-valuetext", lessons.get(other).name);
  history.replaceState(null, "", `#${one}..${other}`);
}

function walk() {
  const lesson = DATA.lessons[Number(slider.value)];
  before.value = lesson.from || lesson.stem;
  after.value = lesson.stem;
  draw();
}

function fromAddress() {
  const [one, other] = (location.hash || location.search).slice(1).split("..");
  const start = DATA.lessons[1];
  before.value = lessons.has(one) && lessons.has(other) ? one : start.from;
  after.value = lessons.has(one) && lessons.has(other) ? other : start.stem;
  draw();
}

columns.checked = matchMedia("(min-width: 60em)").matches;
slider.addEventListener("input", walk);
for (const control of [before, after, columns, whole]) control.addEventListener("change", draw);
addEventListener("hashchange", fromAddress);
place.replaceChildren(
  element(
    "form",
    {},
    labelled("walk the lessons", slider),
    labelled("from", before),
    labelled("to", after),
    labelled("side by side", columns),
    labelled("whole files", whole),
  ),
  status,
  shown,
);
fromAddress();
