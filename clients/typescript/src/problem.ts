import type { components } from './openapi.js';

type Schemas = components['schemas'];

/** A step that the identity pool asks for before it issues tokens. */
export type Challenge = Schemas['Challenge'];
/** A mistake in one field of a request. */
export type FieldError = Schemas['FieldError'];
/** A code of docs/reference/problem-codes.md, or one of a later version. */
export type ProblemCode = Schemas['Code'] | 'unknown' | (string & {});

/** An error response: a problem document (RFC 9457), or another body of an intermediary. */
export class Problem extends Error {
  override readonly name = 'Problem';
  readonly status: number;
  readonly code: ProblemCode;
  readonly detail: string | undefined;
  readonly requestId: string | undefined;
  /** All mistakes of the request; with 400 and 422. */
  readonly errors: readonly FieldError[];
  /** With the code `challenge_required`: pass it to `answerChallenge`. */
  readonly challenge: Challenge | undefined;
  /** Seconds to wait, from `Retry-After`. */
  readonly retryAfter: number | undefined;

  constructor(status: number, body: Partial<Schemas['Problem']> = {}, retryAfter?: number) {
    super(body.title ?? `The server answered ${status}`);
    this.status = status;
    this.code = body.code ?? 'unknown';
    this.detail = body.detail;
    this.requestId = body.requestId;
    this.errors = body.errors ?? [];
    this.challenge = body.challenge;
    this.retryAfter = retryAfter;
  }

  /** Reads the problem of a response. */
  static async of(response: Response): Promise<Problem> {
    const seconds = Number(response.headers.get('retry-after') ?? Number.NaN);
    return Problem.parse(response.status, await response.text(), Number.isFinite(seconds) ? seconds : undefined);
  }

  /** Reads the problem of a body. */
  static parse(status: number, text: string, retryAfter?: number): Problem {
    try {
      const body: unknown = JSON.parse(text);
      return new Problem(status, typeof body === 'object' && body !== null ? body : {}, retryAfter);
    } catch {
      return new Problem(status, {}, retryAfter);
    }
  }

  /** Returns what is wrong with a field, by its JSON pointer, such as `/email`. */
  at(pointer: string): string | undefined {
    return this.errors.find((error) => error.pointer === pointer)?.detail;
  }
}

/** The request did not reach the gateway: offline, or blocked by the browser. The session is kept. */
export class NetworkError extends Error {
  override readonly name = 'NetworkError';
}

/** There is no session, or it has ended. */
export class SignInRequired extends Error {
  override readonly name = 'SignInRequired';
  constructor() {
    super('Sign in to continue');
  }
}

/**
 * A social sign-in that ended without a session. `reason` is the provider's error, such as `access_denied`, or
 * `not_started_here` (the page did not start this sign-in) or `tokens_unavailable` (the pool lacks the triggers).
 */
export class SocialSignInError extends Error {
  override readonly name = 'SocialSignInError';
  constructor(readonly reason: string) {
    super(`The social sign-in did not succeed (${reason})`);
  }
}

/** Sends a request; a failure of the network is a `NetworkError`. */
export async function send(fetch: typeof globalThis.fetch, url: URL, init: RequestInit): Promise<Response> {
  try {
    return await fetch(url, init);
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new NetworkError('The gateway cannot be reached', { cause: error });
  }
}
