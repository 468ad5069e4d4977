"use strict";
// Tokens: one stop of the tab key, arrows inside; hover and focus show the known facts.
const readTokens = (caption) => {
  const tokens = [...caption.querySelectorAll(".t")];
  const about = document.getElementById(caption.dataset.tokens);
  const tell = (token) => {
    for (const one of tokens) one.classList.toggle("same", one.dataset.r === token.dataset.r);
    about.textContent = JSON.stringify(token.textContent) + ": " + token.dataset.about;
  };
  const go = (token) => {
    for (const one of tokens) one.tabIndex = -1;
    token.tabIndex = 0;
    token.focus();
  };
  caption.addEventListener("mouseover", (event) => { if (event.target.matches(".t")) tell(event.target); });
  caption.addEventListener("click", (event) => { if (event.target.matches(".t")) go(event.target); });
  caption.addEventListener("focusin", (event) => { if (event.target.matches(".t")) tell(event.target); });
  caption.addEventListener("keydown", (event) => {
    const at = tokens.indexOf(event.target);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tokens.length - 1 }[event.key];
    if (at < 0 || to === undefined || !tokens[to]) return;
    event.preventDefault();
    go(tokens[to]);
  });
};
document.querySelectorAll(".caption[data-tokens]").forEach(readTokens);
// Frames: a button toggles the size of each.
document.addEventListener("click", (event) => {
  const button = event.target.closest(".frames button");
  if (button) button.setAttribute("aria-pressed", String(button.closest("figure").classList.toggle("large")));
});
// Signals: a slider covers all places but the highest-ranked percent; the checkbox returns to the tokens that the draft saw.
for (const box of document.querySelectorAll(".sift")) {
  const range = box.querySelector("input"), signal = box.querySelector("select"), told = box.querySelector("output");
  const veil = document.getElementById(box.dataset.veil);
  const canvases = [...box.nextElementSibling.querySelectorAll("canvas")];
  const sift = () => {
    if (veil) veil.checked = false;
    for (const canvas of canvases) {
      const levels = atob(canvas.dataset.levels.split(" ")[signal.selectedIndex]), paint = canvas.getContext("2d");
      const image = paint.createImageData(canvas.width, canvas.height);
      for (let at = 0; at < levels.length; at++) {
        if (levels.charCodeAt(at) < 255 * (1 - range.value / 100)) image.data.set([96, 100, 112, 205], 4 * at);
      }
      paint.putImageData(image, 0, 0);
      canvas.hidden = false;
    }
    told.textContent = range.value + "% by";
  };
  range.addEventListener("input", sift);
  signal.addEventListener("change", sift);
  veil?.addEventListener("change", () => { for (const canvas of canvases) canvas.hidden = veil.checked; });
}
// Timelines: wider, narrower, and to where decoding begins.
for (const box of document.querySelectorAll(".timeline")) {
  const scroll = box.querySelector(".scroll"), lanes = box.querySelector(".lanes");
  let zoom = 1;
  const to = (wanted, left) => {
    const middle = left ?? (scroll.scrollLeft + scroll.clientWidth / 2) / lanes.clientWidth;
    zoom = Math.min(64, Math.max(1, wanted));
    lanes.style.width = 100 * zoom + "%";
    scroll.scrollLeft = left === undefined ? middle * lanes.clientWidth - scroll.clientWidth / 2 : middle * lanes.clientWidth;
  };
  box.querySelector("[data-zoom=in]").addEventListener("click", () => to(zoom * 2));
  box.querySelector("[data-zoom=out]").addEventListener("click", () => to(zoom / 2));
  box.querySelector("[data-zoom=all]").addEventListener("click", () => to(1));
  box.querySelector("[data-zoom=decoding]").addEventListener("click", () => {
    const begun = Number(scroll.dataset.decoding) / 100;
    to(Math.max(4, 1 / Math.max(1 - begun, 0.02)), begun);
  });
}
// Tables: a button in each head sorts.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const value = (row, at) => row.cells[at].dataset.v ?? row.cells[at].textContent.trim();
  heads.forEach((head, at) => head.querySelector("button")?.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const one of heads) one.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down > 0 ? "ascending" : "descending");
    const numeric = head.classList.contains("n");
    const rows = [...body.rows].sort((a, b) => {
      const left = value(a, at), right = value(b, at);
      if (left === "" || right === "") return (left === "") - (right === "");
      return down * (numeric ? left - right : left.localeCompare(right));
    });
    body.append(...rows);
  }));
}
// Rows of a table, or clips under review: a field searches, a checkbox shows failures only, a choice one state.
const [search, only, state, count] = ["search", "failed", "state", "count"].map((id) => document.getElementById(id));
if (search) {
  const listed = [...document.querySelectorAll(".sortable tbody > tr, .review")];
  const text = (one) => (one.dataset.name ?? one.textContent) + " " + (one.querySelector("textarea")?.value ?? "");
  const filter = () => {
    const wanted = search.value.toLocaleLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const one of listed) {
      const found = text(one).toLocaleLowerCase();
      one.hidden = (only?.checked && !one.dataset.failed) || (state?.value && one.dataset.state !== state.value) ||
        !wanted.every((word) => found.includes(word));
      shown += !one.hidden;
    }
    count.textContent = count.textContent.replace(/^\d+/, shown);
  };
  search.addEventListener("input", filter);
  for (const one of [only, state]) one?.addEventListener("change", filter);
}
// A link to a clip opens it.
const open = () => {
  const wanted = location.hash && document.getElementById(location.hash.slice(1));
  if (wanted && wanted.matches("details")) { wanted.open = true; wanted.scrollIntoView(); }
};
addEventListener("hashchange", open);
open();
