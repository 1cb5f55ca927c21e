import type { components } from '@postern/client';
import { client } from '../client';
import { date, h } from '../dom';
import { explain } from '../form';

type Resume = components['schemas']['Resume'];

export async function resumesOf(candidateId: string): Promise<Resume[]> {
  const path = `/resumes?candidateId=${encodeURIComponent(candidateId)}`;
  return (await client.json<components['schemas']['ResumeList']>(path)).resumes;
}

export function resumeList(resumes: Resume[]): HTMLElement {
  if (resumes.length === 0) return h('p', { class: 'empty' }, 'No resume yet.');
  const row = ({ fileName, size, createdAt }: Resume) =>
    h('li', {}, h('strong', {}, fileName), h('span', { class: 'note' }, `${Math.ceil(size / 1000)} kB, ${date(createdAt)}`));
  return h('ul', { class: 'list' }, ...resumes.map(row));
}

export async function resumes(): Promise<Node[]> {
  const { userId } = await client.requireUser();
  const list = h('div', {}, resumeList(await resumesOf(userId)));
  const file = h('input', { id: 'file', name: 'resume', type: 'file', required: true, accept: '.pdf,.doc,.docx,.odt,.txt' });
  const progress = h('progress', { max: 1, value: 0, 'aria-label': 'Upload', hidden: true });
  const status = h('p', { role: 'status' });
  const send = h('button', { type: 'submit', class: 'primary' }, 'Upload');

  async function submit(event: Event): Promise<void> {
    event.preventDefault();
    const [resume] = file.files ?? [];
    if (!resume) return;
    const body = new FormData();
    body.set('candidateId', userId);
    body.set('resume', resume);
    send.disabled = true;
    progress.hidden = false;
    status.textContent = '';
    try {
      await client.upload('/resumes', body, (fraction) => (progress.value = fraction));
      status.textContent = `${resume.name} is stored.`;
      list.replaceChildren(resumeList(await resumesOf(userId)));
    } catch (error) {
      status.textContent = explain(error);
    } finally {
      send.disabled = false;
      progress.hidden = true;
    }
  }

  const field = h('div', { class: 'field' }, h('label', { for: 'file' }, 'File'), file);
  return [h('form', { class: 'card', submit: (event) => void submit(event) }, field, progress, status, send), list];
}
