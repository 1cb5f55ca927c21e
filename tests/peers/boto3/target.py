"""A server under test, used through boto3 as an independent client: a pool and app clients created through the API."""

import base64
import contextlib
import hashlib
import hmac
import json
import os
import urllib.request
from dataclasses import dataclass

import boto3
import botocore
from botocore.config import Config
from botocore.exceptions import ClientError

PASSWORD = "Correct-Horse-9"
REGION = os.environ.get("AWS_REGION", "us-west-2")


@dataclass
class AppClient:
    id: str
    secret: str


@contextlib.contextmanager
def expect_refusal(*wanted):
    """Asserts that the call raises one of the named exceptions, or has one of the named messages."""
    try:
        yield
    except ClientError as error:
        code, sentence = error.response["Error"]["Code"], error.response["Error"].get("Message", "")
        names = [name for name in wanted if name.endswith("Exception")]
        sentences = [text for text in wanted if not text.endswith("Exception")]
        assert code in names, f"{code} ({sentence}), not {' or '.join(names)}"
        assert all(text in sentence for text in sentences), f"{code}: {sentence}"
    else:
        raise AssertionError(f"not refused: {' or '.join(wanted)}")


def connect(endpoint, key_id, secret):
    config = Config(region_name=REGION, retries={"total_max_attempts": 1}, read_timeout=10)
    if key_id is None:
        config = config.merge(Config(signature_version=botocore.UNSIGNED))
    return boto3.client(
        "cognito-idp", endpoint_url=endpoint, aws_access_key_id=key_id, aws_secret_access_key=secret, config=config
    )


class Target:
    """A pool with one client, created for one case."""

    def __init__(self, endpoint, key_id, secret):
        self.endpoint = endpoint
        self.admin = connect(endpoint, key_id, secret)
        self.stranger = connect(endpoint, "AKIDSTRANGE", secret)
        self.anonymous = connect(endpoint, None, None)
        pool = self.admin.create_user_pool(
            PoolName="conformance",
            UsernameAttributes=["email"],
            UsernameConfiguration={"CaseSensitive": False},
            Schema=[{"Name": "service_id", "AttributeDataType": "String", "Mutable": True}],
            Policies={
                "PasswordPolicy": {
                    "MinimumLength": 8,
                    "RequireUppercase": True,
                    "RequireLowercase": True,
                    "RequireNumbers": True,
                    "RequireSymbols": True,
                }
            },
        )
        self.pool_id = pool["UserPool"]["Id"]
        self.client = self.make_client()
        self.client_id = self.client.id

    def make_client(self, **settings):
        settings.setdefault("ExplicitAuthFlows", ["ALLOW_USER_PASSWORD_AUTH", "ALLOW_REFRESH_TOKEN_AUTH"])
        settings.setdefault("PreventUserExistenceErrors", "ENABLED")
        made = self.admin.create_user_pool_client(
            UserPoolId=self.pool_id, ClientName="conformance", GenerateSecret=True, **settings
        )["UserPoolClient"]
        return AppClient(made["ClientId"], made["ClientSecret"])

    def make_rotating_client(self, grace):
        return self.make_client(
            ExplicitAuthFlows=["ALLOW_USER_PASSWORD_AUTH"],
            RefreshTokenRotation={"Feature": "ENABLED", "RetryGracePeriodSeconds": grace},
        )

    def secret_hash(self, name, client=None):
        client = client or self.client
        digest = hmac.new(client.secret.encode(), (name + client.id).encode(), hashlib.sha256).digest()
        return base64.b64encode(digest).decode()

    def sign_up(self, email, password=PASSWORD, attributes=()):
        return self.anonymous.sign_up(
            ClientId=self.client_id,
            SecretHash=self.secret_hash(email),
            Username=email,
            Password=password,
            UserAttributes=[{"Name": "email", "Value": email}, *attributes],
        )["UserSub"]

    def register(self, email):
        sub = self.sign_up(email)
        self.admin.admin_confirm_sign_up(UserPoolId=self.pool_id, Username=email)
        return sub

    def initiate(self, parameters, secret_hash=True, client=None, flow="USER_PASSWORD_AUTH"):
        client = client or self.client
        parameters = dict(parameters)
        if secret_hash is True:
            secret_hash = self.secret_hash(parameters["USERNAME"], client)
        if secret_hash is not None:
            parameters["SECRET_HASH"] = secret_hash
        return self.anonymous.initiate_auth(ClientId=client.id, AuthFlow=flow, AuthParameters=parameters)

    def sign_in(self, name, password=PASSWORD, client=None):
        answer = self.initiate({"USERNAME": name, "PASSWORD": password}, client=client)
        return answer["AuthenticationResult"]

    def refresh(self, token, hash_over, client=None):
        hashed = self.secret_hash(hash_over, client)
        answer = self.initiate(
            {"REFRESH_TOKEN": token}, secret_hash=hashed, client=client, flow="REFRESH_TOKEN_AUTH"
        )
        return answer["AuthenticationResult"]

    def rotate(self, token, client):
        answer = self.anonymous.get_tokens_from_refresh_token(
            RefreshToken=token, ClientId=client.id, ClientSecret=client.secret
        )
        return answer["AuthenticationResult"]

    def answer(self, session, username, password, hash_over=None):
        return self.anonymous.respond_to_auth_challenge(
            ClientId=self.client_id,
            ChallengeName="NEW_PASSWORD_REQUIRED",
            Session=session,
            ChallengeResponses={
                "USERNAME": username,
                "NEW_PASSWORD": password,
                "SECRET_HASH": self.secret_hash(hash_over or username),
            },
        )

    def get_json(self, path):
        with urllib.request.urlopen(self.endpoint.rstrip("/") + path, timeout=10) as answer:
            return json.load(answer)
