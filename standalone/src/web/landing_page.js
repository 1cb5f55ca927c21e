// Reads the fragment once and removes it from the address and the history.
const parameters = new URLSearchParams(location.hash.slice(1));
history.replaceState(null, "", location.pathname + location.search);
const outcome = document.getElementById("outcome");
const setHeading = (text) => {
  document.title = text;
  document.querySelector("h1").textContent = text;
};
const token = parameters.get("temporaryToken");
if (token && /^[A-Za-z0-9_-]+$/.test(token)) {
  setHeading("Signed in");
  const command = document.getElementById("command");
  const body = JSON.stringify({ temporaryToken: token });
  outcome.textContent = "Temporary token: " + token;
  command.textContent =
    `curl -s ${command.dataset.gateway}/auth/tokens/exchange -H 'Content-Type: application/json' -d '${body}'`;
  command.hidden = false;
  document.getElementById("hint").hidden = false;
} else if (parameters.get("error")) {
  setHeading("Not signed in");
  outcome.textContent = "The sign-in did not succeed: " + parameters.get("error");
}
