// The requests of the gateways, the past ones and those that arrive, in one list: rows, their outcomes
// over time, the most frequent values, pause, counts and the details of a request.
//
// Events are kept as text until the page is drawn, four times a second, and the newest only: a
// thousand requests in a moment cost as much as the rows that are shown.

const MAX_ROWS = 1000;
// More in one drawing of a full list would make the page slow, and nobody reads 400 rows a second.
const MAX_ROWS_PER_DRAW = 100;
// Of the chart, whose lowest part of a bar is the first tone.
const BUCKETS = 60;
const HEIGHT = 40;
const TONES = ['bad', 'warn', 'ok'];
const MAX_FREQUENT_VALUES = 3;
// Filters with the value of an event. Those of a caller are the subject, or `service:NAME`.
const FILTERS = [
  ['status', 'Status', ({ status }) => `${Math.floor(status / 100)}xx`],
  ['code', 'Outcome', ({ code }) => code],
  ['route', 'Route', ({ route }) => route || 'none'],
  ['principal', 'Caller', (event) => (event.caller_service ? `service:${event.caller_service}` : event.subject) || 'none'],
];
const DRAW_INTERVAL_MS = 250;
const RETRY_INTERVAL_MS = 5000;

const element = (name, text = '', className = '', ...children) => {
  const created = document.createElement(name);
  created.append(text, ...children);
  if (className) created.className = className;
  return created;
};

const count = (number) => number.toLocaleString('en');

const toneOf = ({ status }) => (status >= 500 ? 'bad' : status >= 400 ? 'warn' : 'ok');

function badge(event, visible) {
  const text = event.code && event.code !== 'ok' ? `${event.status} ${event.code}` : `${event.status}`;
  return element('span', visible(text), `badge ${toneOf(event)}`);
}

function row(event, choose, visible) {
  const created = Object.assign(document.createElement('tr'), { event, at: Date.parse(event.timestamp) || 0 });
  const add = (content, className = '') => {
    created.append(element('td', typeof content === 'string' ? visible(content) : content, className));
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

/** Inserts a row behind those that are newer: several gateways begin with their past. */
function insert(rows, created) {
  let next = rows.firstElementChild;
  while (next && next.at > created.at) next = next.nextElementSibling;
  rows.insertBefore(created, next);
}

/** The rows by outcome over time. A part of the time can be selected, which hides the other rows. */
function timeChart(chart, chip, rows, changed) {
  const svg = chart.querySelector('svg');
  const handles = [...chart.querySelectorAll('input')];
  let [start, width, pressed] = [0, 1, 0];
  const range = () => handles.map(({ value }) => Number(value)).sort((one, other) => one - other);
  const isSelected = () => range()[0] > 0 || range()[1] < BUCKETS;
  const clock = (bucket) => new Date(start + bucket * width).toISOString().slice(11, 19);
  const select = (one, other) => {
    const first = Math.floor(Math.min(one, other));
    [handles[0].value, handles[1].value] = [first, Math.max(first + 1, Math.ceil(Math.max(one, other)))];
    changed();
  };
  const drag = (event) => {
    const box = svg.getBoundingClientRect();
    const place = Math.min(BUCKETS - 0.1, Math.max(0, ((event.clientX - box.left) / box.width) * BUCKETS));
    if (event.type === 'pointerdown') {
      svg.setPointerCapture(event.pointerId);
      pressed = place;
    }
    if (svg.hasPointerCapture(event.pointerId)) select(pressed, place);
  };
  svg.addEventListener('pointerdown', drag);
  svg.addEventListener('pointermove', drag);
  chart.addEventListener('input', changed);
  chip.addEventListener('click', () => {
    handles[0].focus();
    select(0, BUCKETS);
  });
  const draw = () => {
    const [first, last] = range();
    const [newest, oldest] = [rows.firstElementChild?.at || 0, rows.lastElementChild?.at || 0];
    if (!isSelected()) [start, width] = [oldest, Math.max(1, (newest - oldest + 1) / BUCKETS)];
    const sums = new Array(BUCKETS).fill(0);
    const counts = TONES.map(() => [...sums]);
    for (const row of rows.children) {
      const bucket = Math.floor((row.at - start) / width);
      row.hidden = isSelected() && (bucket < first || bucket >= last);
      if (bucket in sums) {
        sums[bucket] += 1;
        counts[TONES.indexOf(toneOf(row.event))][bucket] += 1;
      }
    }
    const scale = HEIGHT / Math.max(1, ...sums);
    const tops = sums.map(() => HEIGHT);
    const bar = (found, bucket) => {
      tops[bucket] -= found * scale;
      return found ? `M${bucket + 0.1} ${tops[bucket]}h.8v${found * scale}h-.8z` : '';
    };
    TONES.forEach((tone, at) => svg.querySelector(`.${tone}`).setAttribute('d', counts[at].map(bar).join('')));
    svg.querySelector('rect').setAttribute('x', first);
    svg.querySelector('rect').setAttribute('width', isSelected() ? last - first : 0);
    for (const handle of handles) handle.setAttribute('aria-valuetext', clock(handle.value));
    chip.hidden = !isSelected();
    chip.querySelector('strong').textContent = `${clock(first)} to ${clock(last)}`;
    chart.querySelector('figcaption').textContent = `${clock(0)} to ${clock(BUCKETS)} UTC`;
  };
  return { draw, isSelected };
}

/** Shows the most frequent values of the shown rows, each as a link that filters by it. */
function showFrequent(list, rows, visible) {
  // What is being used does not move.
  if (list.matches(':hover') || list.contains(document.activeElement)) return;
  const query = new URLSearchParams(location.search);
  const shown = [...rows.children].filter((row) => !row.hidden);
  const others = FILTERS.filter(([name]) => !query.has(name));
  list.replaceChildren(...others.flatMap(([name, label, value]) => {
    const counts = new Map();
    for (const { event } of shown) counts.set(value(event), (counts.get(value(event)) || 0) + 1);
    const most = [...counts].sort((one, other) => other[1] - one[1]).slice(0, MAX_FREQUENT_VALUES);
    return most.map(([found, times]) => {
      const link = element('a', `${label} `, 'chip', element('strong', visible(found)), ` ${count(times)}`);
      link.href = `/requests?${new URLSearchParams([...query, [name, found]])}`;
      return element('li', '', '', link);
    });
  }));
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
    (chosen.isConnected && !chosen.hidden ? chosen.querySelector('button') : main.querySelector('h1')).focus();
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
      panel.scrollTop = 0;
      panel.querySelector('h2').focus({ preventScroll: true });
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

/** Adds its work to the page Requests. `signal` ends with the page. */
export function enhance(main, signal, tools) {
  if (main.querySelector('#tail')) follow(main, signal, tools).catch((error) => tools.say(error.message, true));
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
  // Events between two drawings.
  let waiting = [];
  let isPaused = false;
  let source = '';
  let [received, dropped, skipped, drawn] = [0, 0, 0, ''];
  const chart = timeChart(main.querySelector('#tail-chart'), main.querySelector('#tail-time'), rows, () => draw(true));
  const say = (text) => {
    const shown = tools.visible(text);
    if (state.textContent !== shown) state.textContent = shown;
  };
  const skip = (limit) => {
    skipped += waiting.splice(0, Math.max(0, waiting.length - limit)).length;
  };
  // The rows stay while a part of their time is selected, and those that have waited are shown then.
  let isHeld = false;
  const draw = (isChanged = false) => {
    const limit = isHeld ? MAX_ROWS : Math.max(MAX_ROWS_PER_DRAW, MAX_ROWS - rows.children.length);
    isHeld = isPaused || chart.isSelected();
    if (!isHeld) skip(limit);
    const taken = isHeld ? [] : waiting.splice(0);
    for (const [gateway, data] of taken) {
      const event = { ...JSON.parse(data), gateway };
      if (!event.request_id || !seen.has(event.request_id)) insert(rows, row(event, choose, tools.visible));
      seen.add(event.request_id);
    }
    if (seen.size > 20 * MAX_ROWS) seen.clear();
    while (rows.children.length > MAX_ROWS && !rows.lastElementChild.contains(document.activeElement)) rows.lastElementChild.remove();
    if (taken.length || isChanged) {
      chart.draw();
      showFrequent(main.querySelector('#tail-frequent'), rows, tools.visible);
    }
    const parts = [`${count(received)} received`];
    if (dropped) parts.push(`${count(dropped)} dropped by gateways, because they came too fast`);
    if (skipped) parts.push(`${count(skipped)} not shown`);
    if (isHeld) parts.push(`${count(waiting.length)} waiting`);
    const text = `${parts.join(', ')}.`;
    if (text !== drawn) counts.textContent = text;
    drawn = text;
  };
  const timer = setInterval(() => document.hidden || draw(), DRAW_INTERVAL_MS);
  signal.addEventListener('abort', () => clearInterval(timer));
  pause.addEventListener('click', () => {
    isPaused = !isPaused;
    pause.textContent = isPaused ? 'Continue' : 'Pause';
    draw();
  });
  main.querySelector('#tail-clear').addEventListener('click', () => {
    waiting = [];
    [received, dropped, skipped] = [0, 0, 0];
    rows.replaceChildren();
    draw(true);
  });
  rows.addEventListener('keydown', (event) => {
    const step = { ArrowDown: 'nextElementSibling', ArrowUp: 'previousElementSibling' }[event.key];
    let next = step && event.target.closest('tr')[step];
    while (next?.hidden) next = next[step];
    if (!next) return;
    event.preventDefault();
    next.querySelector('button').focus();
  });
  const handle = (name, data) => {
    if (name === 'request') {
      received += 1;
      waiting.push([source, data]);
      if (waiting.length >= 2 * MAX_ROWS) skip(MAX_ROWS);
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
