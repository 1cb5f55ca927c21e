// The list: live update. A mail: deletion.
const list = document.getElementById("list");

const request = async (method, path) => {
  const response = await fetch(path, { method });
  if (!response.ok && response.status !== 404) throw new Error(`${method} ${path}: ${response.status}`);
  return response;
};

if (list) {
  let latest = 0;
  const update = async () => {
    const turn = ++latest;
    const response = await request("GET", "/mail/list");
    const text = await response.text();
    // A slower response to an earlier question is dropped.
    if (turn !== latest) return;
    const focused = list.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    list.innerHTML = text;
    if (focused) list.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
  };
  const events = new EventSource("/mail/events");
  events.addEventListener("message", update);
  // After a lost connection, mail may have arrived meanwhile.
  let opened = false;
  events.addEventListener("open", () => {
    if (opened) update();
    opened = true;
  });
  document.getElementById("clear").addEventListener("click", async () => {
    if (confirm("Delete all mail?")) await request("DELETE", "/messages");
  });
}

const remove = document.getElementById("delete");
remove?.addEventListener("click", async () => {
  await request("DELETE", `/messages/${remove.dataset.id}`);
  location.assign("/mail");
});
