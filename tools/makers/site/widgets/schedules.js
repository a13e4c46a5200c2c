// Draws what schedules.py answers: a row for each process with its forwards and backwards, and what it holds.
import { INK, drawing, filled, legend, letters, live, patterns, shape } from "./shared.js";

const EDGE = { stroke: "var(--dark)", "stroke-width": 0.4 };
// The colours of the notebook, and a pattern for those who see none.
const FACES = {
  forward: ["var(--blue)", null, "#ffffff"],
  backward: ["var(--orange)", null, "var(--dark)"],
  "backward, input": ["var(--orange)", null, "var(--dark)"],
  "backward, weights": ["var(--green)", "dots", "var(--dark)"],
  "forward, second stage": ["var(--sky)", "stripes", "var(--dark)"],
  "backward, second stage": ["var(--yellow)", "stripes", "var(--dark)"],
};

live((answer, wide) => {
  const whole = Math.min(wide, 940);
  const narrow = whole < 560;
  const [left, right, row] = [52, narrow ? 56 : 150, 34];
  const across = whole - left - right;
  const bottom = 26 + row * answer.rows.length;
  const made = drawing(whole, bottom + 24, answer.said);
  made.append(patterns());
  made.dataset.frame = `${left} ${across}`;
  const used = new Set();
  made.append(letters(left + across + 8, 16, narrow ? "held" : "held at most", { "font-size": 12 }));
  answer.rows.forEach((events, process) => {
    const y = 24 + row * process;
    made.append(letters(0, y + 18, `rank ${process}`));
    for (const { kind, second, microbatch, from, to } of events) {
      const name = second ? `${kind}, second stage` : kind;
      used.add(name);
      const box = { x: left + across * from, y, width: across * (to - from), height: row - 8 };
      const [face, ...over] = filled(box, FACES[name], box.width > 5 ? EDGE : {});
      face.setAttribute("data-event", `${process} ${kind} ${microbatch} ${second ? 1 : 0}`);
      made.append(face, ...over);
      if (box.width < 17) continue;
      const style = { "text-anchor": "middle", "font-size": 11, fill: FACES[name][2] };
      made.append(letters(box.x + box.width / 2, y + 17, String(microbatch), style));
    }
    const { share, words } = answer.held[process];
    const x = left + across + 8;
    if (!narrow) {
      const box = { x, y: y + 4, height: row - 16 };
      made.append(shape("rect", { ...box, width: 90, fill: "none", stroke: INK }));
      made.append(shape("rect", { ...box, width: 90 * share, fill: "var(--pink)", "data-held": process }));
      made.append(shape("rect", { ...box, width: 90 * share, fill: "url(#stripes)" }));
    }
    made.append(letters(narrow ? x : x + 96, y + 18, words, { "data-words": process }));
  });
  made.append(shape("line", { x1: left, x2: left + across, y1: bottom, y2: bottom, stroke: INK }));
  made.append(letters(left, bottom + 16, "0"), letters(left + across, bottom + 16, answer.end, { "text-anchor": "end" }));
  return [legend(Object.keys(FACES).filter((name) => used.has(name)), FACES), made];
});
