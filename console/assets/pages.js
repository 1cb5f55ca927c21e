// Pages with work of their own in the browser: charts and the suppression list.
// Others have files of their own. The functions of console.js are arguments, because its address contains a hash.

/** Searches the suppression list by the hash of an address, which does not leave the page. */
function suppression(main, { go, say }) {
  const form = main.querySelector('#suppression-search');
  if (!form) return;
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    event.stopPropagation();
    const typed = form.querySelector('#address').value.trim();
    let hash = typed.toLowerCase();
    if (typed && !/^[0-9a-f]{64}$/.test(hash)) {
      if (!crypto.subtle) {
        say('Addresses can be hashed in this browser over https only: type the SHA-256.', true);
        return;
      }
      const address = typed.includes('@') ? typed.toLowerCase() : typed;
      const digest = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(address));
      hash = Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, '0')).join('');
    }
    go(hash ? `/suppression?hash=${hash}` : '/suppression');
  });
}

/** Returns the readings of a chart, the oldest first: place on the time axis, time, and the value of each line. */
const readings = (plot) => plot.dataset.values.split('\n').filter(Boolean).map((line) => line.split('\t'));

/** Shows the values of charts under the pointer and the keyboard focus. They stay while the chart is replaced by a newer one. */
function charts(main, signal) {
  let used = null;
  const hide = () => {
    used = null;
    for (const chart of main.querySelectorAll('.chart.read')) {
      chart.classList.remove('read');
      chart.querySelector('.at').textContent = '';
      for (const value of chart.querySelectorAll('.key em')) value.textContent = value.dataset.newest;
    }
  };
  const show = (plot, find) => {
    const all = readings(plot);
    if (all.length === 0 || (used && used.name !== plot.getAttribute('aria-label'))) hide();
    if (all.length === 0) return;
    const [x, time, ...values] = all[find(all)];
    used = { name: plot.getAttribute('aria-label'), time };
    const chart = plot.closest('.chart');
    chart.classList.add('read');
    chart.querySelector('.at').textContent = time;
    for (const end of ['x1', 'x2']) plot.querySelector('.cursor').setAttribute(end, `${x / 10}%`);
    const texts = [...chart.querySelectorAll('.key')].map((key, index) => {
      const value = key.querySelector('em');
      value.dataset.newest ??= value.textContent;
      value.textContent = values[index];
      return key.textContent;
    });
    plot.setAttribute('aria-valuenow', Math.round(x));
    plot.setAttribute('aria-valuetext', `${time}: ${texts.join(', ')}`);
  };
  /** Returns the place of the reading that is shown; at first, and when that has gone, of the newest. */
  const place = (all) => {
    const found = all.findIndex(([, time]) => used && time === used.time);
    return found < 0 ? all.length - 1 : found;
  };
  const nearest = (x) => (all) => all.reduce((best, [at], index) => (Math.abs(at - x) < Math.abs(all[best][0] - x) ? index : best), 0);
  const point = ({ target, clientX }) => {
    const plot = target.closest('.plot');
    if (!plot) {
      if (!document.activeElement.matches('.plot')) hide();
      return;
    }
    const { left, width } = plot.querySelector('svg').getBoundingClientRect();
    show(plot, nearest(((clientX - left) / width) * 1000));
  };
  for (const type of ['pointermove', 'pointerdown']) main.addEventListener(type, point, { signal });
  main.addEventListener('pointerleave', () => document.activeElement.matches('.plot') || hide(), { signal });
  main.addEventListener('focusin', ({ target }) => target.matches('.plot') && show(target, place), { signal });
  // An update takes the focus from the old chart and gives it to the new one.
  main.addEventListener('focusout', () => setTimeout(() => document.activeElement.matches('.plot') || hide()), { signal });
  main.addEventListener('keydown', (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageDown: -12, PageUp: 12, Home: -Infinity, End: Infinity }[event.key];
    if (!event.target.matches('.plot') || !step) return;
    event.preventDefault();
    show(event.target, (all) => Math.min(all.length - 1, Math.max(0, place(all) + step)));
  }, { signal });
  const replaced = new MutationObserver(() => {
    const plot = used && [...main.querySelectorAll('.plot')].find((it) => it.getAttribute('aria-label') === used.name);
    if (plot) show(plot, place);
  });
  replaced.observe(main, { childList: true });
  signal.addEventListener('abort', () => replaced.disconnect());
}

/** Adds the work of a page to its fragment. `signal` ends with the page. */
export function enhance(main, signal, tools) {
  charts(main, signal);
  suppression(main, tools);
}
