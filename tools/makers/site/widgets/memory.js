// Draws what memory.py answers: a bar for each way of sharding, on an axis of bytes, and lines for three kinds of GPU.
import { HELD, INK, drawing, filled, legend, letters, live, patterns, shape } from "./shared.js";

live((answer, wide) => {
  if (!answer.bars.length) return [];
  const [left, right, high, row, label] = [4, 84, 24, 52, 15];
  const whole = Math.min(wide, 900);
  const across = whole - left - right;
  const top = 6 + label * answer.lines.length;
  const bottom = top + 4 + row * answer.bars.length;
  const made = drawing(whole, bottom + 26, answer.tables[0].caption);
  made.append(patterns());
  made.dataset.frame = `${left} ${across}`;
  answer.bars.forEach(({ name, words, parts }, index) => {
    const y = top + row * index;
    // The size stands behind the name, above the bar: there no line goes through it.
    const title = whole < 480 ? name.split(":")[0] : name; // a phone has room for the stage and the size
    made.append(letters(left, y + 14, `${title}: `, { "data-title": index }, shape("tspan", { "font-weight": "bold", "data-words": index }, words)));
    for (const { part, from, to } of parts) {
      const box = { x: left + across * from, y: y + 20, width: across * (to - from), height: high };
      const [face, ...over] = filled(box, HELD[part]);
      face.setAttribute("data-part", `${index} ${part}`);
      made.append(face, ...over);
    }
  });
  // A line is drawn beside the bars only, and from its name down to them: names and sizes stay free.
  const style = { stroke: INK, "stroke-width": 2, "stroke-dasharray": "5 3" };
  answer.lines.forEach(({ at, words }, index) => {
    const x = left + across * at;
    const y = 4 + label * index;
    made.append(letters(x + 5, y + 11, words, { "data-gpu": index }));
    made.append(shape("line", { x1: x, x2: x, y1: y, y2: top, ...style, "data-line": words }));
    answer.bars.forEach((_, bar) => {
      const from = top + row * bar + 18;
      made.append(shape("line", { x1: x, x2: x, y1: from, y2: from + high + 4, ...style, "data-rule": index }));
    });
  });
  made.append(shape("line", { x1: left, x2: left + across, y1: bottom, y2: bottom, stroke: INK }));
  answer.ticks.forEach(({ at, words }, index) => {
    const x = left + across * at;
    made.append(shape("line", { x1: x, x2: x, y1: bottom, y2: bottom + 5, stroke: INK }));
    if (whole < 480 && index % 2) return;
    made.append(letters(x, bottom + 19, words, { "text-anchor": index ? "middle" : "start", "data-tick": index }));
  });
  return [legend(Object.keys(HELD), HELD), made];
});
