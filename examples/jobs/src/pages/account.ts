/** Pages that sign somebody in. */
import { type Challenge, Problem } from '@postern/client';
import { client } from '../client';
import { h } from '../dom';
import { explain, form } from '../form';
import { go } from '../main';

const EMAIL = { name: 'email', label: 'E-mail address', type: 'email', autocomplete: 'username' };
const NEW_PASSWORD = { type: 'password', autocomplete: 'new-password', hint: 'At least 12 characters' };
const CODE = { name: 'code', label: 'Code', autocomplete: 'one-time-code', inputmode: 'numeric' };

export function home(): Node[] {
  if (client.session()) go('/profile');
  return [
    h('p', { class: 'lead' }, 'Upload your resume once. Recruiters find you, and you hear from us only about what you chose.'),
    h('p', { class: 'actions' },
      h('a', { class: 'primary', href: '/register' }, 'Create an account'),
      h('a', { href: '/sign-in' }, 'Sign in')),
  ];
}

/** Where the person wanted to go: a path of this application only. */
function destination(): string {
  const to = new URLSearchParams(location.search).get('to') ?? '';
  return /^\/[a-z-]+$/.test(to) ? to : '/profile';
}

/** Runs a step of a sign-in. A challenge replaces `place` by its form. */
async function step(place: Element, password: string | undefined, to: string, run: () => Promise<unknown>): Promise<void> {
  try {
    await run();
    go(to);
  } catch (error) {
    if (!(error instanceof Problem) || !error.challenge) throw error;
    place.replaceChildren(...challengeForm(place, error.challenge, password, to));
    place.querySelector('input')?.focus();
  }
}

function challengeForm(place: Element, challenge: Challenge, password: string | undefined, to: string): Node[] {
  const answer = (more: object) => step(place, password, to, () => client.answerChallenge(challenge, more));
  if (challenge.name === 'NEW_PASSWORD_REQUIRED') {
    const field = { ...NEW_PASSWORD, name: 'newPassword', label: 'New password' };
    return [h('p', {}, 'Choose a password of your own.'), form([field], 'Continue', answer)];
  }
  const target = challenge.parameters['CODE_DELIVERY_DESTINATION'];
  const text = typeof target === 'string' ? `We have sent a code to ${target}.` : 'Enter the code that you received.';
  const secret = challenge.name === 'CONFIRM_SIGN_UP' ? { password } : {};
  return [h('p', {}, text), form([CODE], 'Continue', (values) => answer({ ...secret, ...values }))];
}

export function register(): Node[] {
  const fields = [
    { name: 'firstName', label: 'First name', pointer: '/profile/firstName', autocomplete: 'given-name' },
    { name: 'lastName', label: 'Last name', pointer: '/profile/lastName', autocomplete: 'family-name' },
    EMAIL,
    { ...NEW_PASSWORD, name: 'password', label: 'Password' },
  ];
  const place = h('div', { class: 'card' });
  place.append(
    form(fields, 'Create the account', ({ email = '', password = '', firstName = '', lastName = '' }) =>
      step(place, password, '/profile', () => client.register({ email, password, profile: { firstName, lastName } }))),
  );
  return [place, h('p', {}, 'You have an account? ', h('a', { href: '/sign-in' }, 'Sign in'))];
}

export function signIn(): Node[] {
  const place = h('div', { class: 'card' });
  const fields = [EMAIL, { name: 'password', label: 'Password', type: 'password', autocomplete: 'current-password' }];
  place.append(
    form(fields, 'Sign in', ({ email = '', password = '' }) =>
      step(place, password, destination(), () => client.signIn({ email, password }))),
    h('p', { class: 'or' }, 'or'),
    h('button', { type: 'button', click: () => void client.signInWithSocial(destination()) }, 'Continue with the social provider'),
  );
  return [
    place,
    h('p', {}, h('a', { href: '/forgot-password' }, 'Forgot the password?'), ' · ', h('a', { href: '/register' }, 'Create an account')),
  ];
}

/** The return page of social sign-in (`social.ui`). */
export async function signedIn(): Promise<Node[]> {
  const place = h('div', { class: 'card' }, h('p', {}, h('a', { href: '/sign-in' }, 'To the sign-in')));
  try {
    const result = await client.finishSocialSignIn();
    go(result?.returnTo ?? '/sign-in');
  } catch (error) {
    if (error instanceof Problem && error.challenge) {
      place.replaceChildren(...challengeForm(place, error.challenge, undefined, '/profile'));
    } else {
      place.prepend(h('p', { class: 'error', role: 'alert' }, explain(error)));
    }
  }
  return [place];
}

export function forgotPassword(): Node[] {
  const place = h('div', { class: 'card' });
  place.append(
    form([EMAIL], 'Send a code', async ({ email = '' }) => {
      await client.forgotPassword(email);
      const fields = [CODE, { ...NEW_PASSWORD, name: 'newPassword', label: 'New password' }];
      place.replaceChildren(
        h('p', { role: 'status' }, `If there is an account, we have sent a code to ${email}.`),
        form(fields, 'Set the password', async ({ code = '', newPassword = '' }) => {
          await client.resetPassword({ email, code, newPassword });
          await step(place, newPassword, '/profile', () => client.signIn({ email, password: newPassword }));
        }),
      );
      place.querySelector('input')?.focus();
    }),
  );
  return [place];
}
