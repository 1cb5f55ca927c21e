"""Verifies a corpus of tokens with PyJWT; see ./run."""

import json
import sys

import jwt

with open(sys.argv[1], encoding="utf-8") as file:
    corpus = json.load(file)

keys = {key.key_id: key for key in jwt.PyJWKSet.from_dict(corpus["jwks"]).keys}


def accepted(token: str) -> bool:
    key = keys[jwt.get_unverified_header(token)["kid"]]
    claims = jwt.decode(
        token,
        key,
        algorithms=["RS256", "ES256", "EdDSA"],
        issuer=corpus["issuer"],
        leeway=corpus["leewaySeconds"],
        options={"require": ["exp", "iss", "sub"], "verify_aud": False},
    )
    return claims.get("token_use") == "access" and claims.get("client_id") == corpus["clientId"]


def verdict(token: str) -> str:
    try:
        return "1" if accepted(token) else "0"
    except Exception:  # noqa: BLE001 - whatever it raises, it does not accept
        return "0"


verdicts = "".join(verdict(token) for token in corpus["tokens"])
print(json.dumps({"peer": "PyJWT", "version": jwt.__version__, "verdicts": verdicts}))
