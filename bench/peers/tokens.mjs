// node tokens.mjs FOLDER ISSUER COUNT: writes the key set, the public key, COUNT access tokens in Cognito's format (one a
// line) and a service's ID token.
import { generateKeyPairSync, sign } from 'node:crypto'
import { mkdirSync, writeFileSync } from 'node:fs'

const [folder, issuer, count] = process.argv.slice(2)
const { publicKey, privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 })
const now = Math.floor(Date.now() / 1000)
const user = '7d8ca528-4931-4254-9273-ea5ee853f271'
const encoded = value => Buffer.from(JSON.stringify(value)).toString('base64url')

function token(claims) {
  const input = `${encoded({ kid: 'bench', alg: 'RS256' })}.${encoded({ ...claims, exp: now + 7200, iat: now, auth_time: now })}`
  return `${input}.${sign('sha256', Buffer.from(input), privateKey).toString('base64url')}`
}

const access = Array.from({ length: Number(count) }, (_, serial) => token({
  sub: user, username: user, iss: issuer, client_id: 'benchclient', token_use: 'access', scope: 'aws.cognito.signin.user.admin',
  origin_jti: 'aa5a4a2c-7a3e-4b5c-9d5b-2f0c4b8f4a11', event_id: String(serial).padStart(32, '0'),
  jti: `${String(serial).padStart(8, '0')}-1e0c-4a6e-b3f2-4f3a1c2b5d6e`,
}))
const service = token({
  sub: '5a8ca528-4931-4254-9273-ea5ee853f271', iss: `${issuer}-services`, aud: 'serviceclient', token_use: 'id', 'custom:service_id': 'bench',
})
mkdirSync(`${folder}/pool/.well-known`, { recursive: true })
const jwk = { ...publicKey.export({ format: 'jwk' }), alg: 'RS256', use: 'sig', kid: 'bench' }
writeFileSync(`${folder}/pool/.well-known/jwks.json`, JSON.stringify({ keys: [jwk] }))
writeFileSync(`${folder}/public.pem`, publicKey.export({ format: 'pem', type: 'spki' }))
writeFileSync(`${folder}/access-tokens`, access.join('\n') + '\n')
writeFileSync(`${folder}/service-token`, service)
