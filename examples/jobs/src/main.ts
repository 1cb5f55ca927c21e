import { SignInRequired } from '@postern/client';
import { client } from './client';
import { h } from './dom';
import { explain } from './form';
import { candidates } from './pages/candidates';
import { forgotPassword, home, register, signIn, signedIn } from './pages/account';
import { notifications } from './pages/notifications';
import { profile } from './pages/profile';
import { resumes } from './pages/resumes';

interface Page {
  title: string;
  show: () => Promise<Node[]> | Node[];
  /** Shown to signed-in users only, in the navigation as well. */
  isGuarded?: boolean;
  /** Group whose members see the page. */
  group?: string;
}

const PAGES: Record<string, Page> = {
  '/': { title: 'Jobs that fit', show: home },
  '/register': { title: 'Create an account', show: register },
  '/sign-in': { title: 'Sign in', show: signIn },
  '/signed-in': { title: 'Signing in', show: signedIn },
  '/forgot-password': { title: 'New password', show: forgotPassword },
  '/profile': { title: 'Profile', show: profile, isGuarded: true },
  '/resumes': { title: 'Resumes', show: resumes, isGuarded: true },
  '/candidates': { title: 'Candidates', show: candidates, isGuarded: true, group: 'recruiters' },
  '/notifications': { title: 'Notifications', show: notifications, isGuarded: true },
};

const main = document.getElementById('main') as HTMLElement;
const header = document.getElementById('header') as HTMLElement;
let shown = 0;

/** Goes to a page of this application. */
export function go(path: string): void {
  history.pushState(null, '', path);
  void show();
}

/** Shows the page of the address; guarded pages send others to the sign-in. */
async function show(): Promise<void> {
  const page = PAGES[location.pathname] ?? { title: 'No such page', show: () => [h('a', { href: '/' }, 'To the start')] };
  const mine = ++shown;
  document.title = `${page.title} · Matchbook`;
  drawHeader();
  const heading = h('h1', { tabindex: -1 }, page.title);
  try {
    if (page.isGuarded) await client.requireUser(`/sign-in?to=${encodeURIComponent(location.pathname)}`);
    const content = await page.show();
    // Another page may have been opened meanwhile.
    if (mine !== shown) return;
    main.replaceChildren(heading, ...content);
  } catch (error) {
    if (mine !== shown) return;
    if (error instanceof SignInRequired) return go('/sign-in');
    main.replaceChildren(heading, h('p', { class: 'error', role: 'alert' }, explain(error)));
  }
  heading.focus();
}

function drawHeader(): void {
  const session = client.session();
  const links = Object.entries(PAGES).filter(
    ([, page]) => page.isGuarded && session && (!page.group || session.groups.includes(page.group)),
  );
  const link = (path: string, text: string) =>
    h('a', { href: path, 'aria-current': location.pathname === path ? 'page' : undefined }, text);
  header.replaceChildren(
    h('a', { class: 'brand', href: '/' }, 'Matchbook'),
    h('nav', { 'aria-label': 'Pages' },
      ...links.map(([path, page]) => link(path, page.title)), !session && link('/sign-in', 'Sign in')),
    ...(session ? [h('button', { id: 'sign-out', type: 'button', click: () => void client.signOut() }, 'Sign out')] : []),
  );
}

document.addEventListener('click', (event) => {
  const link = event.target instanceof Element ? event.target.closest('a') : null;
  const isPlain = !event.defaultPrevented && event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey;
  if (!link || !isPlain || link.origin !== location.origin || link.hash) return;
  event.preventDefault();
  go(link.pathname + link.search);
});
addEventListener('popstate', () => void show());

// Signed out here, in another tab, or by the server: no guarded page stays open.
let wasSignedIn = false;
client.onAuthStateChange((session) => {
  drawHeader();
  if (wasSignedIn && !session && PAGES[location.pathname]?.isGuarded) go('/sign-in');
  wasSignedIn = session !== null;
});
void show();
