// A video is chosen and asked about; the answers come token by token.
const at = id => document.getElementById(id);
let url = "", turns = [], running = null, number = 0;

async function choose(content) {
  running?.abort();
  const whole = await new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result); reader.onerror = () => failed(reader.error);
    reader.readAsDataURL(content);
  });
  url = whole.replace(/^data:[^,]*?,/, `data:${/^(video|image)\//.test(content.type) ? content.type : "video/mp4"};base64,`);
  turns = []; at("answers").replaceChildren(); at("error").textContent = "";
  at("video").hidden = content.type.startsWith("image/");
  URL.revokeObjectURL(at("video").src);
  at("video").src = URL.createObjectURL(content);
}
const chosen = content => choose(content).catch(error => { at("error").textContent = error.message; });
at("file").onchange = () => { if (at("file").files[0]) { at("sample").value = ""; chosen(at("file").files[0]); } };
at("sample").onchange = async () => {
  if (!at("sample").value) return;
  at("file").value = "";
  chosen(await (await fetch("/samples/" + at("sample").value)).blob());
};
addEventListener("dragover", event => { event.preventDefault(); at("drop").classList.add("over"); });
addEventListener("dragleave", () => at("drop").classList.remove("over"));
addEventListener("drop", event => {
  event.preventDefault(); at("drop").classList.remove("over");
  if (event.dataTransfer.files[0]) { at("sample").value = ""; at("file").files = event.dataTransfer.files; chosen(event.dataTransfer.files[0]); }
});

function add(place, kind, text, style) {
  const made = document.createElement(kind);
  made.textContent = text; made.className = style;
  place.append(made);
  return made;
}
function tell(own) {
  const rate = own.tokens_per_s ? `${own.tokens_per_s.toFixed(1)} tokens/s` : "";
  const gain = own.speedup ? `decoding ${own.speedup.toFixed(2)} times as fast as plain decoding, estimated from plain steps after the text` : "no estimate of plain decoding's speed (the machine is busy, or nothing was drafted)";
  const passes = `${own.passes} passes of the target` + (own.tokens_per_pass ? `, ${own.tokens_per_pass.toFixed(2)} tokens a pass (plain decoding: 1)` : "");
  const drafted = own.drafted ? `${own.accepted} of ${own.drafted} drafted tokens accepted` : "nothing drafted";
  return [rate, gain, passes, drafted, `${own.frames} frames`, own.lossless ? "lossless" : "not lossless"].filter(Boolean).join("; ");
}
async function ask(question) {
  const kind = url.startsWith("data:image/") ? "image_url" : "video_url";
  const messages = [...turns, {role: "user", content: question}];
  messages[0] = {role: "user", content: [{type: kind, [kind]: {url}}, {type: "text", text: messages[0].content}]};
  const part = add(at("answers"), "article", "", ""), id = "about" + ++number;
  add(part, "h2", question, "");
  const caption = add(part, "div", "", "caption"), about = add(part, "p", "", "about");
  about.id = id; about.hidden = true;
  caption.setAttribute("role", "group"); caption.setAttribute("aria-label", "The answer, token by token; arrow keys move between tokens");
  const figures = add(part, "p", "", "figures"), frames = add(part, "details", "", "");
  frames.open = !turns.length; frames.hidden = true;
  add(frames, "summary", "Frames", "");
  const got = await fetch("/v1/chat/completions", {
    method: "POST", signal: running.signal, headers: {"content-type": "application/json"},
    body: JSON.stringify({messages, stream: true, vidspec: {details: true}})
  }).catch(error => { part.remove(); throw error; });
  if (!got.ok) { part.remove(); throw new Error((await got.json()).error.message); }
  let rest = "", text = "";
  const reader = got.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const {done, value} = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") continue;
      const chunk = JSON.parse(line.slice(6)), own = chunk.vidspec || {};
      if (chunk.error) throw new Error(chunk.error.message);
      text += chunk.choices[0].delta.content || "";
      if (own.frames_html) { frames.hidden = false; frames.insertAdjacentHTML("beforeend", own.frames_html); }
      for (const [token, origin, round] of own.tokens || []) {
        const made = add(caption, "span", token, "t " + origin);
        made.tabIndex = caption.children.length > 1 ? -1 : 0; made.dataset.r = round;
        made.dataset.about = `token ${caption.children.length}; ${origin}; ${round ? "round " + round : "from the target's prefill"}`;
      }
      if (chunk.choices[0].finish_reason) figures.textContent = tell(own);
    }
  }
  about.hidden = false; caption.dataset.tokens = id;
  about.textContent = "Point at a token, or use the tab and arrow keys, to see its origin and its round.";
  readTokens(caption);
  turns.push({role: "user", content: question}, {role: "assistant", content: text});
  at("said").textContent = "Answered: " + text;
}
at("form").onsubmit = async event => {
  event.preventDefault();
  if (running) return;
  if (!url) { at("error").textContent = "Choose a video first."; at("file").focus(); return; }
  at("error").textContent = at("said").textContent = ""; running = new AbortController(); at("ask").disabled = true; at("stop").disabled = false;
  try { await ask(at("question").value.trim() || at("question").defaultValue); at("question").value = ""; at("question").placeholder = "Ask again"; }
  catch (error) { if (error.name !== "AbortError") at("error").textContent = error.message; }
  running = null; at("ask").disabled = false; at("stop").disabled = true;
};
at("question").onkeydown = event => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); at("form").requestSubmit(); } };
at("stop").onclick = () => running?.abort();
