// Pages with work of their own in the browser: charts, the token check and the suppression list.
// Others have files of their own. The functions of console.js are arguments, because its address contains a hash.

const decode = (text) => Uint8Array.from(atob(text.replace(/-/g, '+').replace(/_/g, '/')), (c) => c.charCodeAt(0));
const json = (text) => JSON.parse(new TextDecoder().decode(decode(text)));
const ALGORITHMS = {
  RS256: { import: { name: 'RSASSA-PKCS1-v1_5', hash: 'SHA-256' }, verify: 'RSASSA-PKCS1-v1_5' },
  RS384: { import: { name: 'RSASSA-PKCS1-v1_5', hash: 'SHA-384' }, verify: 'RSASSA-PKCS1-v1_5' },
  RS512: { import: { name: 'RSASSA-PKCS1-v1_5', hash: 'SHA-512' }, verify: 'RSASSA-PKCS1-v1_5' },
  ES256: { import: { name: 'ECDSA', namedCurve: 'P-256' }, verify: { name: 'ECDSA', hash: 'SHA-256' } },
  ES384: { import: { name: 'ECDSA', namedCurve: 'P-384' }, verify: { name: 'ECDSA', hash: 'SHA-384' } },
  EdDSA: { import: { name: 'Ed25519' }, verify: 'Ed25519' },
};

/** Returns every public key in an answer of the gateway, with its issuer. */
function publicKeys(value, issuer = '', found = []) {
  if (Array.isArray(value)) value.forEach((item) => publicKeys(item, issuer, found));
  else if (value && typeof value === 'object') {
    const name = value.issuer || issuer;
    if (value.kty && (value.n || value.x)) found.push({ issuer: name, kid: value.kid, jwk: value });
    else Object.entries(value).forEach(([member, inner]) => {
      const isJwk = member === 'jwk' && inner && inner.kty;
      if (isJwk) found.push({ issuer: name, kid: inner.kid || value.kid, jwk: inner });
      else publicKeys(inner, name, found);
    });
  }
  return found;
}

async function check(text, keys) {
  const parts = text.trim().replace(/^Bearer /i, '').split('.');
  if (parts.length !== 3) return { lines: [['Form', 'not a signed JWT: three parts are expected', false]] };
  const [head, claims] = [json(parts[0]), json(parts[1])];
  const now = Date.now() / 1000;
  const lines = [];
  const known = keys.filter((key) => key.kid === head.kid);
  const key = known.find((entry) => entry.issuer === claims.iss) || known[0];
  lines.push(['Issuer', claims.iss, keys.length ? keys.some((entry) => entry.issuer === claims.iss) : null]);
  lines.push(['Key', `${head.kid} (${head.alg})`, Boolean(key)]);
  const algorithm = ALGORITHMS[head.alg];
  if (key && algorithm) {
    const { kty, n, e, crv, x, y } = key.jwk;
    const imported = await crypto.subtle.importKey('jwk', { kty, n, e, crv, x, y }, algorithm.import, false, ['verify']);
    const signed = new TextEncoder().encode(`${parts[0]}.${parts[1]}`);
    const isValid = await crypto.subtle.verify(algorithm.verify, imported, decode(parts[2]), signed);
    lines.push(['Signature', isValid ? 'valid' : 'not valid', isValid]);
  } else {
    lines.push(['Signature', 'not checked: the public key is not known here', null]);
  }
  const at = (seconds) => (Number.isFinite(seconds) ? new Date(seconds * 1000).toISOString() : 'absent');
  lines.push(['Expires', at(claims.exp), claims.exp > now]);
  if (claims.nbf !== undefined) lines.push(['Valid from', at(claims.nbf), claims.nbf <= now]);
  lines.push(['Subject', claims.sub, null], ['Use', claims.token_use || 'not stated', null]);
  lines.push(['Groups', (claims['cognito:groups'] || claims.groups || []).join(', ') || 'none', null]);
  return { lines, head, claims };
}

function tokens(main, { visible }) {
  const section = main.querySelector('#token-check');
  if (!section) return;
  const keys = section.dataset.keys ? publicKeys(JSON.parse(section.dataset.keys)) : [];
  section.querySelector('form').addEventListener('submit', async (event) => {
    event.preventDefault();
    event.stopPropagation();
    const result = main.querySelector('#token-result');
    let checked;
    try {
      checked = await check(new FormData(event.target).get('token'), keys);
    } catch (error) {
      checked = { lines: [['Form', `not a readable JWT (${error.message})`, false]] };
    }
    const list = document.createElement('dl');
    list.className = 'facts';
    for (const [name, value, isGood] of checked.lines) {
      const group = document.createElement('div');
      const term = document.createElement('dt');
      const detail = document.createElement('dd');
      term.textContent = name;
      detail.textContent = visible(`${value} `);
      if (isGood !== null) {
        const badge = document.createElement('span');
        badge.className = `badge ${isGood ? 'ok' : 'bad'}`;
        badge.textContent = isGood ? 'accepted' : 'rejected';
        detail.append(badge);
      }
      group.append(term, detail);
      list.append(group);
    }
    const code = document.createElement('pre');
    code.className = 'code';
    code.tabIndex = 0;
    code.textContent = checked.claims ? visible(JSON.stringify({ header: checked.head, claims: checked.claims }, null, 2)) : '';
    code.hidden = !checked.claims;
    result.replaceChildren(list, code);
  });
}

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
    plot.setAttribute('aria-valuenow', Math.round(x / 10));
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
  tokens(main, tools);
  suppression(main, tools);
}
