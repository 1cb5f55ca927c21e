// An OpenID provider for one client, based on oidc-provider. See `run`.

import { createServer } from 'node:http';
import { generateKeyPairSync } from 'node:crypto';
import Provider from 'oidc-provider';

const [clientId, clientSecret, redirectUri, ...habits] = process.argv.slice(2);
const has = (habit) => habits.includes(habit);

// Addresses use the reserved domains of RFC 2606.
const people = {
    ada: { email: 'ada.peer@example.com', email_verified: true, name: 'Ada Lovelace', given_name: 'Ada' },
    eve: { email: 'eve.peer@example.com', email_verified: false, name: 'Eve' },
};
// 20 KB, as of a person in many groups.
if (has('large')) people.ada.groups = Array.from({ length: 500 }, (_, number) => `${number}`.padStart(36, '0'));

function signingKey() {
    const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
    return { ...privateKey.export({ format: 'jwk' }), kid: 'peer-1', alg: 'RS256', use: 'sig' };
}

const method = has('post') ? 'client_secret_post' : 'client_secret_basic';
const configuration = {
    clients: [{
        client_id: clientId,
        client_secret: clientSecret,
        redirect_uris: [redirectUri],
        response_types: ['code'],
        grant_types: ['authorization_code', 'refresh_token'],
        token_endpoint_auth_method: method,
    }],
    claims: { email: ['email', 'email_verified'], profile: ['name', 'given_name', 'groups'] },
    clientAuthMethods: [method],
    // As in Google's ID tokens.
    conformIdTokenClaims: false,
    cookies: { keys: ['of a test'] },
    features: { devInteractions: { enabled: false } },
    findAccount: (_, sub) => people[sub] && { accountId: sub, claims: () => ({ sub, ...people[sub] }) },
    interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
    issueRefreshToken: () => true,
    jwks: { keys: [signingKey()] },
    pkce: { required: () => true },
};

// Replaces the login and consent pages.
async function interact(provider, request, response) {
    const { prompt, params, session } = await provider.interactionDetails(request, response);
    let result;
    if (params.login_hint === 'nobody') {
        result = { error: 'user_cancelled_authorize' };
    } else if (prompt.name === 'login') {
        result = { login: { accountId: params.login_hint } };
    } else {
        const grant = new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
        grant.addOIDCScope(params.scope);
        result = { consent: { grantId: await grant.save() } };
    }
    await provider.interactionFinished(request, response, result, { mergeWithLastSubmission: true });
}

// The deviations of Twitch, AD FS and others in fields that a sign-in does not need.
async function answerOddly(context, next) {
    await next();
    if (context.path !== '/token' || !context.body?.id_token) return;
    const { token_type: _, ...tokens } = context.body;
    context.body = { ...tokens, scope: tokens.scope.split(' '), expires_in: `${tokens.expires_in}.0` };
    context.type = 'text/javascript';
}

const server = createServer();
server.listen(0, '127.0.0.1', () => {
    const issuer = `http://127.0.0.1:${server.address().port}`;
    const provider = new Provider(issuer, configuration);
    if (has('odd')) provider.use(answerOddly);
    const answer = provider.callback();
    server.on('request', (request, response) => {
        if (!request.url.startsWith('/interaction/')) return answer(request, response);
        return interact(provider, request, response).catch((error) => {
            response.writeHead(500).end(`${error}`);
        });
    });
    console.log(`issuer ${issuer}`);
});
