import { NetworkError } from './problem.js';

export interface UploadResult {
  readonly status: number;
  readonly body: string;
}

/** Sends a form by XMLHttpRequest, because `fetch` does not report the progress of a request. */
export function upload(
  url: URL,
  token: string,
  form: FormData,
  onProgress?: (fraction: number) => void,
): Promise<UploadResult> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open('POST', url);
    request.setRequestHeader('Authorization', `Bearer ${token}`);
    request.upload.onprogress = ({ loaded, total, lengthComputable }) => {
      if (lengthComputable) onProgress?.(loaded / total);
    };
    request.onload = () => resolve({ status: request.status, body: request.responseText });
    request.onerror = () => reject(new NetworkError('The upload was interrupted'));
    request.send(form);
  });
}
