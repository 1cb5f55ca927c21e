"""An OpenID provider for any client, based on oidc-provider-mock. See `run`."""

import oidc_provider_mock
import werkzeug.serving

# Addresses use the reserved domains of RFC 2606.
ADA = oidc_provider_mock.User(
    sub="ada", claims={"email": "ada.mock@example.com", "email_verified": True, "name": "Ada Lovelace"}
)

server = werkzeug.serving.make_server("127.0.0.1", 0, oidc_provider_mock.app(user_claims=[ADA]), threaded=True)
print(f"issuer http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
