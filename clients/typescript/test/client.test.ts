import { beforeEach, describe, expect, test, vi } from 'vitest';
import { NetworkError, Problem, SignInRequired, createClient } from '../src/index.js';

const MINUTE = 60_000;

interface Call {
  path: string;
  method: string;
  headers: Headers;
  body: any;
}

/** A gateway with a clock of its own: tokens live ten minutes, refresh tokens rotate. */
class Gateway {
  now = Date.parse('2026-11-20T08:00:00Z');
  isReachable = true;
  calls: Call[] = [];
  refreshToken = 'r-0';
  respond: (call: Call) => Response | Promise<Response> = () => Response.json({});
  #issued = 0;

  tokens() {
    const iat = Math.floor(this.now / 1000);
    const claims = { sub: 'ada', iat, exp: iat + 600, jti: ++this.#issued, 'cognito:groups': ['recruiters'] };
    this.refreshToken = `r-${this.#issued}`;
    return {
      accessToken: `e30.${btoa(JSON.stringify(claims))}.c2ln`,
      idToken: 'a.b.c',
      refreshToken: this.refreshToken,
      expiresAt: new Date((iat + 600) * 1000).toISOString(),
    };
  }

  fetch = async (input: RequestInfo | URL, init: RequestInit = {}): Promise<Response> => {
    await Promise.resolve();
    if (!this.isReachable) throw new TypeError('Failed to fetch');
    const url = new URL(String(input));
    const body = typeof init.body === 'string' ? JSON.parse(init.body) : init.body;
    const call = { path: url.pathname + url.search, method: init.method ?? 'GET', headers: new Headers(init.headers), body };
    this.calls.push(call);
    if (call.path === '/auth/login') return Response.json(this.tokens());
    if (call.path === '/auth/logout') return new Response(null, { status: 204 });
    if (call.path === '/auth/tokens/refresh') {
      return body.refreshToken === this.refreshToken ? Response.json(this.tokens()) : problem(401, 'invalid_refresh_token');
    }
    const token = call.headers.get('authorization')?.split(' ')[1] ?? '';
    const { exp } = JSON.parse(atob(token.split('.')[1] ?? ''));
    return exp * 1000 <= this.now ? problem(401, 'token_expired') : this.respond(call);
  };

  count(path: string): number {
    return this.calls.filter((call) => call.path === path).length;
  }
}

function problem(status: number, code: string, more: object = {}, headers: HeadersInit = {}): Response {
  return Response.json({ title: code, status, code, requestId: 'x', ...more }, { status, headers });
}

let gateway: Gateway;
let storage: Map<string, string>;
let skew: number;

/** A client of one tab; all tabs share the storage. */
function tab() {
  return createClient({
    url: 'https://gateway.example.com',
    storage: {
      getItem: (key) => storage.get(key) ?? null,
      setItem: (key, value) => void storage.set(key, value),
      removeItem: (key) => void storage.delete(key),
    },
    fetch: gateway.fetch,
    now: () => gateway.now + skew,
  });
}

const ada = { email: 'ada@example.com', password: 'Correct horse battery 9' };

beforeEach(() => {
  gateway = new Gateway();
  storage = new Map();
  skew = 0;
});

describe('session', () => {
  test('requests at once share a refresh', async () => {
    const client = tab();
    await client.signIn(ada);
    gateway.now += 20 * MINUTE;
    const responses = await Promise.all([1, 2, 3].map(() => client.fetch('/auth/me')));
    expect(responses.map((response) => response.status)).toEqual([200, 200, 200]);
    expect(gateway.count('/auth/tokens/refresh')).toBe(1);
  });

  test('tokens that another tab has refreshed are used', async () => {
    const [one, two] = [tab(), tab()];
    const session = await one.signIn(ada);
    gateway.now += 20 * MINUTE;
    await one.fetch('/auth/me');
    expect((await two.requireUser()).accessToken).not.toBe(session.accessToken);
    expect(gateway.count('/auth/tokens/refresh')).toBe(1);
  });

  test.each([10, -10])('a clock that is %i minutes wrong costs no refresh', async (minutes) => {
    skew = minutes * MINUTE;
    const client = tab();
    await client.signIn(ada);
    gateway.now += 5 * MINUTE;
    expect((await client.fetch('/auth/me')).status).toBe(200);
    expect(gateway.count('/auth/tokens/refresh')).toBe(0);
    gateway.now += 5 * MINUTE;
    expect((await client.fetch('/auth/me')).status).toBe(200);
    expect(gateway.count('/auth/tokens/refresh')).toBe(1);
  });

  test('a clock that is set back is noticed by token_expired', async () => {
    const client = tab();
    await client.signIn(ada);
    gateway.now += 11 * MINUTE;
    skew = -10 * MINUTE;
    const init = { method: 'POST', body: '{"a":1}', headers: { 'X-A': 'b' } };
    expect((await client.fetch('/world', init)).status).toBe(200);
    expect(gateway.count('/world')).toBe(2);
    const last = gateway.calls.at(-1);
    expect([last?.body, last?.headers.get('x-a')]).toEqual([{ a: 1 }, 'b']);
  });

  test.each(['service_not_allowed', 'token_signature_invalid', 'authentication_required'])(
    '401 %s is not repeated',
    async (code) => {
      const client = tab();
      await client.signIn(ada);
      gateway.respond = () => problem(401, code);
      expect((await client.fetch('/world')).status).toBe(401);
      expect([gateway.count('/world'), gateway.count('/auth/tokens/refresh')]).toEqual([1, 0]);
    },
  );

  test('token_expired is repeated once', async () => {
    const client = tab();
    await client.signIn(ada);
    gateway.respond = () => problem(401, 'token_expired');
    expect((await client.fetch('/world')).status).toBe(401);
    expect(gateway.count('/world')).toBe(2);
  });

  test('offline keeps the session', async () => {
    const client = tab();
    await client.signIn(ada);
    gateway.now += 20 * MINUTE;
    gateway.isReachable = false;
    await expect(client.requireUser()).rejects.toBeInstanceOf(NetworkError);
    gateway.isReachable = true;
    expect((await client.fetch('/auth/me')).status).toBe(200);
  });

  test('a rejected refresh token ends the session', async () => {
    const client = tab();
    const seen: (string | undefined)[] = [];
    client.onAuthStateChange((session) => seen.push(session?.userId));
    await client.signIn(ada);
    gateway.now += 20 * MINUTE;
    gateway.refreshToken = 'revoked';
    await expect(client.fetch('/auth/me')).rejects.toBeInstanceOf(SignInRequired);
    expect(seen).toEqual([undefined, 'ada', undefined]);
  });

  test('sign-out during a refresh stays signed out', async () => {
    const client = tab();
    await client.signIn(ada);
    gateway.now += 20 * MINUTE;
    const request = client.fetch('/auth/me');
    await Promise.resolve();
    await tab().signOut();
    await expect(request).rejects.toBeInstanceOf(SignInRequired);
    expect(client.session()).toBeNull();
    const revoked = gateway.calls.filter((call) => call.path === '/auth/logout').map((call) => call.body.refreshToken);
    expect(revoked).toContain(gateway.refreshToken);
  });

  test('the token goes to the gateway only', async () => {
    const client = tab();
    await client.signIn(ada);
    for (const path of ['https://evil.example/', '//evil.example/']) {
      await expect(client.fetch(path)).rejects.toBeInstanceOf(TypeError);
    }
  });
});

test('problems have codes, pointers and challenges', async () => {
  const client = tab();
  await client.signIn(ada);
  const errors = [{ pointer: '/recipient', code: 'missing_field', detail: 'is required' }];
  gateway.respond = () => problem(400, 'invalid_request', { errors });
  const error = await client.json('/notifications').catch((error: unknown) => error);
  expect(error).toBeInstanceOf(Problem);
  expect((error as Problem).at('/recipient')).toBe('is required');
  gateway.respond = () => new Response('<h1>Bad gateway</h1>', { status: 502 });
  await expect(client.me()).rejects.toMatchObject({ status: 502, code: 'unknown', errors: [] });
});

test('a status is polled with its ETag until it is final', async () => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] });
  const client = tab();
  await client.signIn(ada);
  const answers = [
    Response.json({ status: 'QUEUED' }, { headers: { etag: '"1"' } }),
    new Response(null, { status: 304 }),
    problem(429, 'rate_limited', {}, { 'retry-after': '7' }),
    Response.json({ status: 'SENT' }, { headers: { etag: '"2"' } }),
  ];
  gateway.respond = () => answers.shift() as Response;
  const waiting = client.notifications.waitFor('n/1');
  await vi.runAllTimersAsync();
  expect((await waiting).status).toBe('SENT');
  const polls = gateway.calls.filter((call) => call.path === '/notifications/n%2F1');
  expect(polls.map((call) => call.headers.get('if-none-match'))).toEqual([null, '"1"', '"1"', '"1"']);
  vi.useRealTimers();
});
