// Shows the state of each part, again every five seconds while the page is visible.
const classes = { ready: "ok", degraded: "warn", "not ready": "bad", unavailable: "bad" };

const show = (name, state, detail) => {
  const badge = document.querySelector(`[data-part="${CSS.escape(name)}"]`);
  if (!badge) return;
  const text = detail ? `${state}: ${detail}` : state;
  if (badge.textContent !== text) badge.textContent = text;
  badge.className = `badge ${classes[state] ?? ""}`;
};

const update = async () => {
  if (document.hidden) return;
  try {
    const response = await fetch("/state");
    for (const part of (await response.json()).parts) show(part.name, part.state, part.detail);
  } catch {
    for (const badge of document.querySelectorAll("[data-part]")) show(badge.dataset.part, "unavailable");
  }
};

update();
setInterval(update, 5000);
document.addEventListener("visibilitychange", update);
