import type { CategoryPreference, NewNotification } from '@postern/client';
import { client } from '../client';
import { date, h } from '../dom';
import { explain } from '../form';

const DAY_MS = 24 * 60 * 60 * 1000;

interface Row {
  notificationId: string;
  status: string;
  template?: string;
  createdAt: string;
}

export async function notifications(): Promise<Node[]> {
  const { userId } = await client.requireUser();
  const [page, categories] = await Promise.all([client.notifications.list(), client.notifications.preferences()]);
  const list = h('ul', { class: 'list' }, ...page.notifications.map(row));
  const status = h('p', { role: 'status' });
  const notification: NewNotification = {
    channel: 'email', recipient: { actorId: userId }, template: 'welcome', variables: { name: 'you' },
  };

  async function send(more: Partial<NewNotification>): Promise<void> {
    try {
      const created = await client.notifications.send({ ...notification, ...more });
      list.prepend(row({ ...created, template: notification.template }));
      status.textContent = 'Accepted.';
      const id = created.notificationId;
      const now = more.sendAt ? await client.notifications.get(id) : await client.notifications.waitFor(id);
      list.firstElementChild?.replaceWith(row(now));
      status.textContent = `The mail is ${now.status}.`;
    } catch (error) {
      status.textContent = explain(error);
    }
  }

  return [
    h('section', { class: 'card', 'aria-labelledby': 'send' },
      h('h2', { id: 'send' }, 'Try it'),
      h('p', { class: 'actions' },
        h('button', { type: 'button', class: 'primary', click: () => void send({}) }, 'Mail me now'),
        h('button', { type: 'button', click: () => void send({ sendAt: new Date(Date.now() + DAY_MS).toISOString() }) },
          'Mail me tomorrow')),
      status),
    h('section', { 'aria-labelledby': 'inbox' }, h('h2', { id: 'inbox' }, 'Inbox'), list),
    h('section', { 'aria-labelledby': 'preferences' }, h('h2', { id: 'preferences' }, 'What we may send you'), ...preferences(categories)),
  ];
}

function row({ notificationId, status, template, createdAt }: Row): HTMLElement {
  const line = h('li', {},
    h('strong', {}, template), h('span', { class: `badge ${status.toLowerCase()}` }, status), h('span', { class: 'note' }, date(createdAt)));
  if (status !== 'SCHEDULED') return line;
  const cancel = async () => {
    try {
      await client.notifications.cancel(notificationId);
      const now = row({ notificationId, status: 'CANCELLED', template, createdAt });
      line.replaceWith(now);
    } catch (error) {
      line.append(h('span', { class: 'error', role: 'alert' }, explain(error)));
    }
  };
  line.append(h('button', { type: 'button', click: () => void cancel() }, 'Cancel'));
  return line;
}

function preferences(categories: CategoryPreference[]): Node[] {
  if (categories.length === 0) return [h('p', { class: 'empty' }, 'Nothing can be chosen yet.')];
  const status = h('p', { role: 'status' });
  const choice = ({ category, subscribed }: CategoryPreference) => {
    const box = h('input', { type: 'checkbox', id: `category-${category}`, checked: subscribed });
    box.addEventListener('change', async () => {
      try {
        await client.notifications.setPreferences([{ category, subscribed: box.checked }]);
        status.textContent = `${category}: ${box.checked ? 'you will hear from us' : 'you have left'}.`;
      } catch (error) {
        box.checked = !box.checked;
        status.textContent = explain(error);
      }
    });
    return h('li', {}, box, h('label', { for: box.id }, category));
  };
  return [h('ul', { class: 'list choices' }, ...categories.map(choice)), status];
}
