// The command palette (the combobox of the ARIA Authoring Practices), the list of keys, and the keys.
// Letters never act in a field or in a dialog; Ctrl-K does in a field.

const SEARCH_DELAY_MS = 120;
const CHORD_MS = 1500;

/** Returns the buttons of the page, each alone with its name, whose names have every word of a text. */
function actions(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const named = new Map();
  for (const button of document.querySelectorAll('main button:not(#tail button), #open-keys, #sign-out')) {
    const name = button.getAttribute('aria-label') || button.textContent;
    if (button.checkVisibility()) named.set(name, named.has(name) ? null : button);
  }
  const isMeant = ([name, button]) => button && words.length && words.every((word) => name.toLowerCase().includes(word));
  return [...named].filter(isMeant);
}

/** Returns an option that presses a button. */
function option(id, name, button) {
  const created = Object.assign(document.createElement('div'), { id, button });
  const kind = Object.assign(document.createElement('span'), { className: 'kind', textContent: 'Action' });
  created.setAttribute('role', 'option');
  created.setAttribute('aria-selected', 'false');
  created.append(kind, ` ${name}`);
  return created;
}

/** Returns the palette: its function opens it. */
function palette(signal, { call, go, problemOf, say }) {
  const dialog = document.getElementById('palette');
  const input = dialog.querySelector('input');
  const list = dialog.querySelector('[role=listbox]');
  const selected = () => list.querySelector('[aria-selected=true]');
  let timer = null;
  // Enter waits for the answer to what was typed.
  let pending = Promise.resolve();

  const select = (next) => {
    selected()?.setAttribute('aria-selected', 'false');
    next?.setAttribute('aria-selected', 'true');
    next?.scrollIntoView({ block: 'nearest' });
    input.setAttribute('aria-activedescendant', next ? next.id : '');
  };
  const choose = (chosen) => {
    if (!chosen) return;
    dialog.close();
    if (chosen.button) chosen.button.click();
    else go(chosen.dataset.href);
  };
  const search = async () => {
    const typed = input.value;
    try {
      const response = await call(`/fragments/palette?${new URLSearchParams({ q: typed })}`, { signal });
      if (!response.ok) throw new Error(await problemOf(response));
      const html = await response.text();
      if (typed !== input.value) return;
      list.innerHTML = html;
      for (const [name, button] of actions(typed)) list.append(option(`option-${list.children.length}`, name, button));
      select(list.querySelector('[role=option]'));
    } catch (error) {
      if (error.name !== 'AbortError') say(error.message, true);
    }
  };
  input.addEventListener('input', () => {
    clearTimeout(timer);
    pending = new Promise((done) => {
      timer = setTimeout(() => search().then(done), SEARCH_DELAY_MS);
    });
  }, { signal });
  input.addEventListener('keydown', async (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step && event.key !== 'Enter') return;
    event.preventDefault();
    if (event.key === 'Enter') {
      await pending;
      choose(selected());
      return;
    }
    const options = [...list.querySelectorAll('[role=option]')];
    select(options.at((options.indexOf(selected()) + step) % options.length));
  }, { signal });
  dialog.addEventListener('click', ({ target }) => {
    if (target === dialog) dialog.close();
    choose(target.closest('[role=option]'));
  }, { signal });
  return () => {
    input.value = '';
    list.replaceChildren();
    dialog.showModal();
    pending = search();
  };
}

/** Adds the palette and the keys to the console, until the page and its `signal` end. */
export function enhance(main, signal, tools) {
  const open = palette(signal, tools);
  const showKeys = () => document.getElementById('keys').showModal();
  let chordUntil = 0;
  document.getElementById('open-palette').addEventListener('click', open, { signal });
  document.getElementById('open-keys').addEventListener('click', showKeys, { signal });
  document.addEventListener('keydown', (event) => {
    const { key, target } = event;
    const isModified = event.ctrlKey || event.metaKey || event.altKey;
    const isPalette = (event.ctrlKey || event.metaKey) && key.toLowerCase() === 'k';
    const isTyping = target.closest('input, textarea, select') || isModified;
    if (document.querySelector('dialog[open]') || (isTyping && !isPalette)) return;
    const isChord = performance.now() < chordUntil;
    const link = isChord && document.querySelector(`nav.side a[data-key="${CSS.escape(key)}"]`);
    chordUntil = key === 'g' ? performance.now() + CHORD_MS : 0;
    if (!link && !isPalette && !['/', '?'].includes(key)) return;
    event.preventDefault();
    if (link) link.click();
    else if (key === '?') showKeys();
    else open();
  }, { signal });
}
