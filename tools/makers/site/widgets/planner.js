// Draws what planner.py answers: the memory, where the time goes, and the speedup on more GPUs.
import { HELD, INK, SPENT, drawing, element, filled, legend, letters, live, onLines, patterns, shape } from "./shared.js";

const FACES = { ...HELD, ...SPENT };

function bar(parts, whole, kind) {
  return parts.flatMap(({ part, from, to }) => {
    const [face, ...over] = filled({ x: whole * from, y: 22, width: whole * (to - from), height: 30 }, FACES[part]);
    face.setAttribute(`data-${kind}`, part);
    return [face, ...over];
  });
}

function memory(answer, whole) {
  const made = drawing(whole, 76, `Each GPU holds ${answer.needs} and has ${answer.limit.words}`);
  const x = whole * answer.limit.at;
  const line = { x1: x, x2: x, y1: 20, y2: 60, stroke: INK, "stroke-width": 2, "stroke-dasharray": "6 4" };
  made.append(patterns(), letters(0, 14, `What each GPU holds: ${answer.needs}`, { "font-weight": "bold" }));
  made.append(...bar(answer.memory, whole, "memory"), shape("line", { ...line, "data-limit": answer.limit.words }));
  made.append(letters(x, 74, `${answer.limit.words} GPU`, { "text-anchor": x > whole - 40 ? "end" : "middle" }));
  made.dataset.frame = `0 ${whole}`;
  return [made, legend(answer.memory.map(({ part }) => part), FACES)];
}

function time(answer, whole) {
  const made = drawing(whole, 60, "Where each GPU spends its time");
  made.append(letters(0, 14, "Where each GPU spends its time", { "font-weight": "bold" }), ...bar(answer.shares, whole, "share"));
  const words = Object.fromEntries(answer.shares.map(({ part, words: said }) => [part, said]));
  made.dataset.frame = `0 ${whole}`;
  return [made, legend(Object.keys(words).filter((part) => words[part] !== "0.0%"), FACES, words)];
}

function sweep(answer, whole) {
  const [left, top, high] = [44, 44, 190];
  const across = whole - left - 30;
  const made = drawing(whole, top + high + 44, answer.axis);
  made.dataset.frame = `${left} ${across} ${top} ${high}`;
  const x = (dot) => left + across * dot.x;
  const y = (part) => top + high * (1 - part);
  made.append(letters(0, 14, answer.axis, { "font-weight": "bold" }));
  made.append(letters(0, 32, "large: your job; hollow: does not fit in memory", { "font-size": 11 }));
  for (const { at, words } of answer.ticks) {
    const style = { stroke: INK, "stroke-opacity": at ? 0.2 : 1 };
    made.append(shape("line", { x1: left, x2: left + across, y1: y(at), y2: y(at), ...style, "data-tick": words }));
    made.append(letters(left - 8, y(at) + 4, words, { "text-anchor": "end", "font-size": 11 }));
  }
  const line = answer.curve.map((dot) => `${x(dot)} ${y(dot.y)}`).join("L");
  made.append(shape("path", { d: `M${line}`, fill: "none", stroke: "var(--blue)", "stroke-width": 2 }));
  answer.curve.forEach((dot, index) => {
    const face = { fill: dot.fits ? "var(--blue)" : "var(--color-background-primary)", stroke: "var(--blue)", "stroke-width": 2 };
    const title = shape("title", {}, `${dot.words} GPUs: ${dot.share} of linear`);
    made.append(shape("circle", { cx: x(dot), cy: y(dot.y), r: dot.chosen ? 8 : 4.5, ...face, "data-dot": dot.words }, title));
    if (dot.chosen) {
      const anchor = dot.x > 0.4 ? "end" : dot.x < 0.1 ? "start" : "middle";
      made.append(onLines(x(dot), y(dot.y) + 26, `${dot.words} GPUs: ${dot.share}`, { "text-anchor": anchor, "font-weight": "bold" }));
    }
    const every = whole < 560 ? 3 : 2;
    if (index % every === 0) made.append(letters(x(dot), top + high + 20, dot.words, { "text-anchor": "middle" }));
  });
  made.append(letters(left + across, top + high + 38, "GPUs", { "text-anchor": "end" }));
  return [made, element("p", {}, answer.end)];
}

live((answer, wide) => {
  const whole = Math.min(wide, 760);
  const drawn = answer.memory.length ? memory(answer, whole) : [];
  if (answer.shares.length) drawn.push(...time(answer, whole));
  return answer.curve.length > 1 ? [...drawn, ...sweep(answer, whole)] : drawn;
});
