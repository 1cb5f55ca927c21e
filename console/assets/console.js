// The console in the browser: navigation, sign-in, fragments, changes and live updates.
// The bearer token is in sessionStorage, and is sent in the header Authorization only.

const TOKEN = 'postern-token';
const NAME = 'postern-name';
// One update is missing and the next one is nearly due: 5 s are between two.
const OLD_AFTER_MS = 9_000;
const page = (id) => document.getElementById(id);
const main = page('main');
const nav = document.querySelector('nav.side');
const header = document.querySelector('header.top');
let live = null;
let navigation = 0;
// The time range of charts that was chosen last.
let range = null;

const token = () => sessionStorage.getItem(TOKEN);

/** Calls the console with the token. Shows the sign-in and throws if it is not accepted. */
async function call(path, options = {}) {
  const headers = { ...(options.headers || {}) };
  const sent = token();
  if (sent) headers.Authorization = `Bearer ${sent}`;
  if (options.json !== undefined) headers['Content-Type'] = 'application/json';
  const response = await fetch(path, {
    method: options.method || 'GET',
    headers,
    body: options.json === undefined ? undefined : JSON.stringify(options.json),
    signal: options.signal,
    cache: 'no-store',
  });
  if (response.status === 401 && !options.anonymous) {
    const problem = await response.json().catch(() => ({}));
    // Another request may have signed out, with the reason, or somebody may have signed in again.
    if (token() === sent) signOut(sent ? problem.title || 'The sign-in has expired' : '');
    throw new DOMException('not signed in', 'AbortError');
  }
  return response;
}

async function problemOf(response) {
  const problem = await response.json().catch(() => ({}));
  const errors = (problem.errors || []).map((error) => `${error.pointer} ${error.detail}`);
  return [problem.detail || problem.title || `Status ${response.status}`, ...errors].join('; ');
}

// The characters of common/core/src/hidden_characters.rs; a test compares them.
const HIDDEN = /(?![\n\r\t])[\p{Cc}\u00ad\u034f\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\u{e0000}-\u{e007f}]/gu;

/** Returns text with hidden characters as their numbers: they could reorder what is around it. */
function visible(text) {
  return text.replace(HIDDEN, (found) => `[U+${found.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}]`);
}

function say(text, isBad = false) {
  const result = page('result');
  result.textContent = visible(text);
  result.classList.toggle('bad', isBad);
  result.classList.toggle('shown', text !== '');
}

/** Reads server-sent events until the stream or `signal` ends, or nothing arrives for `silence` ms. */
async function events(path, signal, handle, silence = 40_000) {
  const silent = new AbortController();
  const late = () => silent.abort(new Error(`no answer for ${silence / 1000} s`));
  let timer = setTimeout(late, silence);
  const response = await call(path, { signal: AbortSignal.any([signal, silent.signal]) });
  if (!response.ok) throw Object.assign(new Error(await problemOf(response)), { status: response.status });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = '';
  for (;;) {
    const { value, done } = await reader.read();
    clearTimeout(timer);
    if (done) return;
    timer = setTimeout(late, silence);
    buffer += value;
    const parts = buffer.split('\n\n');
    buffer = parts.pop();
    for (const part of parts) {
      const lines = part.split('\n');
      const name = (lines.find((line) => line.startsWith('event:')) || 'event:message').slice(6).trim();
      const data = lines.filter((line) => line.startsWith('data:')).map((line) => line.slice(5).trim()).join('\n');
      handle(name, data);
    }
  }
}

function showSignIn(reason) {
  stopLive();
  // An answer to the signed-in person that arrives later is not shown, and nothing of theirs stays.
  navigation += 1;
  main.removeAttribute('aria-busy');
  say('');
  page('who').textContent = '';
  for (const dialog of document.querySelectorAll('dialog[open]')) dialog.close();
  delete document.body.dataset.role;
  nav.hidden = true;
  header.hidden = true;
  document.title = 'Sign in · Postern';
  main.replaceChildren(page('sign-in-page').content.cloneNode(true));
  page('sign-in-reason').textContent = visible(reason);
  main.querySelector('input').focus();
}

function signOut(reason) {
  sessionStorage.removeItem(TOKEN);
  sessionStorage.removeItem(NAME);
  showSignIn(reason);
}

async function useToken(value) {
  sessionStorage.setItem(TOKEN, value);
  const response = await call('/session');
  if (!response.ok) {
    const reason = await problemOf(response);
    signOut(reason);
    return;
  }
  const session = await response.json();
  const name = sessionStorage.getItem(NAME) || session.name;
  page('who').textContent = visible(`${session.role} · ${name}`);
  page('who').title = visible(session.name);
  document.body.dataset.role = session.role;
  nav.hidden = false;
  header.hidden = false;
  await show({ focus: true });
}

function fragmentPath() {
  const path = location.pathname === '/' ? '/overview' : location.pathname;
  return path + location.search;
}

/** Returns the time in UTC, as all times on the pages are. */
const clock = (at) => at.toISOString().slice(11, 19);

/** Shows the age of what is shown. */
function stamp() {
  page('as-of').textContent = `as of ${clock(new Date())} UTC`;
}

function stopLive() {
  if (live) live.abort();
  live = null;
}

/** Marks the page in the menu, and keeps its time range for those to come. */
function markCurrent() {
  const first = `/${location.pathname.split('/')[1]}`;
  range = new URLSearchParams(location.search).get('range') || range;
  for (const link of nav.querySelectorAll('a')) {
    if (link.pathname === first) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
}

/** Opens or closes the sections, which narrow windows have in a menu. */
function showMenu(isOpen) {
  document.body.classList.toggle('menu', isOpen);
  page('menu').setAttribute('aria-expanded', isOpen);
  if (isOpen) (nav.querySelector('[aria-current]') || nav.querySelector('a')).focus();
}

/** Fetches the fragment of the present address and shows it. */
async function show({ focus }) {
  stopLive();
  navigation += 1;
  const mine = navigation;
  live = new AbortController();
  const { signal } = live;
  const isFilter = Boolean(document.activeElement.closest('main .chips'));
  main.setAttribute('aria-busy', 'true');
  markCurrent();
  showMenu(false);
  try {
    const response = await call(`/fragments${fragmentPath()}`);
    const html = response.ok ? await response.text() : null;
    const reason = response.ok ? '' : await problemOf(response);
    if (mine !== navigation) return;
    if (html === null) {
      const heading = document.createElement('h1');
      heading.tabIndex = -1;
      heading.textContent = response.status === 404 ? 'Page not found' : 'The page cannot be shown';
      const text = document.createElement('p');
      text.textContent = visible(reason);
      main.replaceChildren(heading, text);
    } else {
      main.innerHTML = html;
    }
    stamp();
    const heading = main.querySelector('h1');
    document.title = `${heading ? heading.textContent : 'Console'} · Postern`;
    // A change replaces the button that had the focus. What follows a removed filter is the next one.
    const isLost = document.activeElement === document.body;
    const place = (isFilter && main.querySelector('.chips a, #add-filter summary')) || heading;
    if ((focus || isLost) && place) place.focus({ preventScroll: true });
    if (focus) window.scrollTo(0, 0);
    for (const path of document.querySelector('script[data-pages]').dataset.pages.split(' ')) {
      const { enhance } = await import(path);
      enhance(main, signal, { busy, call, events, problemOf, say, go, confirmed, show, visible });
    }
    if (main.querySelector('[data-live]')) follow(signal);
  } catch (error) {
    if (error.name !== 'AbortError') say(`The console does not answer: ${error.message}`, true);
  } finally {
    if (mine === navigation) main.removeAttribute('aria-busy');
  }
}

/** What can have the focus in the live part, in order. */
const focusable = (part) => [...part.querySelectorAll('a[href], button, summary, input, select, textarea, [tabindex="0"]')];

/** Returns the parts of an element by which it is the same in a newer fragment. */
const identity = (element) => ['id', 'href', 'aria-label', 'name'].map((name) => element.getAttribute(name)).join('\n');

/** Replaces the live part, and keeps the focus, open details and scrolled tables. */
function replace(part, fresh) {
  const focused = document.activeElement;
  const place = focusable(part).indexOf(focused);
  const same = (tree) => focusable(tree).filter((element) => identity(element) === identity(focused));
  const nth = same(part).indexOf(focused);
  const [before, after] = [part, fresh].map((tree) => [...tree.querySelectorAll('details, .scroll')]);
  part.replaceWith(fresh);
  before.forEach((old, index) => {
    if (!after[index] || old.className !== after[index].className) return;
    after[index].open = old.open;
    after[index].scrollLeft = old.scrollLeft;
  });
  // What has gone, or is folded now, leaves the focus to its neighbour, or to the heading.
  const takes = (next) => {
    next?.focus({ preventScroll: true });
    return next && next === document.activeElement;
  };
  if (place >= 0) [same(fresh)[nth], focusable(fresh)[place], main.querySelector('h1')].some(takes);
}

/** Returns whether the live part would lose text that is being selected or typed, or the place to which a dialog returns. */
const isUsed = (part) => !document.getSelection().isCollapsed || document.querySelector('dialog[open]')
  || (part.contains(document.activeElement) && document.activeElement.matches('input, textarea, select'));

/** Keeps the live part of the page up to date, and says in red when it is not. */
async function follow(signal) {
  let [updated, since, reason, pending] = [performance.now(), new Date(), '', null];
  const notice = page('stale');
  const watch = () => {
    const part = main.querySelector('[data-live]');
    if (part && pending && !isUsed(part)) {
      replace(part, pending);
      pending = null;
    }
    const age = performance.now() - updated;
    const isOld = age >= OLD_AFTER_MS || reason !== '';
    if (part) part.classList.toggle('old', isOld);
    notice.hidden = !isOld && !pending;
    const text = isOld
      ? `No update since ${clock(since)}: ${reason || 'the console does not answer'}. What is grey is old.`
      : 'Newer figures are shown when nothing is selected or typed here.';
    notice.classList.toggle('bad', isOld);
    if (!notice.hidden && notice.textContent !== text) notice.textContent = visible(text);
  };
  const timer = setInterval(watch, 1000);
  signal.addEventListener('abort', () => {
    clearInterval(timer);
    notice.hidden = true;
  });
  while (!signal.aborted) {
    try {
      await events(`/live/fragments${fragmentPath()}`, signal, (name, data) => {
        reason = name === 'failed' ? data : '';
        if (name !== 'fragment') return watch();
        const parsed = document.createElement('template');
        parsed.innerHTML = data;
        pending = parsed.content.querySelector('[data-live]') || pending;
        [updated, since] = [performance.now(), new Date()];
        stamp();
        return watch();
      }, OLD_AFTER_MS + 2000);
    } catch (error) {
      if (signal.aborted || error.message === 'not signed in') return;
      reason = error.status ? error.message : 'the console does not answer';
      watch();
    }
    await new Promise((resolve) => setTimeout(resolve, 2000));
  }
}

/** Goes to an address of the console. All pages with charts share a time range. */
function go(address) {
  const url = new URL(address, location.href);
  const hasCharts = [...nav.querySelectorAll('[data-charts]')].some(({ pathname }) => pathname === url.pathname);
  if (hasCharts && range && !url.searchParams.has('range')) url.searchParams.set('range', range);
  history.pushState(null, '', url);
  say('');
  show({ focus: true });
}

/** Asks with a button that is named and coloured as that of the change. */
function confirmed(text, button) {
  if (!text) return Promise.resolve(true);
  const dialog = page('confirm');
  page('confirm-text').textContent = visible(text);
  Object.assign(dialog.querySelector('[value=yes]'), { textContent: button.textContent, className: button.className || 'primary' });
  dialog.showModal();
  return new Promise((resolve) => {
    const end = (answer) => {
      dialog.close();
      resolve(answer);
    };
    for (const button of dialog.querySelectorAll('button')) button.onclick = () => end(button.value === 'yes');
    dialog.oncancel = () => resolve(false);
  });
}

/** Makes a change and shows its outcome. */
async function act(form) {
  const fields = Object.fromEntries(new FormData(form));
  if (!(await confirmed(form.dataset.confirm, form.querySelector('button')))) return;
  const response = await call(`/actions/${form.dataset.action}`, { method: 'POST', json: fields });
  if (!response.ok) {
    say(await problemOf(response), true);
    return;
  }
  const answer = await response.json();
  const lines = answer.outcomes.map((outcome) => {
    const members = Object.entries(outcome.body || {}).filter(([, value]) => value !== null && typeof value !== 'object');
    const body = members.map(([name, value]) => ` ${name.replace(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`)} ${value}`).join(',');
    return `${outcome.process}: ${outcome.isDone ? `done${body && `:${body}`}` : outcome.text}`;
  });
  say(lines.join('\n') || 'No process of this kind is configured', !answer.isDone);
  if (answer.isDone) await show({ focus: false });
}

/** Does the work of a button once at a time. The button, if it is still there, has the focus then that disabling it took. */
async function busy(button, work) {
  button.disabled = true;
  try {
    await work();
  } finally {
    button.disabled = false;
    if (document.activeElement === document.body) button.focus();
  }
}

async function signIn(form) {
  const fields = Object.fromEntries(new FormData(form));
  if (form.id === 'token-sign-in') {
    await useToken(fields.token.trim());
    return;
  }
  const response = await call('/session/sign-in', { method: 'POST', json: fields, anonymous: true });
  if (response.ok) {
    sessionStorage.setItem(NAME, fields.email);
    await useToken((await response.json()).token);
  } else page('sign-in-reason').textContent = visible(await problemOf(response));
}

document.addEventListener('submit', (event) => {
  const form = event.target;
  if (event.defaultPrevented || form.method === 'dialog') return;
  event.preventDefault();
  const work = form.dataset.action ? act : form.closest('.sign-in') && signIn;
  if (work) {
    busy(form.querySelector('button'), () => work(form)).catch((error) => error.name === 'AbortError' || say(error.message, true));
  } else if (form.getAttribute('action')) {
    const fields = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ''));
    for (const { name, value } of form.querySelectorAll('[type=datetime-local]')) {
      if (value) fields.set(name, `${value.padEnd(19, ':00')}Z`);
    }
    go(`${form.getAttribute('action')}?${fields}`);
  }
});

document.addEventListener('click', (event) => {
  // A row of a table opens the first of its links.
  const part = event.target.closest('a, button, input, select, summary, label, tbody tr');
  const isRow = part && part.matches('tr') && document.getSelection().isCollapsed;
  const link = isRow ? part.querySelector('a[href^="/"]') : event.target.closest('a[href^="/"]');
  if (!link || event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
  event.preventDefault();
  go(link.getAttribute('href'));
});

document.addEventListener('change', ({ target }) => {
  const name = target.dataset.hoursBeforeNow;
  if (!name) return;
  const from = target.value && new Date(Date.now() - target.value * 3_600_000);
  target.form.elements[name].value = from ? from.toISOString().slice(0, 19) : '';
});

page('menu').addEventListener('click', () => showMenu(!document.body.classList.contains('menu')));
document.addEventListener('click', ({ target }) => {
  if (!target.closest('nav.side, #menu') && document.body.classList.contains('menu')) showMenu(false);
});

document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape' && document.body.classList.contains('menu')) {
    showMenu(false);
    page('menu').focus();
  }
});

// A link that is opened in the tab of the console changes the fragment only.
window.addEventListener('hashchange', () => {
  if (location.hash.startsWith('#once=')) start().catch(failed);
});

window.addEventListener('popstate', () => token() && show({ focus: true }));

page('sign-out').addEventListener('click', async () => {
  await call('/session', { method: 'DELETE', anonymous: true }).catch(() => {});
  // With the unsaved text of the editor, which stays if the sign-in expires.
  sessionStorage.clear();
  signOut('');
});

async function start() {
  const once = /^#once=([0-9a-f]{64})$/.exec(location.hash);
  if (location.hash) history.replaceState(null, '', location.pathname + location.search);
  if (once) {
    const response = await call('/session/exchange', { method: 'POST', json: { secret: once[1] }, anonymous: true });
    if (response.ok) {
      await useToken((await response.json()).token);
      return;
    }
    if (!token()) {
      showSignIn(response.status === 401
        ? 'This link is not valid any more: it was used, replaced by a newer one, or is too old.'
        : await problemOf(response));
      return;
    }
  }
  if (token()) await useToken(token());
  else showSignIn('');
}

const failed = (error) => error.name === 'AbortError' || say(`The console does not answer: ${error.message}`, true);
start().catch(failed);
