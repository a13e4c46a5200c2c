// What is wider than the page is scrolled with the keyboard, too. Remembers in this browser which pages were read to their end; nothing is sent. Prints the syllabus.
"use strict";

const KEY = "rungs: read";
const root = new URL(document.documentElement.dataset.content_root, location).pathname;

function pageOf(url) {
  const path = new URL(url, location).pathname;
  return path.startsWith(root) ? path.slice(root.length) : null;
}

function read() {
  try {
    return new Set(JSON.parse(localStorage.getItem(KEY)) || []);
  } catch {
    return new Set(); // a browser that keeps nothing
  }
}

function show() {
  const pages = read();
  for (const link of document.querySelectorAll(".sidebar-tree a, article td a")) {
    link.classList.toggle("read", pages.has(pageOf(link.href)));
  }
  const progress = document.querySelector("p.progress");
  if (!progress) return;
  progress.hidden = pages.size === 0;
  progress.querySelector("span").textContent = `Pages that you have read to the end: ${pages.size}.`;
}

const end = document.querySelector(".related-pages");
if (end && document.querySelector(".card")) {
  new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    try {
      localStorage.setItem(KEY, JSON.stringify([...read().add(pageOf(location.href))]));
    } catch {
      return;
    }
    show();
  }).observe(end);
}
document.querySelector("p.progress button")?.addEventListener("click", () => {
  localStorage.removeItem(KEY);
  show();
});
function letScroll() {
  for (const part of document.querySelectorAll("pre, .table-wrapper")) {
    if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
  }
}

letScroll();
addEventListener("resize", letScroll);
document.querySelector("button.print")?.addEventListener("click", () => print());
show();
