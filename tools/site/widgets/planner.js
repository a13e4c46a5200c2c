// Draws what planner.py answers: the memory, where the time of a GPU goes, and the sweep.
import { HELD, INK, SPENT, drawing, element, filled, legend, letters, live, patterns, shape } from "./shared.js";

const FACES = { ...HELD, ...SPENT };

function bar(parts, whole, kind) {
  return parts.flatMap(({ part, from, to }) => {
    const [face, ...over] = filled({ x: whole * from, y: 22, width: whole * (to - from), height: 30 }, FACES[part]);
    face.setAttribute(`data-${kind}`, part);
    return [face, ...over];
  });
}

function memory(answer, whole) {
  const made = drawing(whole, 76, `A GPU holds ${answer.needs}, and has ${answer.limit.words}`);
  const x = whole * answer.limit.at;
  const line = { x1: x, x2: x, y1: 14, y2: 60, stroke: INK, "stroke-width": 2, "stroke-dasharray": "6 4" };
  made.append(patterns(), letters(0, 14, `memory of a GPU: ${answer.needs}`, { "font-weight": "bold" }));
  made.append(...bar(answer.memory, whole, "memory"), shape("line", { ...line, "data-limit": answer.limit.words }));
  made.append(letters(x, 74, answer.limit.words, { "text-anchor": x > whole - 30 ? "end" : "middle" }));
  made.dataset.frame = `0 ${whole}`;
  return [made, legend(answer.memory.map(({ part }) => part), FACES)];
}

function time(answer, whole) {
  const made = drawing(whole, 60, "Where the time of a GPU goes");
  made.append(letters(0, 14, "an hour of a GPU", { "font-weight": "bold" }), ...bar(answer.shares, whole, "share"));
  const words = Object.fromEntries(answer.shares.map(({ part, words: said }) => [part, said]));
  made.dataset.frame = `0 ${whole}`;
  return [made, legend(Object.keys(words), FACES, words)];
}

function sweep(answer, whole) {
  const [left, top, high, across] = [10, 44, 190, whole - 40];
  const made = drawing(whole, top + high + 44, "Tokens a second against the number of GPUs");
  made.dataset.frame = `${left} ${across} ${top} ${high}`;
  const x = (dot) => left + across * dot.x;
  const y = (part) => top + high * (1 - part);
  const line = (key) => answer.curve.map((dot) => `${x(dot)} ${y(dot[key])}`).join("L");
  made.append(letters(0, 14, `speed: ${answer.axis}`, { "font-weight": "bold" }));
  made.append(letters(0, 32, "dashed: as many times the first as GPUs; hollow: does not fit", { "font-size": 11 }));
  made.append(shape("path", { d: `M${line("linear")}`, fill: "none", stroke: INK, "stroke-dasharray": "5 4" }));
  made.append(shape("path", { d: `M${line("y")}`, fill: "none", stroke: "#0072B2", "stroke-width": 2 }));
  answer.curve.forEach((dot, index) => {
    const face = { fill: dot.fits ? "#0072B2" : "var(--color-background-primary)", stroke: "#0072B2", "stroke-width": 2 };
    made.append(shape("circle", { cx: x(dot), cy: y(dot.y), r: dot.chosen ? 8 : 4.5, ...face, "data-dot": dot.words }));
    const every = whole < 560 ? 3 : 2;
    if (index % every === 0) made.append(letters(x(dot), top + high + 22, dot.words, { "text-anchor": index ? "middle" : "start" }));
  });
  made.append(letters(left + across, top + high + 38, "GPUs", { "text-anchor": "end" }));
  return [made, element("p", {}, answer.end)];
}

live((answer, wide) => {
  const whole = Math.min(wide, 760);
  const drawn = answer.shares.length ? [...memory(answer, whole), ...time(answer, whole)] : [];
  return answer.curve.length > 1 ? [...drawn, ...sweep(answer, whole)] : drawn;
});
