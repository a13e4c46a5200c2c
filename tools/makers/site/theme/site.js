// Remembers in this browser which pages were read to their end; nothing is sent. Scrolls with the keyboard what is
// wider than the page, searches with Ctrl+K, prints the syllabus.
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

// On a phone, a table that is wider than the screen becomes a list, each cell behind the name of its column.
const narrow = matchMedia("(max-width: 40em)");
const ROLES = { TABLE: "table", THEAD: "rowgroup", TBODY: "rowgroup", TR: "row", TH: "columnheader", TD: "cell" };

function list(part) {
  const heads = [...part.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
  if (!heads.length) return;
  part.classList.remove("as-list");
  if (!narrow.matches || part.scrollWidth <= part.clientWidth) return;
  part.classList.add("as-list");
  // What is no longer laid out as a table is none for a screen reader either, unless it is told.
  for (const one of part.querySelectorAll("table, thead, tbody, tr, th, td")) {
    one.setAttribute("role", one.scope === "row" ? "rowheader" : ROLES[one.tagName]);
  }
  for (const row of part.querySelectorAll("tbody tr")) {
    [...row.children].forEach((cell, at) => {
      if (heads[at]) cell.setAttribute("data-label", heads[at]);
      cell.classList.toggle("blank", !cell.textContent.trim());
    });
  }
}

function lists() {
  for (const part of document.querySelectorAll("article .table-wrapper")) list(part);
}

const scrolls = new WeakSet();

function letScroll() {
  for (const part of document.querySelectorAll("pre, .table-wrapper, #widget .shown")) {
    if (part.scrollWidth <= part.clientWidth) {
      if (scrolls.has(part) || part.matches(".as-list")) part.removeAttribute("tabindex");
      continue;
    }
    part.tabIndex = 0;
    if (scrolls.has(part)) continue;
    scrolls.add(part);
    // Else an arrow would turn the page for a reader who wants to see the end of a line.
    part.addEventListener("keydown", (event) => event.key.startsWith("Arrow") && event.stopPropagation());
  }
}

function fit() {
  lists();
  letScroll();
}

fit();
addEventListener("resize", fit);
// What was folded has no width until it is opened, and a widget makes its tables anew.
for (const part of document.querySelectorAll("details")) part.addEventListener("toggle", fit);
const widget = document.getElementById("widget");
if (widget) new MutationObserver(fit).observe(widget, { childList: true, subtree: true });
addEventListener("keydown", (event) => {
  if (!(event.ctrlKey || event.metaKey) || event.key !== "k") return;
  event.preventDefault();
  const box = document.querySelector("input[name=q]");
  document.getElementById("__navigation").checked = box.getBoundingClientRect().right <= 0; // else it is folded away
  box.focus();
});

// The groups of the sidebar can be closed. The lessons, what people look up, and this page's group are open.
[...document.querySelectorAll(".sidebar-tree > .caption")].forEach((caption, at) => {
  const pages = caption.nextElementSibling;
  const button = document.createElement("button");
  const set = (isOpen) => {
    pages.hidden = !isOpen;
    button.setAttribute("aria-expanded", isOpen);
  };
  button.type = "button";
  button.textContent = caption.textContent.trim();
  caption.replaceChildren(button);
  button.addEventListener("click", () => set(pages.hidden));
  set(at < 2 || pages.querySelector(".current") !== null);
});

// The theme opens its menus by labels, which only a mouse or a finger can press.
for (const label of document.querySelectorAll("label[for]:not(.overlay)")) {
  const box = document.getElementById(label.htmlFor);
  const say = () => label.setAttribute("aria-expanded", box.checked);
  label.tabIndex = 0;
  label.setAttribute("role", "button");
  label.setAttribute("aria-label", box.getAttribute("aria-label") || label.textContent.trim());
  label.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    label.click();
  });
  box.addEventListener("change", say);
  say();
}
addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  for (const box of document.querySelectorAll(".sidebar-toggle:checked")) box.click();
});
document.querySelector("button.print")?.addEventListener("click", () => print());
show();
