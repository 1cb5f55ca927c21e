// The live tail of the gateways: rows, pause, counts and the details of a request.
//
// Events are kept as text until the page is drawn, four times a second, and the newest only: a
// thousand requests in a moment cost as much as the rows that are shown.

const MAX_ROWS = 500;
// More in one drawing would make the page slow, and nobody reads 400 rows a second.
const MAX_ROWS_PER_DRAW = 100;
const DRAW_INTERVAL_MS = 250;
const RETRY_INTERVAL_MS = 5000;

const element = (name, text = '', className = '') => {
  const created = document.createElement(name);
  created.textContent = text;
  if (className) created.className = className;
  return created;
};

const count = (number) => number.toLocaleString('en');

function badge(event, visible) {
  const tone = event.status >= 500 ? 'bad' : event.status >= 400 ? 'warn' : 'ok';
  const text = event.code && event.code !== 'ok' ? `${event.status} ${event.code}` : `${event.status}`;
  return element('span', visible(text), `badge ${tone}`);
}

function row(event, choose, visible) {
  const created = document.createElement('tr');
  created.dataset.at = event.timestamp || '';
  const add = (content, className = '') => {
    const cell = element('td', typeof content === 'string' ? visible(content) : '', className);
    if (typeof content !== 'string') cell.append(content);
    created.append(cell);
  };
  const button = element('button', visible(`${event.method || '–'} ${event.path || '(rejected before routing)'}`));
  button.type = 'button';
  created.addEventListener('click', () => document.getSelection().isCollapsed && choose(event, created));
  add((event.timestamp || '').slice(11, 23), 'mono');
  add(button);
  add(badge(event, visible));
  add(event.route || '');
  add(event.caller_service || event.subject || '', 'mono');
  add(event.duration_ms === undefined ? '' : `${count(Math.round(event.duration_ms * 10) / 10)} ms`, 'num');
  add(event.gateway || '', 'mono');
  return created;
}

/** Orders rows by time, the newest first. */
function order(rows) {
  const at = (row) => row.dataset.at;
  rows.append(...[...rows.children].sort((left, right) => (at(left) < at(right) ? 1 : -1)));
}

/** The events between two drawings: the newest of them, and the number of the others. */
class Pending {
  constructor() {
    this.events = [];
    this.skipped = 0;
  }

  add(source, data) {
    this.events.push([source, data]);
    if (this.events.length >= 2 * MAX_ROWS) this.skip(MAX_ROWS);
  }

  skip(limit) {
    const surplus = this.events.length - limit;
    if (surplus > 0) {
      this.events.splice(0, surplus);
      this.skipped += surplus;
    }
  }

  take(limit) {
    this.skip(limit);
    const taken = this.events;
    this.events = [];
    return taken;
  }
}

/** Shows the details of a request, which the console renders. */
function details(main, signal, { call, problemOf, say }) {
  const panel = main.querySelector('#request-details');
  let chosen = null;
  const close = () => {
    panel.hidden = true;
    panel.replaceChildren();
    if (!chosen) return;
    chosen.classList.remove('chosen');
    if (chosen.isConnected) chosen.querySelector('button').focus();
    chosen = null;
  };
  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text.textContent);
      say('Copied.');
    } catch {
      document.getSelection().selectAllChildren(text);
      say('The text is selected: copy it with the keyboard.');
    }
  };
  panel.addEventListener('click', (event) => {
    const button = event.target.closest('button');
    if (button && button.dataset.close !== undefined) close();
    if (button && button.dataset.copy) copy(panel.querySelector(`#${button.dataset.copy}`));
  });
  panel.addEventListener('keydown', (event) => {
    if (event.key === 'Escape') close();
  });
  return async (event, chosenRow) => {
    try {
      const response = await call('/request-details', { method: 'POST', json: event, signal });
      if (!response.ok) throw new Error(await problemOf(response));
      panel.innerHTML = await response.text();
      if (chosen) chosen.classList.remove('chosen');
      chosen = chosenRow;
      chosen.classList.add('chosen');
      panel.hidden = false;
      panel.querySelector('h2').focus({ preventScroll: true });
      panel.scrollIntoView({ block: 'nearest' });
    } catch (error) {
      if (error.name !== 'AbortError') say(error.message, true);
    }
  };
}

/** Says which gateways are followed. */
function gatewayText(gateways) {
  const all = [...gateways.entries()];
  const lost = all.filter(([, gateway]) => !gateway.isFollowed);
  const text = `Following ${all.length - lost.length} of ${all.length} ${all.length === 1 ? 'gateway' : 'gateways'}.`;
  const reasons = lost.map(([name, gateway]) => ` ${name}: ${gateway.reason}.`);
  return text + reasons.join('');
}

/** Follows the requests that the address of the page selects, until `signal` ends with the page. */
export async function follow(main, signal, tools) {
  const rows = main.querySelector('#tail');
  const state = main.querySelector('#tail-state');
  const counts = main.querySelector('#tail-counts');
  const pause = main.querySelector('#tail-pause');
  const choose = details(main, signal, tools);
  const gateways = new Map();
  // A stream begins with the last requests, also one that was lost.
  const seen = new Set();
  let pending = new Pending();
  let isPaused = false;
  let source = '';
  let [received, dropped, skipped, drawn] = [0, 0, 0, ''];
  const say = (text) => {
    const shown = tools.visible(text);
    if (state.textContent !== shown) state.textContent = shown;
  };
  const draw = (limit = MAX_ROWS_PER_DRAW) => {
    if (!isPaused) {
      const fresh = document.createDocumentFragment();
      const taken = pending.take(limit).map(([gateway, data]) => ({ ...JSON.parse(data), gateway }));
      for (const event of taken.filter(({ request_id: id }) => !id || !seen.has(id))) {
        seen.add(event.request_id);
        fresh.prepend(row(event, choose, tools.visible));
      }
      // Several gateways begin with their past at once.
      order(fresh);
      if (seen.size > 20 * MAX_ROWS) seen.clear();
      skipped += pending.skipped;
      pending.skipped = 0;
      rows.prepend(fresh);
      while (rows.children.length > MAX_ROWS) rows.lastElementChild.remove();
    }
    const parts = [`${count(received)} received`];
    if (dropped) parts.push(`${count(dropped)} dropped by gateways, because they came too fast`);
    if (skipped) parts.push(`${count(skipped)} not shown`);
    if (isPaused) parts.push(`${count(pending.events.length + pending.skipped)} waiting`);
    const text = `${parts.join(', ')}.`;
    if (text !== drawn) counts.textContent = text;
    drawn = text;
  };
  // A hidden tab draws nothing until it is shown again.
  let isScheduled = false;
  const schedule = () => {
    if (isScheduled) return;
    isScheduled = true;
    requestAnimationFrame(() => {
      isScheduled = false;
      draw();
    });
  };
  const timer = setInterval(schedule, DRAW_INTERVAL_MS);
  signal.addEventListener('abort', () => clearInterval(timer));
  pause.addEventListener('click', () => {
    isPaused = !isPaused;
    pause.textContent = isPaused ? 'Continue' : 'Pause';
    draw(MAX_ROWS);
  });
  main.querySelector('#tail-clear').addEventListener('click', () => {
    pending = new Pending();
    [received, dropped, skipped] = [0, 0, 0];
    rows.replaceChildren();
    draw();
  });
  const handle = (name, data) => {
    if (name === 'request') {
      received += 1;
      pending.add(source, data);
    } else if (name === 'dropped') {
      dropped += JSON.parse(data).count || 0;
    } else if (name === 'source') {
      source = JSON.parse(data).name;
    } else if (name === 'gateway') {
      const gateway = JSON.parse(data);
      gateways.set(gateway.name, gateway);
      say(gatewayText(gateways));
    }
  };
  while (!signal.aborted) {
    gateways.clear();
    try {
      await tools.events(`/live/requests${location.search}`, signal, handle);
      say('The stream ended. Trying again.');
    } catch (error) {
      if (signal.aborted || error.name === 'AbortError') return;
      say(`Not following: ${error.message}`);
      if (error.status >= 400 && error.status < 500 && error.status !== 429) return;
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_INTERVAL_MS));
  }
}
