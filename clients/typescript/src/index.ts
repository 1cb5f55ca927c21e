/** Postern for web pages: sign-in, authorized requests and notifications. */
import type { components } from './openapi.js';
import { Notifications } from './notifications.js';
import { type Challenge, Problem, SignInRequired, SocialSignInError, send } from './problem.js';
import { type Environment, type Listener, type Session, type SessionStorage, SessionStore, type TokenSet } from './session.js';
import * as social from './social.js';
import { upload } from './upload.js';

export type { components, operations, paths } from './openapi.js';
export { NetworkError, Problem, SignInRequired, SocialSignInError } from './problem.js';
export type { Challenge, FieldError, ProblemCode } from './problem.js';
export type * from './notifications.js';
export type { Listener, Session, SessionStorage, TokenSet };

type Schemas = components['schemas'];

export type Registration = Schemas['Registration'];
export type Credentials = Schemas['Credentials'];
export type PasswordReset = Schemas['PasswordReset'];
export type User = Schemas['User'];
export type Caller = Schemas['Caller'];
/** The code, password or other responses that a challenge asks for. */
export type ChallengeAnswer = Omit<Schemas['ChallengeAnswer'], 'session'> & {
  /** With CONFIRM_SIGN_UP: the password of the registration. */
  password?: string;
};

export interface ClientOptions extends Partial<Omit<Environment, 'url' | 'storage'>> {
  /** The gateway, such as `https://gateway.example.com`. */
  url: string;
  /** Where the tokens are kept; default `localStorage`, which the tabs share. */
  storage?: SessionStorage;
}

export interface SocialResult {
  session: Session;
  user: User;
  /** What was passed to `signInWithSocial`. */
  returnTo: string;
}

export type Client = ReturnType<typeof createClient>;

/** Creates a client. Errors of its functions are `Problem`, `NetworkError`, `SignInRequired` and `SocialSignInError`. */
export function createClient(options: ClientOptions) {
  const environment: Environment = {
    url: new URL(options.url),
    storage: options.storage ?? localStorage,
    fetch: options.fetch ?? ((input, init) => globalThis.fetch(input, init)),
    now: options.now ?? Date.now,
    locks: options.locks ?? globalThis.navigator?.locks ?? queue(),
  };
  const sessions = new SessionStore(environment);

  async function post<T>(path: string, body: object): Promise<T> {
    const response = await sessions.post(path, body);
    if (!response.ok) throw await Problem.of(response);
    return (response.status === 204 ? undefined : await response.json()) as T;
  }

  async function signedIn(path: string, body: object): Promise<Session> {
    return sessions.store(await post<TokenSet>(path, body));
  }

  /** The token goes to the gateway only. */
  function target(path: string): URL {
    const url = new URL(path, environment.url);
    if (url.origin !== environment.url.origin) throw new TypeError(`${path} is not a path of the gateway`);
    return url;
  }

  /**
   * Fetches a path of the gateway with the access token. A response 401 `token_expired` is repeated once with a new token; other
   * responses are returned as they are, because a new token does not change them.
   */
  async function authorizedFetch(path: string, init: RequestInit = {}): Promise<Response> {
    const url = target(path);
    const attempt = ({ accessToken }: Session) => {
      const headers = new Headers(init.headers);
      headers.set('Authorization', `Bearer ${accessToken}`);
      return send(environment.fetch, url, { ...init, headers });
    };
    const session = await sessions.valid();
    const response = await attempt(session);
    const isStream = init.body instanceof ReadableStream;
    if (response.status !== 401 || isStream || (await Problem.of(response.clone())).code !== 'token_expired') return response;
    return attempt(await sessions.refresh(session));
  }

  async function json<T>(path: string, init?: RequestInit): Promise<T> {
    const response = await authorizedFetch(path, init);
    if (!response.ok) throw await Problem.of(response);
    return (await response.json()) as T;
  }

  return {
    /** Creates a user and signs in. A `Problem` with a challenge CONFIRM_SIGN_UP asks for the code from a mail. */
    register: (registration: Registration): Promise<Session> => signedIn('/auth/register', registration),

    /** Signs in. A `Problem` with a challenge asks for a new password or a second factor. */
    signIn: (credentials: Credentials): Promise<Session> => signedIn('/auth/login', credentials),

    /** Answers the challenge of a `Problem`. The answer may be another challenge. */
    answerChallenge(challenge: Challenge, answer: ChallengeAnswer): Promise<Session> {
      const path = challenge.name === 'CONFIRM_SIGN_UP' ? '/auth/register/confirm' : '/auth/challenge';
      return signedIn(path, { ...answer, session: challenge.session });
    },

    /** Leaves the page for the social provider, which returns to the page that the gateway's `social.ui` names. */
    signInWithSocial: (returnTo: string = location.pathname + location.search): Promise<never> =>
      social.start(environment.url, returnTo),

    /** On the return page: ends the social sign-in. `null` if the page was opened otherwise. */
    async finishSocialSignIn(): Promise<SocialResult | null> {
      const result = social.finish();
      if (!result) return null;
      const { temporaryToken, verifier: codeVerifier, returnTo } = result;
      const { user, tokens } = await post<Schemas['Exchange']>('/auth/tokens/exchange', { temporaryToken, codeVerifier });
      if (!tokens) throw new SocialSignInError('tokens_unavailable');
      return { user, session: sessions.store(tokens), returnTo };
    },

    /** Ends the session in all tabs and revokes the refresh token, if the gateway can be reached. */
    async signOut(): Promise<void> {
      const refreshToken = sessions.read()?.refreshToken;
      sessions.clear();
      if (refreshToken) await sessions.post('/auth/logout', { refreshToken }).catch(() => undefined);
    },

    /** Sends a code to the address, if there is an account. */
    forgotPassword: (email: string): Promise<void> => post('/auth/password/forgot', { email }),

    resetPassword: (reset: PasswordReset): Promise<void> => post('/auth/password/reset', reset),

    /** The session as stored; its access token may have expired. */
    session: (): Session | null => sessions.read(),

    onAuthStateChange: (listener: Listener): (() => void) => sessions.subscribe(listener),

    /** Guards a page: returns a session with a valid token, or goes to `signInPage`; without one, `SignInRequired` is thrown. */
    async requireUser(signInPage?: string): Promise<Session> {
      try {
        return await sessions.valid();
      } catch (error) {
        if (!(error instanceof SignInRequired) || signInPage === undefined) throw error;
        location.replace(signInPage);
        return new Promise<never>(() => undefined);
      }
    },

    /** The caller as the gateway sees it. */
    me: (): Promise<Caller> => json('/auth/me'),

    fetch: authorizedFetch,

    /** Like `fetch`, for JSON: returns the body, or throws a `Problem`. */
    json,

    /** Posts a form and reports its progress, from 0 to 1. */
    async upload<T>(path: string, form: FormData, onProgress?: (fraction: number) => void): Promise<T> {
      const url = target(path);
      const session = await sessions.valid();
      let result = await upload(url, session.accessToken, form, onProgress);
      if (result.status === 401 && Problem.parse(401, result.body).code === 'token_expired') {
        result = await upload(url, (await sessions.refresh(session)).accessToken, form, onProgress);
      }
      if (result.status >= 300) throw Problem.parse(result.status, result.body);
      return JSON.parse(result.body) as T;
    },

    notifications: new Notifications(authorizedFetch),
  };
}

/** Runs one after the other, where Web Locks are missing. */
function queue(): Environment['locks'] {
  let last: Promise<unknown> = Promise.resolve();
  return {
    request<T>(_name: string, run: () => Promise<T>): Promise<T> {
      const result = last.then(run, run);
      last = result.catch(() => undefined);
      return result;
    },
  };
}
