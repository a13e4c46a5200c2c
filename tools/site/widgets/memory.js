// Draws what memory.py answers: a bar for each way of sharding, and lines for three kinds of GPU.
import { HELD, INK, drawing, filled, legend, letters, live, onLines, patterns, shape } from "./shared.js";

live((answer, wide) => {
  if (!answer.bars.length) return [];
  const [left, right, high, row] = [4, 64, 26, 54];
  const bottom = 26 + row * answer.bars.length;
  const across = Math.min(wide, 900) - left - right;
  const made = drawing(Math.min(wide, 900), bottom + 24, answer.tables[0].caption);
  made.append(patterns());
  made.dataset.frame = `${left} ${across}`;
  const words = [];
  answer.bars.forEach(({ name, words: size, is_cut: isCut, parts }, index) => {
    const y = 20 + row * index;
    words.push(onLines(left, y + 12, name));
    let end = 0;
    for (const { part, from, to } of parts) {
      const box = { x: left + across * from, y: y + 18, width: across * (to - from), height: high };
      const [face, ...over] = filled(box, HELD[part]);
      face.setAttribute("data-part", `${index} ${part}`);
      made.append(face, ...over);
      end = to;
    }
    const at = left + across * end;
    const torn = `M${at - 5} ${y + 16}l6 6l-6 6l6 6l-6 6l6 6`;
    if (isCut) made.append(shape("path", { d: torn, fill: "none", stroke: INK, "stroke-width": 2 }));
    words.push(onLines(at + 6, y + 36, size, { "font-weight": "bold", "data-words": index, "font-size": 11 }));
  });
  answer.lines.forEach(({ at, words: size }) => {
    const x = left + across * at;
    const line = { x1: x, x2: x, y1: 4, y2: bottom, stroke: INK, "stroke-width": 2, "stroke-dasharray": "6 4", "data-line": size };
    made.append(shape("line", line), letters(x, bottom + 16, size, { "text-anchor": "middle" }));
  });
  made.append(...words);
  return [legend(Object.keys(HELD), HELD), made];
});
