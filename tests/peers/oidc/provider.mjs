// An OpenID provider for one client, based on oidc-provider. See `run`.

import { createServer } from 'node:http';
import { generateKeyPairSync } from 'node:crypto';
import Provider from 'oidc-provider';

const [clientId, clientSecret, redirectUri] = process.argv.slice(2);

// Addresses use the reserved domains of RFC 2606.
const people = {
    ada: { email: 'ada.peer@example.com', email_verified: true, name: 'Ada Lovelace', given_name: 'Ada' },
    eve: { email: 'eve.peer@example.com', email_verified: false, name: 'Eve' },
};

function signingKey() {
    const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
    return { ...privateKey.export({ format: 'jwk' }), kid: 'peer-1', alg: 'RS256', use: 'sig' };
}

const configuration = {
    clients: [{
        client_id: clientId,
        client_secret: clientSecret,
        redirect_uris: [redirectUri],
        response_types: ['code'],
        grant_types: ['authorization_code', 'refresh_token'],
    }],
    claims: { email: ['email', 'email_verified'], profile: ['name', 'given_name'] },
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
    if (prompt.name === 'login') {
        result = { login: { accountId: params.login_hint } };
    } else {
        const grant = new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
        grant.addOIDCScope(params.scope);
        result = { consent: { grantId: await grant.save() } };
    }
    await provider.interactionFinished(request, response, result, { mergeWithLastSubmission: true });
}

const server = createServer();
server.listen(0, '127.0.0.1', () => {
    const issuer = `http://127.0.0.1:${server.address().port}`;
    const provider = new Provider(issuer, configuration);
    const answer = provider.callback();
    server.on('request', (request, response) => {
        if (!request.url.startsWith('/interaction/')) return answer(request, response);
        return interact(provider, request, response).catch((error) => {
            response.writeHead(500).end(`${error}`);
        });
    });
    console.log(`issuer ${issuer}`);
});
