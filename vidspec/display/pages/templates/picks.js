// Picks: the better caption of each row that has two different ones.
const rows = [...document.querySelectorAll("tr[data-pick]")], shelf = "vidspec picks";
const picked = (row) => row.querySelector("input:checked")?.value;
const kept = () => { try { return JSON.parse(localStorage.getItem(shelf)) || {}; } catch { return {}; } };
const total = () => {
  const tally = { first: 0, second: 0, open: 0 };
  for (const row of rows) tally[picked(row) ?? "open"] += 1;
  for (const one of document.querySelectorAll("[data-tally]")) one.textContent = tally[one.dataset.tally];
  const picks = rows.filter(picked).map((row) => ({ ...JSON.parse(row.dataset.clip), better: picked(row) }));
  const [first, second] = JSON.parse(document.getElementById("picks").dataset.names);
  const text = JSON.stringify({ first, second, tally, picks }, null, 1) + "\n";
  document.getElementById("picked").value = text;
  document.getElementById("download").href = "data:application/json;charset=utf-8," + encodeURIComponent(text);
};
const keep = (row) => {
  const all = kept();
  if (picked(row)) all[row.dataset.pick] = picked(row); else delete all[row.dataset.pick];
  try { localStorage.setItem(shelf, JSON.stringify(all)); } catch { /* the page works without */ }
  total();
};
let last = rows[0];
const show = (row) => {
  last = row;
  row.querySelector("input").focus({ preventScroll: true });
  row.scrollIntoView({ block: "center" });
};
if (rows.length) {
  const before = kept();
  for (const row of rows) {
    for (const input of row.querySelectorAll("input")) input.checked = input.value === before[row.dataset.pick];
    row.addEventListener("change", () => { last = row; keep(row); });
    row.addEventListener("focusin", () => { last = row; });
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target.matches("input[type=search], textarea")) return;
    if (!["0", "1", "2"].includes(event.key)) return;
    event.preventDefault();
    const row = document.activeElement.closest("tr[data-pick]") ?? last;
    row.querySelectorAll("input").forEach((input, at) => { input.checked = String(at + 1) === event.key; });
    keep(row);
    const order = [...row.parentElement.rows].filter((one) => one.dataset.pick && !one.hidden);
    const at = order.indexOf(row);
    const open = [...order.slice(at + 1), ...order.slice(0, at)].find((one) => !picked(one));
    show(event.key !== "0" && open ? open : row);
  });
  document.getElementById("copy").addEventListener("click", async () => {
    const area = document.getElementById("picked");
    area.select();
    try { await navigator.clipboard.writeText(area.value); } catch { document.execCommand("copy"); }
  });
  total();
}
