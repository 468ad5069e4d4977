// Clips under review: saved, captioned again, and worked by keys.
const clips = [...document.querySelectorAll(".review")], box = (clip) => clip.querySelector("textarea");
const meanings = JSON.parse(document.getElementById("states").dataset.meanings);
// Videos near the window load their first frame, the others nothing.
const near = new IntersectionObserver((seen) => { for (const one of seen) if (one.isIntersecting) one.target.preload = "metadata"; });
for (const video of document.querySelectorAll("video")) near.observe(video);

const go = (by) => {
  const shown = clips.filter((clip) => !clip.hidden), here = shown.indexOf(document.activeElement?.closest(".review"));
  const next = shown[here < 0 ? (by > 0 ? 0 : shown.length - 1) : here + by];
  if (!next) return;
  (box(next) ?? next.querySelector("summary")).focus();
  next.scrollIntoView({ block: "nearest" });
};
const saved = new Map(clips.map((clip) => [clip, box(clip)?.value]));
const offered = new Map(); // captions that "Again" put into boxes
const mark = (clip) => clip.classList.toggle("unsaved", box(clip)?.value !== saved.get(clip));
const show = (clip, now) => {
  clip.dataset.state = now.state;
  clip.dataset.version = now.version;
  const state = clip.querySelector(".state");
  state.textContent = now.state;
  state.title = meanings[now.state];
};
const work = { save: async (clip, post) => {
  const text = box(clip).value;
  const now = await post("save", { text, version: clip.dataset.version });
  saved.set(clip, text);
  show(clip, now);
  clip.querySelector("[data-do=undo]").hidden = false;
  return "saved";
}, undo: async (clip, post) => {
  const now = await post("undo", { version: clip.dataset.version });
  box(clip).value = now.text ?? "";
  saved.set(clip, box(clip).value);
  show(clip, now);
  clip.querySelector("[data-do=undo]").hidden = true;
  return "the last save is undone";
}, again: async (clip, post) => {
  const before = box(clip).value, typed = before !== saved.get(clip) && before !== offered.get(clip);
  const { text } = await post("again", { prompt: clip.querySelector(".tools input").value });
  if (typed || box(clip).value !== before) {
    clip.querySelector("pre").textContent = text;
    return "your unsaved text is kept; the new caption is below it";
  }
  box(clip).value = text;
  offered.set(clip, text);
  return "a new caption, not saved yet";
} };
const run = async (clip, name) => {
  const buttons = [...clip.querySelectorAll("[data-do]")], told = clip.querySelector(".told"), other = clip.querySelector("pre");
  if (!buttons.length || buttons[0].disabled) return false;
  for (const button of buttons) button.disabled = true;
  told.classList.remove("failed");
  other.textContent = "";
  told.textContent = { save: "saving", undo: "undoing", again: "captioning" }[name] + " …";
  const post = async (route, body) => {
    const got = await fetch(`clips/${clip.dataset.number}/${route}`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
    const answer = await got.json();
    if (got.ok) return answer;
    if (answer.now) {
      show(clip, answer.now);
      other.textContent = answer.now.text ?? "";
    }
    throw new Error(answer.error.message);
  };
  let done = true;
  try { told.textContent = await work[name](clip, post); }
  catch (error) { done = false; told.textContent = error.message; told.classList.add("failed"); }
  for (const button of buttons) button.disabled = false;
  mark(clip);
  return done;
};
// What is done to all shown captions: changes of their boxes, and one save after the other.
const field = (id) => document.getElementById(id).value;
const change = {
  replace: (text) => (field("find") ? text.replaceAll(field("find"), field("by")) : text),
  before: (text) => (text.startsWith(field("affix")) ? text : field("affix") + text),
  after: (text) => (text.endsWith(field("affix")) ? text : text + field("affix")),
};
const forAll = async (name) => {
  const told = document.getElementById("all-told"), shown = clips.filter((clip) => !clip.hidden && box(clip)?.value);
  let done = 0;
  if (name === "save") {
    const unsaved = shown.filter((clip) => clip.classList.contains("unsaved"));
    for (const clip of unsaved) if (await run(clip, "save")) told.textContent = `${(done += 1)} of ${unsaved.length} saved`;
    if (!unsaved.length) told.textContent = "nothing to save";
    return;
  }
  for (const clip of shown) {
    const text = change[name](box(clip).value);
    done += text !== box(clip).value;
    box(clip).value = text;
    mark(clip);
  }
  told.textContent = `${done} changed, not saved yet`;
};
document.addEventListener("input", (event) => { const clip = event.target.closest(".review"); if (clip) mark(clip); });
document.addEventListener("click", (event) => {
  const every = event.target.closest("[data-all]"), button = event.target.closest("[data-do]");
  if (button) run(button.closest(".review"), button.dataset.do);
  else if (every) forAll(every.dataset.all);
});
document.addEventListener("keydown", async (event) => {
  const clip = document.activeElement?.closest(".review"), control = event.ctrlKey || event.metaKey;
  const next = control && event.key === "Enter";
  if (event.altKey && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
    event.preventDefault();
    go(event.key === "ArrowDown" ? 1 : -1);
  } else if (event.altKey && event.code === "KeyP" && clip) {
    event.preventDefault();
    const video = clip.querySelector("video");
    if (video?.paused) video.play(); else video?.pause();
  } else if (clip && (next || (control && event.key.toLowerCase() === "s"))) {
    event.preventDefault();
    if ((await run(clip, "save")) && next) go(1);
  }
});
addEventListener("beforeunload", (event) => { if (document.querySelector(".review.unsaved")) event.preventDefault(); });
