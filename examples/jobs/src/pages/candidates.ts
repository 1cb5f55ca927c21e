import type { components } from '@postern/client';
import { client } from '../client';
import { date, h } from '../dom';
import { explain } from '../form';
import { resumeList, resumesOf } from './resumes';

type Actor = components['schemas']['Actor'];

/** For recruiters. Others get 403 from the gateway, whatever the page shows. */
export async function candidates(): Promise<Node[]> {
  const { candidates } = await client.json<components['schemas']['CandidateList']>('/candidates');
  return [h('ul', { class: 'list' }, ...candidates.map((candidate) => h('li', {}, details(candidate))))];
}

function details(candidate: Actor): HTMLElement {
  const name = [candidate.firstName, candidate.lastName].filter(Boolean).join(' ') || candidate.email;
  const place = h('div', {}, h('p', {}, candidate.email));
  let isLoaded = false;
  return h(
    'details',
    {
      toggle: async () => {
        if (isLoaded) return;
        isLoaded = true;
        place.append(await resumesOf(candidate.actorId).then(resumeList, (error: unknown) => explain(error)));
      },
    },
    h('summary', {}, h('strong', {}, name), h('span', { class: 'note' }, `since ${date(candidate.createdAt)}`)),
    place,
  );
}
