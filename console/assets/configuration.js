// The editor of the configuration: line numbers, a check while one types, consent to wider access,
// and changes of others. The text is never replaced, so that undo works.

const CHECK_DELAY_MS = 700;
const DRAFT = 'postern-configuration-draft';

function lines(text) {
  return text.split('\n').length;
}

function editor(form, signal, { busy, call, problemOf, say, confirmed, show, visible }) {
  const area = form.querySelector('textarea');
  const gutter = form.querySelector('.line-numbers');
  const status = form.querySelector('#configuration-status');
  const result = form.querySelector('#check-result');
  const conflict = form.querySelector('#configuration-conflict');
  const isKept = 'kept' in form.dataset;
  let bases = JSON.parse(form.dataset.bases);
  let base = area.value;
  let bad = new Set();
  let number = 0;
  let timer = null;

  const numberLines = () => {
    const rows = [];
    for (let line = 1; line <= lines(area.value); line += 1) {
      const row = document.createElement('span');
      row.textContent = line;
      if (bad.has(line)) row.className = 'bad-line';
      rows.push(row);
    }
    gutter.replaceChildren(...rows);
    gutter.scrollTop = area.scrollTop;
  };
  const report = (text, tone) => {
    status.textContent = visible(text);
    status.dataset.tone = tone;
  };
  const goTo = (line) => {
    const before = area.value.split('\n').slice(0, line - 1).join('\n');
    const start = before.length + (line > 1 ? 1 : 0);
    const end = area.value.indexOf('\n', start);
    area.focus();
    area.setSelectionRange(start, end < 0 ? area.value.length : end);
    area.scrollTop = Math.max(0, (line - 6) * (area.scrollHeight / lines(area.value)));
  };

  const check = async () => {
    clearTimeout(timer);
    number += 1;
    const mine = number;
    report('Checking…', '');
    try {
      const response = await call('/check-configuration', { method: 'POST', json: { text: area.value }, signal });
      const html = response.ok ? await response.text() : null;
      const problem = response.ok ? '' : await problemOf(response);
      if (mine !== number) return;
      if (html === null) {
        report(problem, 'bad');
        return;
      }
      result.innerHTML = html;
      const { summary, tone } = result.firstElementChild.dataset;
      bad = new Set();
      for (const button of result.querySelectorAll('button[data-line]')) {
        if (tone === 'bad') bad.add(Number(button.dataset.line));
      }
      numberLines();
      report(`${summary}.`, tone);
    } catch (error) {
      if (error.name !== 'AbortError') report(`The check has failed: ${error.message}`, 'bad');
    }
  };

  const showConflict = async () => {
    const response = await call('/configuration/changes', { method: 'POST', json: { base } });
    if (!response.ok) {
      say(await problemOf(response), true);
      return;
    }
    const changes = await response.json();
    conflict.innerHTML = changes.html;
    const keep = conflict.querySelector('#keep-text');
    keep.addEventListener('click', () => {
      ({ bases } = changes);
      conflict.replaceChildren();
      report('Your text is kept. Saving replaces the changes of others.', 'warn');
      area.focus();
    });
    keep.focus();
  };

  const save = async () => {
    const consent = form.querySelector('#allow-widened');
    if (!(await confirmed(form.dataset.confirm, form.querySelector('[type=submit]')))) return;
    const isAllowed = Boolean(consent && consent.checked);
    const json = { text: area.value, bases, refuseWidened: !isAllowed };
    const response = await call('/actions/configuration.save', { method: 'POST', json });
    if (!response.ok) {
      report(await problemOf(response), 'bad');
      return;
    }
    const answer = await response.json();
    const text = answer.outcomes.map((outcome) => `${outcome.process}: ${outcome.text}`).join('\n');
    if (answer.isDone) {
      sessionStorage.removeItem(DRAFT);
      base = area.value;
      say(text);
      await show({ focus: false });
      return;
    }
    report(text || 'No gateway is configured.', 'bad');
    const codes = answer.outcomes.flatMap((outcome) => [outcome.body?.code, ...(outcome.body?.errors || [])]);
    if (codes.includes('configuration_changed')) await showConflict();
    if (codes.includes('access_widened')) {
      await check();
      const box = form.querySelector('#allow-widened');
      report('Not saved: requests that are rejected now would be accepted. Consent below, then save again.', 'bad');
      if (box) box.focus();
    }
  };

  // A text that was not saved, for example because the sign-in has expired.
  const offerDraft = () => {
    const draft = sessionStorage.getItem(DRAFT);
    if (isKept || area.readOnly || draft === null || draft === base) return;
    const button = document.createElement('button');
    button.type = 'button';
    button.textContent = 'Insert the unsaved text';
    button.addEventListener('click', () => {
      area.focus();
      area.select();
      document.execCommand('insertText', false, draft);
      button.remove();
    });
    form.querySelector('.buttons').append(button);
    report('There is a text that you have not saved.', 'warn');
  };

  area.addEventListener('scroll', () => {
    gutter.scrollTop = area.scrollTop;
  });
  area.addEventListener('input', () => {
    numberLines();
    sessionStorage.setItem(DRAFT, area.value);
    clearTimeout(timer);
    timer = setTimeout(check, CHECK_DELAY_MS);
  });
  signal.addEventListener('abort', () => clearTimeout(timer));
  const leave = (event) => {
    if (!area.readOnly && area.value !== base) event.preventDefault();
  };
  window.addEventListener('beforeunload', leave, { signal });
  form.addEventListener('click', (event) => {
    const button = event.target.closest('button[data-line]');
    if (button) goTo(Number(button.dataset.line));
  });
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    busy(form.querySelector('button[type=submit]'), save)
      .catch((error) => error.name === 'AbortError' || report(`Not saved: ${error.message}`, 'bad'));
  });
  const button = form.querySelector('#check-configuration');
  if (button) button.addEventListener('click', check);
  numberLines();
  offerDraft();
  // A roll back shows what it changes.
  if (isKept && result) check();
}

/** Adds the editor to a fragment that has one. `signal` ends with the page. */
export function enhance(main, signal, tools) {
  const form = main.querySelector('#configuration');
  if (form) editor(form, signal, tools);
}
