// Reads the fragment once and removes it from the address and the history.
const parameters = new URLSearchParams(location.hash.slice(1));
history.replaceState(null, "", location.pathname + location.search);

const find = (id) => document.getElementById(id);
const setHeading = (text) => {
  document.title = text;
  document.querySelector("h1").textContent = text;
};
// Errors of RFC 6749 section 4.1.2.1 that a person can act on.
const reasons = {
  access_denied: "You declined at the social provider, so nobody is signed in.",
  temporarily_unavailable: "The social provider is unavailable at the moment. Try again later.",
  server_error: "The social provider had an internal error. Try again later.",
};

const token = parameters.get("temporaryToken");
const error = parameters.get("error");
if (token && /^[A-Za-z0-9_-]+$/.test(token)) {
  setHeading("Signed in");
  find("outcome").textContent = "The social provider has confirmed who you are.";
  find("token").textContent = token;
  const command = find("command");
  const body = JSON.stringify({ temporaryToken: token });
  command.textContent =
    `curl -s ${command.dataset.gateway}/auth/tokens/exchange -H 'Content-Type: application/json' -d '${body}'`;
  find("result").hidden = false;
  find("hint").hidden = false;
  find("again").hidden = false;
} else if (error) {
  setHeading("Not signed in");
  const reason = Object.hasOwn(reasons, error) ? reasons[error] : "The sign-in did not succeed.";
  find("outcome").textContent = `${reason} (${error})`;
  find("again").hidden = false;
}
