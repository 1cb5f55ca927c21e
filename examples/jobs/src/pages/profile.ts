import type { components } from '@postern/client';
import { client } from '../client';
import { date, h } from '../dom';

export async function profile(): Promise<Node[]> {
  const { userId, groups } = await client.requireUser();
  const actor = await client.json<components['schemas']['Actor']>(`/actors/${encodeURIComponent(userId)}`);
  const rows = [
    ['Name', [actor.firstName, actor.lastName].filter(Boolean).join(' ') || 'not given'],
    ['E-mail address', actor.email],
    ['Member since', date(actor.createdAt)],
    ['Groups', groups.join(', ') || 'none'],
  ];
  return [h('dl', { class: 'card' }, ...rows.flatMap(([name, value]) => [h('dt', {}, name), h('dd', {}, value)]))];
}
