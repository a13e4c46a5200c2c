// What the widgets have in common: elements, controls, tables, and Python in a worker. Nothing is computed here.
export const place = document.getElementById("widget");
const folder = new URL(".", import.meta.url).href;
export const INK = "var(--color-foreground-primary)";

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function shape(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function letters(x, y, text, attributes = {}, ...more) {
  return shape("text", { x, y, fill: INK, "font-size": 12, ...attributes }, text, ...more);
}

// Letters that can be read where a line goes through them.
export function onLines(x, y, text, attributes = {}) {
  const halo = { stroke: "var(--color-background-primary)", "stroke-width": 4, "paint-order": "stroke" };
  return letters(x, y, text, { ...halo, ...attributes });
}

// A drawing as wide as its place, whose letters are never smaller than they are written.
export function drawing(width, height, title) {
  return shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": title });
}

// Stripes and dots, for those who see no colours: fill with url(#stripes) over a colour.
export function patterns() {
  const line = { stroke: "var(--dark)", "stroke-width": 1.2, "stroke-opacity": 0.55 };
  const stripes = { width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" };
  return shape(
    "defs",
    {},
    shape("pattern", { id: "stripes", ...stripes }, shape("path", { d: "M0 0V6", ...line })),
    shape(
      "pattern",
      { id: "dots", width: 6, height: 6, patternUnits: "userSpaceOnUse" },
      shape("circle", { cx: 3, cy: 3, r: 1.3, fill: "var(--dark)", "fill-opacity": 0.65 }),
    ),
    shape(
      "pattern",
      { id: "crosses", width: 6, height: 6, patternUnits: "userSpaceOnUse" },
      shape("path", { d: "M0 3H6M3 0V6", ...line }),
    ),
    shape(
      "marker",
      { id: "head", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
      shape("path", { d: "M0 0L8 4L0 8Z", fill: INK }),
    ),
  );
}

// The colours and patterns of what a GPU holds.
export const HELD = {
  parameters: ["var(--blue)", null],
  gradients: ["var(--sky)", "dots"],
  optimizer: ["var(--green)", "crosses"],
  activations: ["var(--pink)", "stripes"],
};

// Those of what the time of a GPU is spent on.
export const SPENT = {
  compute: ["var(--blue)", null],
  "pipeline idle": ["var(--yellow)", "dots"],
  "tensor-parallel communication": ["var(--sky)", "crosses"],
  "exposed data-parallel communication": ["var(--orange)", "stripes"],
  "exposed context-parallel communication": ["var(--green)", "dots"],
  "expert-parallel communication": ["var(--pink)", "stripes"],
  "checkpoints and failures": ["var(--red)", "crosses"],
};

// A box of a colour, with a pattern over it.
export function filled(box, [colour, pattern], edge = { stroke: INK, "stroke-width": 0.6 }) {
  const made = [shape("rect", { ...box, fill: colour, ...edge })];
  if (pattern) made.push(shape("rect", { ...box, fill: `url(#${pattern})` }));
  return made;
}

// What the colours and patterns mean, and more words on some of them.
export function legend(names, faces, words = {}) {
  const entries = names.map((name) => {
    const sample = drawing(20, 14, "");
    sample.setAttribute("aria-hidden", true);
    sample.append(...filled({ x: 0, y: 0, width: 20, height: 14 }, faces[name]));
    return element("li", {}, sample, words[name] ? `${name} ${words[name]}` : name);
  });
  return element("ul", { class: "legend" }, ...entries);
}

export function table({ caption, head, rows, chosen }) {
  const row = (cells, index) =>
    element(
      "tr",
      index === chosen ? { class: "chosen" } : {},
      ...cells.map((cell, at) => element(at ? "td" : "th", { "data-label": head[at], ...(at ? {} : { scope: "row" }) }, cell)),
    );
  const heads = head.map((word) => element("th", { scope: "col" }, word));
  const body = element("tbody", {}, ...rows.map(row));
  const made = element("table", {}, element("caption", {}, caption), element("thead", {}, element("tr", {}, ...heads)), body);
  return element("div", { class: "table-wrapper", tabindex: 0, role: "region", "aria-label": caption }, made);
}

// Buttons that each set several controls: an example to begin with. `mark` says which of them is shown.
export function presets(rows, choose) {
  const buttons = rows.map((row) => {
    const made = element("button", { type: "button", "aria-pressed": false }, row.label);
    made.addEventListener("click", () => choose(row));
    return made;
  });
  const all = element("div", { class: "presets", role: "group", "aria-label": "Examples" }, element("span", {}, "Examples:"), ...buttons);
  const mark = (isShown) => buttons.forEach((button, index) => button.setAttribute("aria-pressed", isShown(rows[index])));
  return { all, mark };
}

// The page's address has what the controls are set to.
export function copyLink() {
  const button = element("button", { type: "button" }, "Copy link");
  const said = element("span", { "aria-live": "polite", class: "copied" });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      said.textContent = "Copied: the link opens this page as it is now.";
    } catch {
      said.textContent = `Copy the address of this page: ${location.href}`;
    }
  });
  return element("p", { class: "copy" }, button, said);
}

export function labelled(text, control, ...more) {
  return element("label", {}, element("span", {}, text), control, ...more);
}

// A control from a list of values and their words: a slider says the words beside it.
function control({ name, label, kind, values, start, empty }) {
  const position = values.findIndex(([value]) => value === start);
  if (kind === "choice") {
    const options = values.map(([, words], index) => element("option", { value: index }, words));
    const select = element("select", { name }, ...options);
    select.value = position;
    return { label: labelled(label, select), input: select };
  }
  if (kind === "typed") {
    const list = element("datalist", { id: `${name}-values` }, ...values.map(([, words]) => element("option", { value: words })));
    const limits = start === null ? { placeholder: empty } : { required: "" };
    const input = element("input", { type: "number", name, min: 0.001, max: 9999, step: "any", list: list.id, ...limits });
    return { label: labelled(label, input, list), input };
  }
  const slider = element("input", { type: "range", name, min: 0, max: values.length - 1, step: 1, value: position });
  const output = element("output", {}, "");
  const say = () => {
    output.textContent = values[slider.value][1];
    slider.setAttribute("aria-valuetext", output.textContent);
  };
  slider.addEventListener("input", say);
  slider.say = say;
  say();
  return { label: labelled(label, slider, output), input: slider };
}

// What a control is set to, and to set it. A number is typed in its unit, billions for example, and may be left out.
function valueOf({ kind, values, input, unit }) {
  if (kind !== "typed") return values[input.value][0];
  return input.value === "" ? null : Number((input.value * unit).toPrecision(12));
}

function setTo({ kind, values, input, unit }, chosen) {
  const position = values.findIndex(([value]) => String(value) === String(chosen));
  if (kind === "typed") input.value = chosen === null ? "" : Number((chosen / unit).toPrecision(12));
  else if (position >= 0) input.value = position;
  input.say?.();
}

// The controls of DATA, with their values in the page's address, so that a link leads to what one sees.
function form(changed) {
  const made = DATA.controls.map((one) => ({ ...one, ...control(one) }));
  const inputs = () => Object.fromEntries(made.map((one) => [one.name, valueOf(one)]));
  for (const one of made) if (one.kind === "typed") setTo(one, one.start);
  function fromAddress() {
    const said = new URLSearchParams(location.hash.slice(1));
    for (const one of made) {
      if (said.has(one.name)) setTo(one, one.kind === "typed" ? Number(said.get(one.name)) || one.start : said.get(one.name));
      else if (one.start === null) setTo(one, null);
    }
    return said.size > 0;
  }
  function set(inputs) {
    for (const one of made) setTo(one, inputs[one.name]);
    toAddress();
  }
  function toAddress() {
    const said = Object.entries(inputs()).filter(([, value]) => value !== null);
    history.replaceState(null, "", `#${new URLSearchParams(said)}`);
    changed();
  }
  for (const one of made) one.input.addEventListener("input", toAddress);
  const all = element("form", {}, ...made.map((one) => one.label));
  all.addEventListener("submit", (event) => event.preventDefault());
  return { all, inputs, fromAddress, set };
}

// Python, with the project's own files, in a worker of its own: the page stays quick. Started once, when needed.
class Python {
  constructor(said) {
    [this.said, this.waiting, this.busy, this.worker] = [said, null, false, null];
  }

  start() {
    if (this.worker) return;
    this.said("Loading Python (13 MB, once).");
    this.began = performance.now();
    this.worker = new Worker(`${folder}python.js`, { type: "module" });
    this.busy = true;
    this.worker.onmessage = ({ data }) => {
      clearTimeout(this.late);
      if (data.ready) this.said(`Python runs in your browser (loaded in ${this.since()} s).`);
      if (data.failed) this.said(`Python could not be loaded (${data.failed}): reload the page.`);
      if (data.answer) this.show(JSON.parse(data.answer));
      const took = this.isLate ? `The answer took ${this.since()} s.` : "Python runs in your browser.";
      if (data.answer) this.said(took);
      this.busy = false;
      this.next();
    };
    this.worker.onerror = (event) => this.said(`Python could not be loaded (${event.message}): reload the page.`);
    this.worker.postMessage({ files: DATA.files, module: DATA.module });
  }

  // Only the newest question counts: a slider asks faster than Python answers.
  ask(inputs, show) {
    [this.waiting, this.show] = [inputs, show];
    this.start();
    this.next();
  }

  // What was asked before no longer counts.
  forget() {
    [this.waiting, this.show] = [null, () => {}];
  }

  next() {
    if (this.busy || !this.waiting) return;
    [this.busy, this.waiting] = [true, (this.worker.postMessage({ inputs: this.waiting }), null)];
    [this.began, this.isLate] = [performance.now(), false];
    this.late = setTimeout(() => {
      this.isLate = true;
      this.said("Working.");
    }, 300);
  }

  since() {
    return ((performance.now() - this.began) / 1000).toFixed(1);
  }
}

// A widget whose answers come from Python: DATA has its controls, and the answer to what they begin with.
export function live(draw) {
  const [shown, words] = [element("div", { class: "shown" }), element("p", { class: "answer", role: "status" })];
  const [tables, loading] = [element("div", { class: "tables" }), element("p", { class: "loading", role: "status" })];
  let [answer, late] = [DATA.presets[0].answer, null];
  const python = new Python((text) => {
    if (loading.textContent !== text) loading.textContent = text; // or it would be read aloud each time
  });
  const { all, inputs, fromAddress, set } = form(ask);
  const examples = presets(DATA.presets, (preset) => set(preset.inputs));

  function show(found) {
    clearTimeout(late);
    place.classList.remove("computing");
    answer = found;
    words.textContent = answer.said;
    tables.replaceChildren(...answer.tables.map(table));
    redraw();
    place.dataset.inputs = JSON.stringify(answer.inputs);
    examples.mark((preset) => JSON.stringify(preset.inputs) === place.dataset.inputs);
  }

  function redraw() {
    shown.replaceChildren(...draw(answer, Math.max(280, shown.clientWidth)));
  }

  function ask() {
    place.dataset.inputs = "";
    clearTimeout(late);
    const wrong = all.querySelector("input:invalid");
    if (wrong) {
      python.forget(); // or an answer that is still on its way would take the place of this line
      words.textContent = `${wrong.closest("label").firstChild.textContent}: type a number, such as ${wrong.list.options[1].value}.`;
      return;
    }
    const question = JSON.stringify(inputs());
    const example = DATA.presets.find((preset) => JSON.stringify(preset.inputs) === question);
    if (example) {
      python.forget();
      show(example.answer);
      return;
    }
    late = setTimeout(old, 300);
    python.ask(inputs(), show);
  }

  // What is on the page answers another question: nobody may take it for the answer to this one.
  function old() {
    words.textContent = "Computing. What is grey is the answer to the question before.";
    place.classList.add("computing");
  }

  place.replaceChildren(examples.all, all, words, copyLink(), shown, loading, tables, element("p", { class: "note" }, DATA.note));
  show(answer);
  if (fromAddress()) ask();
  addEventListener("hashchange", () => fromAddress() && ask());
  let width = shown.clientWidth;
  new ResizeObserver(() => {
    if (shown.clientWidth !== width) redraw();
    width = shown.clientWidth;
  }).observe(shown);
  for (const kind of ["focusin", "pointerdown"]) {
    for (const part of [all, examples.all]) part.addEventListener(kind, () => python.start(), { once: true });
  }
  // Else when the page is read and the browser has nothing to do, unless bytes are to be saved.
  if (navigator.connection?.saveData) return;
  const idle = window.requestIdleCallback || ((act) => setTimeout(act, 1000));
  const watch = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    watch.disconnect();
    idle(() => python.start());
  });
  const begin = () => watch.observe(shown);
  if (document.readyState === "complete") begin();
  else addEventListener("load", begin);
}
