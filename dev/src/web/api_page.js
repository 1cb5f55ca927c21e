// Shows the document of this installation in Swagger UI, which is no module and has a class for dark pages.
const style = Object.assign(document.createElement('link'), { rel: 'stylesheet', href: '/assets/swagger-ui.css' });
const script = Object.assign(document.createElement('script'), { src: '/assets/swagger-ui-bundle.js' });
const dark = matchMedia('(prefers-color-scheme: dark)');
const follow = () => document.documentElement.classList.toggle('dark-mode', dark.matches);

script.onload = () => SwaggerUIBundle({ url: '/openapi.json', dom_id: '#api', docExpansion: 'none', tryItOutEnabled: true });
dark.addEventListener('change', follow);
follow();
document.head.append(style, script);
