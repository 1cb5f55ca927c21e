// The command palette (the combobox of the ARIA Authoring Practices), the list of keys, and the keys.
// Letters never act in a field or in a dialog; Ctrl-K does in a field.

const SEARCH_DELAY_MS = 120;
const CHORD_MS = 1500;

/** Returns the palette: its function opens it. */
function palette(signal, { call, go, problemOf, say }) {
  const dialog = document.getElementById('palette');
  const input = dialog.querySelector('input');
  const list = dialog.querySelector('[role=listbox]');
  const selected = () => list.querySelector('[aria-selected=true]');
  let timer = null;
  // Enter waits for the answer to what was typed.
  let pending = Promise.resolve();

  const select = (option) => {
    selected()?.setAttribute('aria-selected', 'false');
    option?.setAttribute('aria-selected', 'true');
    option?.scrollIntoView({ block: 'nearest' });
    input.setAttribute('aria-activedescendant', option ? option.id : '');
  };
  const choose = (option) => {
    if (!option) return;
    dialog.close();
    go(option.dataset.href);
  };
  const search = async () => {
    const typed = input.value;
    try {
      const response = await call(`/fragments/palette?${new URLSearchParams({ q: typed })}`, { signal });
      if (!response.ok) throw new Error(await problemOf(response));
      const html = await response.text();
      if (typed !== input.value) return;
      list.innerHTML = html;
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
