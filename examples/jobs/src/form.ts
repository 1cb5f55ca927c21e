import { NetworkError, Problem, SocialSignInError } from '@postern/client';
import { h } from './dom';

export interface FieldOptions {
  name: string;
  label: string;
  /** JSON pointer of the field in the request, default `/name`. */
  pointer?: string;
  type?: string;
  autocomplete?: string;
  hint?: string;
  optional?: boolean;
  inputmode?: string;
}

/** What a person reads about an error. `code` decides, never the status alone. */
export function explain(error: unknown): string {
  if (error instanceof NetworkError) return 'The service cannot be reached. Check your connection and try again.';
  if (error instanceof SocialSignInError) {
    return error.reason === 'access_denied' ? 'You declined, so nobody is signed in.' : error.message;
  }
  if (!(error instanceof Problem)) throw error;
  switch (error.code) {
    case 'invalid_credentials': return 'The address or the password is wrong.';
    case 'invalid_code': return 'The code is wrong or has expired.';
    case 'invalid_temporary_token': return 'This sign-in took too long. Please start again.';
    case 'email_not_available': return 'There is an account with this address. Sign in instead.';
    case 'rate_limited': return `Too many attempts. Try again in ${error.retryAfter ?? 60} seconds.`;
    default: return [error.message, error.detail].filter(Boolean).join('. ');
  }
}

/** A form whose submission may fail: mistakes are shown at their fields, everything else above the button. */
export function form(
  fields: FieldOptions[],
  button: string,
  submit: (values: Record<string, string>) => Promise<void>,
): HTMLFormElement {
  const status = h('p', { class: 'error', role: 'alert' });
  const send = h('button', { type: 'submit', class: 'primary' }, button);
  const rows = fields.map((field) => {
    const note = h('span', { id: `${field.name}-note`, class: 'note' }, field.hint);
    const input = h('input', {
      id: field.name, name: field.name, type: field.type ?? 'text', autocomplete: field.autocomplete,
      inputmode: field.inputmode, required: !field.optional, 'aria-describedby': note.id,
    });
    return { field, input, note, row: h('div', { class: 'field' }, h('label', { for: field.name }, field.label), input, note) };
  });

  const clear = () => {
    status.textContent = '';
    for (const { field, input, note } of rows) {
      input.removeAttribute('aria-invalid');
      note.textContent = field.hint ?? '';
    }
  };
  const show = (error: unknown) => {
    const wrong = rows.filter(({ field, input, note }) => {
      const detail = error instanceof Problem ? error.at(field.pointer ?? `/${field.name}`) : undefined;
      if (detail === undefined) return false;
      input.setAttribute('aria-invalid', 'true');
      note.textContent = `${field.label}: ${detail}`;
      return true;
    });
    if (wrong.length === 0) status.textContent = explain(error);
    wrong[0]?.input.focus();
  };

  return h(
    'form',
    {
      submit: async (event) => {
        event.preventDefault();
        clear();
        send.disabled = true;
        try {
          await submit(Object.fromEntries(rows.map(({ field, input }) => [field.name, input.value])));
        } catch (error) {
          show(error);
        } finally {
          send.disabled = false;
        }
      },
    },
    ...rows.map(({ row }) => row), status, send,
  );
}
