import type { components } from './openapi.js';
import { Problem, SignInRequired, send } from './problem.js';

export type TokenSet = components['schemas']['TokenSet'];

/** A signed-in user. */
export interface Session extends TokenSet {
  /** Subject in the actor pool. */
  readonly userId: string;
  /** Groups of the user, to decide what a page shows. The gateway decides what is allowed. */
  readonly groups: readonly string[];
  /** Local time at which the tokens arrived, in milliseconds. */
  readonly receivedAt: number;
  /** Time for which the access token is valid, in milliseconds. */
  readonly lifetime: number;
}

export type SessionStorage = Pick<Storage, 'getItem' | 'setItem' | 'removeItem'>;
export type Listener = (session: Session | null) => void;

/** What the browser provides; tests replace it. */
export interface Environment {
  readonly url: URL;
  readonly storage: SessionStorage;
  readonly fetch: typeof globalThis.fetch;
  readonly now: () => number;
  /** Web Locks; without them (no secure context) only the requests of one page share a refresh. */
  readonly locks: { request<T>(name: string, run: () => Promise<T>): Promise<T> };
}

/** Time before the expiry at which the token is replaced, at most a tenth of its lifetime. */
const REFRESH_MARGIN_MS = 30_000;

/** The session of all tabs of an origin, in client-side storage. */
export class SessionStore {
  readonly #environment: Environment;
  readonly #key: string;
  readonly #listeners = new Set<Listener>();

  constructor(environment: Environment) {
    this.#environment = environment;
    this.#key = `postern ${environment.url.origin}`;
    // Fired for changes of other tabs only; `null` is `localStorage.clear()`.
    globalThis.addEventListener?.('storage', (event) => {
      if (event.key === this.#key || event.key === null) this.#notify();
    });
  }

  read(): Session | null {
    try {
      return JSON.parse(this.#environment.storage.getItem(this.#key) ?? 'null') as Session | null;
    } catch {
      return null;
    }
  }

  store(tokens: TokenSet): Session {
    const claims = claimsOf(tokens.accessToken);
    const { accessToken, idToken, refreshToken, expiresAt } = tokens;
    const session: Session = {
      accessToken, idToken, refreshToken, expiresAt,
      userId: String(claims['sub']),
      groups: Array.isArray(claims['cognito:groups']) ? claims['cognito:groups'].map(String) : [],
      receivedAt: this.#environment.now(),
      lifetime: (Number(claims['exp']) - Number(claims['iat'])) * 1000,
    };
    this.#environment.storage.setItem(this.#key, JSON.stringify(session));
    this.#notify();
    return session;
  }

  clear(): void {
    this.#environment.storage.removeItem(this.#key);
    this.#notify();
  }

  /** Calls the listener now and at every sign-in, refresh and sign-out, of any tab. Returns the function that ends it. */
  subscribe(listener: Listener): () => void {
    this.#listeners.add(listener);
    listener(this.read());
    return () => void this.#listeners.delete(listener);
  }

  #notify(): void {
    const session = this.read();
    for (const listener of [...this.#listeners]) listener(session);
  }

  /** Returns a session whose access token has not expired. */
  async valid(): Promise<Session> {
    const session = this.read();
    if (!session) throw new SignInRequired();
    return this.#isExpiring(session) ? this.refresh(session) : session;
  }

  /**
   * Compares the age of the token with its lifetime, not `expiresAt` with the clock, which may be wrong. Where the clock was
   * set in between, the gateway's `token_expired` decides.
   */
  #isExpiring({ receivedAt, lifetime }: Session): boolean {
    const margin = Math.min(REFRESH_MARGIN_MS, lifetime / 10);
    return this.#environment.now() - receivedAt >= lifetime - margin;
  }

  /** Replaces the tokens of `used`, once for all tabs: who waits for the lock finds the new ones in the storage. */
  refresh(used: Session): Promise<Session> {
    return this.#environment.locks.request(this.#key, async () => {
      const current = this.read();
      if (!current) throw new SignInRequired();
      if (current.accessToken !== used.accessToken) return current;
      const response = await this.post('/auth/tokens/refresh', { refreshToken: current.refreshToken });
      if (!response.ok) {
        const problem = await Problem.of(response);
        if (problem.code !== 'invalid_refresh_token') throw problem;
        // Another sign-in meanwhile is not ended by the failure of the previous one.
        if (this.read()?.refreshToken === current.refreshToken) this.clear();
        throw new SignInRequired();
      }
      const tokens = (await response.json()) as TokenSet;
      const now = this.read();
      if (now?.refreshToken === current.refreshToken) return this.store(tokens);
      // Signed out, or in as somebody else, during the request.
      await this.post('/auth/logout', { refreshToken: tokens.refreshToken }).catch(() => undefined);
      if (now) return now;
      throw new SignInRequired();
    });
  }

  /** Sends a public request, without a token. */
  post(path: string, body: object): Promise<Response> {
    const { fetch, url } = this.#environment;
    const headers = { 'Content-Type': 'application/json' };
    return send(fetch, new URL(path, url), { method: 'POST', headers, body: JSON.stringify(body) });
  }
}

/** Reads the claims of a token without verifying it: the gateway does. */
function claimsOf(token: string): Record<string, unknown> {
  const payload = (token.split('.')[1] ?? '').replaceAll('-', '+').replaceAll('_', '/');
  const bytes = Uint8Array.from(atob(payload), (character) => character.charCodeAt(0));
  return JSON.parse(new TextDecoder().decode(bytes)) as Record<string, unknown>;
}
