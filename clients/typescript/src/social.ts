import { SocialSignInError } from './problem.js';

const KEY = 'postern social sign-in';

/** What a tab keeps while the person is at the provider. */
interface Pending {
  readonly verifier: string;
  readonly returnTo: string;
}

/** What the provider's redirect brought back. */
export interface SocialReturn extends Pending {
  readonly temporaryToken: string;
}

function base64url(bytes: Uint8Array): string {
  const text = btoa(String.fromCharCode(...bytes));
  return text.replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '');
}

/** Leaves the page for the social provider. The verifier (RFC 7636) stays in this tab. */
export async function start(gateway: URL, returnTo: string): Promise<never> {
  const verifier = base64url(crypto.getRandomValues(new Uint8Array(32)));
  const digest = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(verifier));
  sessionStorage.setItem(KEY, JSON.stringify({ verifier, returnTo } satisfies Pending));
  const url = new URL('/auth/social/login', gateway);
  url.searchParams.set('code_challenge', base64url(new Uint8Array(digest)));
  location.assign(url);
  return new Promise<never>(() => undefined);
}

/** Reads the fragment of the return page once, and removes it from the address bar and the history. */
export function finish(): SocialReturn | null {
  const result = new URLSearchParams(location.hash.slice(1));
  const temporaryToken = result.get('temporaryToken');
  const error = result.get('error');
  if (temporaryToken === null && error === null) return null;
  history.replaceState(history.state, '', location.pathname + location.search);
  const pending = JSON.parse(sessionStorage.getItem(KEY) ?? 'null') as Pending | null;
  sessionStorage.removeItem(KEY);
  if (error !== null) throw new SocialSignInError(error);
  // A link with the temporary token of somebody else must not sign this person in (login CSRF).
  if (!pending || temporaryToken === null) throw new SocialSignInError('not_started_here');
  return { ...pending, temporaryToken };
}
