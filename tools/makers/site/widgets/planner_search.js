// Draws what planner_search.py answers: the best few ways to shard a job, each with its step in parts.
import { SPENT, drawing, element, filled, legend, live, patterns } from "./shared.js";

live((answer, wide) => {
  if (!answer.ways.length) return [];
  const whole = Math.min(wide, 760);
  const used = new Set();
  const entries = answer.ways.map(({ name, words, parts }, index) => {
    const made = drawing(whole, 30, `${name}: ${words}`);
    made.append(patterns());
    made.dataset.frame = `0 ${whole}`;
    for (const { part, from, to } of parts) {
      used.add(part);
      const [face, ...over] = filled({ x: whole * from, y: 2, width: whole * (to - from), height: 24 }, SPENT[part]);
      face.setAttribute("data-part", `${index} ${part}`);
      made.append(face, ...over);
    }
    const said = element("p", { "data-words": index }, element("strong", {}, `${index + 1}. ${name}`), `: ${words}`);
    return element("div", {}, said, made);
  });
  return [legend(Object.keys(SPENT).filter((part) => used.has(part)), SPENT), ...entries];
});
