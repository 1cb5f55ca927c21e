import type { components, operations } from './openapi.js';
import { NetworkError, Problem } from './problem.js';

type Schemas = components['schemas'];

export type NewNotification = Schemas['NewNotification'];
export type CreatedNotification = Schemas['CreatedNotification'];
export type Notification = Schemas['Notification'];
export type NotificationPage = Schemas['NotificationPage'];
export type CategoryPreference = Schemas['CategoryPreference'];
export type NotificationQuery = NonNullable<operations['listNotifications']['parameters']['query']>;

export interface WaitOptions {
  /** Whether to stop; default: the notification was sent, or never will be. */
  until?: (notification: Notification) => boolean;
  /** Milliseconds, default a minute. Afterwards the last known state is returned. */
  timeout?: number;
  signal?: AbortSignal;
}

export type AuthorizedFetch = (path: string, init?: RequestInit) => Promise<Response>;

const FIRST_INTERVAL_MS = 250;
const MAX_INTERVAL_MS = 5_000;

/** `POST /notifications` and what follows. */
export class Notifications {
  readonly #fetch: AuthorizedFetch;

  constructor(fetch: AuthorizedFetch) {
    this.#fetch = fetch;
  }

  /** Sends a notification. Repeat a send whose outcome is unknown with the same key: nothing is sent twice. */
  async send(notification: NewNotification, idempotencyKey: string = crypto.randomUUID()): Promise<CreatedNotification> {
    const headers = { 'Content-Type': 'application/json', 'Idempotency-Key': idempotencyKey };
    return this.#json('/notifications', { method: 'POST', headers, body: JSON.stringify(notification) });
  }

  get(id: string): Promise<Notification> {
    return this.#json(pathOf(id));
  }

  /** Lists the caller's notifications, newest first; continue with `nextCursor`. */
  list(query: NotificationQuery = {}): Promise<NotificationPage> {
    const parameters = new URLSearchParams();
    for (const [name, value] of Object.entries(query)) parameters.set(name, String(value));
    return this.#json(`/notifications?${parameters}`);
  }

  /** Cancels a notification that was not attempted yet; otherwise a `Problem`. */
  async cancel(id: string): Promise<void> {
    await this.#checked(pathOf(id), { method: 'DELETE' });
  }

  async preferences(): Promise<CategoryPreference[]> {
    return (await this.#json<Schemas['NotificationPreferences']>('/notification-preferences')).categories;
  }

  /** Leaves categories or returns to them; the others stay as they are. */
  async setPreferences(categories: CategoryPreference[]): Promise<CategoryPreference[]> {
    const headers = { 'Content-Type': 'application/json' };
    const init = { method: 'PUT', headers, body: JSON.stringify({ categories }) };
    return (await this.#json<Schemas['NotificationPreferences']>('/notification-preferences', init)).categories;
  }

  /** Polls the status with `ETag`, at growing intervals, through interruptions of the network. */
  async waitFor(id: string, options: WaitOptions = {}): Promise<Notification> {
    const { until = isOver, timeout = 60_000, signal } = options;
    const end = performance.now() + timeout;
    let known: Notification | undefined;
    let etag: string | null = null;
    for (let interval = FIRST_INTERVAL_MS; ; interval = Math.min(interval * 1.5, MAX_INTERVAL_MS)) {
      let wait = interval;
      try {
        const headers: HeadersInit = etag === null ? {} : { 'If-None-Match': etag };
        const response = await this.#fetch(pathOf(id), { headers, cache: 'no-store', ...(signal && { signal }) });
        if (response.ok) {
          etag = response.headers.get('etag');
          known = (await response.json()) as Notification;
          if (until(known)) return known;
        } else if (response.status !== 304) {
          const problem = await Problem.of(response);
          if (problem.retryAfter === undefined) throw problem;
          wait = problem.retryAfter * 1000;
        }
      } catch (error) {
        if (!(error instanceof NetworkError)) throw error;
      }
      if (performance.now() + wait >= end) {
        if (known) return known;
        throw new NetworkError('The status could not be read in time');
      }
      await pause(wait, signal);
    }
  }

  async #checked(path: string, init?: RequestInit): Promise<Response> {
    const response = await this.#fetch(path, init);
    if (!response.ok) throw await Problem.of(response);
    return response;
  }

  async #json<T>(path: string, init?: RequestInit): Promise<T> {
    return (await (await this.#checked(path, init)).json()) as T;
  }
}

function pathOf(id: string): string {
  return `/notifications/${encodeURIComponent(id)}`;
}

/** Unknown statuses of later versions are waited for, as the first two are. */
function isOver({ status }: Notification): boolean {
  return ['SENT', 'DELIVERED', 'FAILED', 'CANCELLED', 'EXPIRED'].includes(status);
}

function pause(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', abort);
      resolve();
    }, milliseconds);
    const abort = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    if (signal?.aborted) abort();
    signal?.addEventListener('abort', abort, { once: true });
  });
}
