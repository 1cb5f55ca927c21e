"""The behaviour of a Cognito user pool that clients rely on, one function per case.

Each case gets a `Target`: a separate pool and clients, created through the API. A case raises on the first difference
from Amazon Cognito.
"""

import base64
import hashlib
import hmac
import json
import os
import time

from target import PASSWORD, expect_refusal

NEW_PASSWORD = "Fresher-Horse-8"


def claims(token):
    payload = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))


def header(token):
    part = token.split(".")[0]
    return json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))


def tokens_have_cognitos_shape(target):
    sub = target.register("ada@example.com")
    result = target.sign_in("ada@example.com")
    assert result["TokenType"] == "Bearer" and result["ExpiresIn"] == 3600, result.keys()
    access, identity = claims(result["AccessToken"]), claims(result["IdToken"])
    assert access["sub"] == identity["sub"] == sub
    assert access["token_use"] == "access" and identity["token_use"] == "id"
    assert access["client_id"] == target.client_id and identity["aud"] == target.client_id
    assert access["username"] == identity["cognito:username"] == sub, "the real username is the sub"
    assert access["iss"] == identity["iss"] and access["iss"].endswith("/" + target.pool_id)
    assert "aws.cognito.signin.user.admin" in access["scope"]
    assert "email" not in access and identity["email"] == "ada@example.com"
    assert identity["email_verified"] in (True, False)
    assert access["exp"] - access["iat"] == 3600 and isinstance(access["auth_time"], int)
    assert access["origin_jti"] == identity["origin_jti"] and access["jti"] != identity["jti"]


def the_signing_key_is_published(target):
    target.register("ada@example.com")
    token = target.sign_in("ada@example.com")["AccessToken"]
    keys = target.get_json(f"/{target.pool_id}/.well-known/jwks.json")["keys"]
    assert header(token)["kid"] in [key["kid"] for key in keys]
    assert header(token)["alg"] == "RS256"
    assert all(key["kty"] == "RSA" and key["use"] == "sig" and "d" not in key for key in keys)


def secret_hash_is_required_and_over_what_was_typed(target):
    sub = target.register("ada@example.com")
    parameters = {"USERNAME": "ada@example.com", "PASSWORD": PASSWORD}
    with expect_refusal("NotAuthorizedException"):
        target.initiate(parameters, secret_hash=None)
    with expect_refusal("NotAuthorizedException", "Unable to verify secret hash"):
        target.initiate(parameters, secret_hash=target.secret_hash(sub))
    target.initiate(parameters, secret_hash=target.secret_hash("ada@example.com"))


def the_sub_is_a_username(target):
    sub = target.register("ada@example.com")
    target.sign_in(sub)


def wrong_password_and_unknown_user_are_one_answer(target):
    target.register("ada@example.com")
    with expect_refusal("NotAuthorizedException", "Incorrect username or password."):
        target.sign_in("ada@example.com", "Wrong-Horse-9")
    with expect_refusal("NotAuthorizedException", "Incorrect username or password."):
        target.sign_in("nobody@example.com")


def legacy_errors_tell_an_unknown_user(target):
    client = target.make_client(PreventUserExistenceErrors="LEGACY")
    with expect_refusal("UserNotFoundException"):
        target.sign_in("nobody@example.com", client=client)


def a_flow_that_is_not_enabled_is_refused(target):
    target.register("ada@example.com")
    client = target.make_client(ExplicitAuthFlows=["ALLOW_REFRESH_TOKEN_AUTH"])
    with expect_refusal("InvalidParameterException", "flow not enabled"):
        target.sign_in("ada@example.com", client=client)


def an_unconfirmed_user_does_not_come_in(target):
    target.sign_up("ada@example.com")
    with expect_refusal("UserNotConfirmedException"):
        target.sign_in("ada@example.com")
    target.admin.admin_confirm_sign_up(UserPoolId=target.pool_id, Username="ada@example.com")
    target.sign_in("ada@example.com")


def a_name_registers_once_whatever_its_case(target):
    target.register("ada@example.com")
    with expect_refusal("UsernameExistsException"):
        target.sign_up("Ada@Example.com")


def a_weak_password_is_refused(target):
    for weak in ["Aa1-", "correct-horse-9", "CORRECT-HORSE-9", "Correct-Horse", "CorrectHorse9"]:
        with expect_refusal("InvalidPasswordException"):
            target.sign_up("ada@example.com", weak)


def a_disabled_user_loses_sign_in_and_refresh(target):
    target.register("ada@example.com")
    result = target.sign_in("ada@example.com")
    user = {"UserPoolId": target.pool_id, "Username": "ada@example.com"}
    target.admin.admin_disable_user(**user)
    with expect_refusal("NotAuthorizedException", "User is disabled"):
        target.sign_in("ada@example.com")
    with expect_refusal("NotAuthorizedException"):
        target.refresh(result["RefreshToken"], claims(result["AccessToken"])["username"])
    target.admin.admin_enable_user(**user)
    target.sign_in("ada@example.com")


def refresh_hashes_the_real_username(target):
    sub = target.register("ada@example.com")
    first = target.sign_in("ada@example.com")
    with expect_refusal("NotAuthorizedException"):
        target.refresh(first["RefreshToken"], "ada@example.com")
    second = target.refresh(first["RefreshToken"], sub)
    assert "RefreshToken" not in second, "without rotation there is no new refresh token"
    before, after = claims(first["AccessToken"]), claims(second["AccessToken"])
    assert before["auth_time"] == after["auth_time"] and before["origin_jti"] == after["origin_jti"]
    assert before["jti"] != after["jti"]


def a_refresh_token_is_its_clients_alone(target):
    sub = target.register("ada@example.com")
    result = target.sign_in("ada@example.com")
    other = target.make_client()
    with expect_refusal("NotAuthorizedException"):
        target.refresh(result["RefreshToken"], sub, client=other)


def rotation_gives_a_new_token_and_refuses_the_old_one(target):
    target.register("ada@example.com")
    client = target.make_rotating_client(grace=0)
    first = target.sign_in("ada@example.com", client=client)
    second = target.rotate(first["RefreshToken"], client)
    assert second["RefreshToken"] != first["RefreshToken"]
    third = target.rotate(second["RefreshToken"], client)
    assert third["RefreshToken"] != second["RefreshToken"]
    with expect_refusal("RefreshTokenReuseException"):
        target.rotate(first["RefreshToken"], client)


def rotation_forgives_a_repetition_within_its_grace(target):
    target.register("ada@example.com")
    client = target.make_rotating_client(grace=10)
    first = target.sign_in("ada@example.com", client=client)
    target.rotate(first["RefreshToken"], client)
    target.rotate(first["RefreshToken"], client)


def rotation_and_refresh_token_auth_exclude_each_other(target):
    rotation = {"Feature": "ENABLED", "RetryGracePeriodSeconds": 10}
    with expect_refusal("InvalidParameterException"):
        target.make_client(
            ExplicitAuthFlows=["ALLOW_USER_PASSWORD_AUTH", "ALLOW_REFRESH_TOKEN_AUTH"], RefreshTokenRotation=rotation
        )


def a_revoked_token_ends_its_sign_in(target):
    sub = target.register("ada@example.com")
    result = target.sign_in("ada@example.com")
    other = target.sign_in("ada@example.com")
    target.anonymous.revoke_token(
        Token=result["RefreshToken"], ClientId=target.client_id, ClientSecret=target.client.secret
    )
    with expect_refusal("NotAuthorizedException"):
        target.refresh(result["RefreshToken"], sub)
    with expect_refusal("NotAuthorizedException"):
        target.anonymous.get_user(AccessToken=result["AccessToken"])
    target.anonymous.get_user(AccessToken=other["AccessToken"])


def a_given_password_must_be_replaced_under_the_real_username(target):
    created = target.admin.admin_create_user(
        UserPoolId=target.pool_id, Username="ada@example.com", TemporaryPassword=PASSWORD, MessageAction="SUPPRESS"
    )
    sub = created["User"]["Username"]
    assert created["User"]["UserStatus"] == "FORCE_CHANGE_PASSWORD"
    asked = target.initiate({"USERNAME": "ada@example.com", "PASSWORD": PASSWORD})
    assert asked["ChallengeName"] == "NEW_PASSWORD_REQUIRED"
    assert asked["ChallengeParameters"]["USER_ID_FOR_SRP"] == sub
    with expect_refusal("InvalidPasswordException"):
        target.answer(asked["Session"], sub, "weak")
    done = target.answer(asked["Session"], sub, NEW_PASSWORD)
    assert claims(done["AuthenticationResult"]["AccessToken"])["sub"] == sub
    with expect_refusal("NotAuthorizedException"):
        target.answer(asked["Session"], sub, PASSWORD)
    target.sign_in("ada@example.com", NEW_PASSWORD)


def a_wrong_secret_hash_at_the_challenge_is_refused(target):
    created = target.admin.admin_create_user(
        UserPoolId=target.pool_id, Username="ada@example.com", TemporaryPassword=PASSWORD, MessageAction="SUPPRESS"
    )
    asked = target.initiate({"USERNAME": "ada@example.com", "PASSWORD": PASSWORD})
    with expect_refusal("NotAuthorizedException"):
        target.answer(asked["Session"], created["User"]["Username"], NEW_PASSWORD, hash_over="ada@example.com")


def custom_attributes_stand_in_the_id_token_of_clients_that_may_read_them(target):
    whose = {"UserPoolId": target.pool_id, "Username": "ada@example.com"}
    target.admin.admin_create_user(
        UserAttributes=[{"Name": "custom:service_id", "Value": "auth"}], MessageAction="SUPPRESS", **whose
    )
    target.admin.admin_set_user_password(Password=PASSWORD, Permanent=True, **whose)
    reader = target.make_client(ReadAttributes=["custom:service_id"])
    result = target.sign_in("ada@example.com", client=reader)
    assert claims(result["IdToken"])["custom:service_id"] == "auth"
    assert "email" not in claims(result["IdToken"]), "not among the ReadAttributes"
    assert "custom:service_id" not in claims(result["AccessToken"])
    plain = target.sign_in("ada@example.com")
    assert "custom:service_id" not in claims(plain["IdToken"])
    shown = target.anonymous.get_user(AccessToken=plain["AccessToken"])["UserAttributes"]
    assert "custom:service_id" not in [attribute["Name"] for attribute in shown]


def nobody_writes_what_its_client_may_not(target):
    for name, value in [("custom:service_id", "auth"), ("email_verified", "true")]:
        with expect_refusal("NotAuthorizedException", "unauthorized attribute"):
            target.sign_up("eve@example.com", attributes=[{"Name": name, "Value": value}])


def groups_stand_in_the_tokens(target):
    sub = target.register("ada@example.com")
    for name, precedence in [("staff", 20), ("admin", 10)]:
        target.admin.create_group(UserPoolId=target.pool_id, GroupName=name, Precedence=precedence)
        target.admin.admin_add_user_to_group(UserPoolId=target.pool_id, Username=sub, GroupName=name)
    result = target.sign_in("ada@example.com")
    assert sorted(claims(result["AccessToken"])["cognito:groups"]) == ["admin", "staff"]
    assert sorted(claims(result["IdToken"])["cognito:groups"]) == ["admin", "staff"]
    with expect_refusal("GroupExistsException"):
        target.admin.create_group(UserPoolId=target.pool_id, GroupName="staff")


def a_password_that_an_administrator_set_works_at_once(target):
    sub = target.register("ada@example.com")
    target.admin.admin_set_user_password(
        UserPoolId=target.pool_id, Username=sub, Password=NEW_PASSWORD, Permanent=True
    )
    target.sign_in("ada@example.com", NEW_PASSWORD)
    with expect_refusal("NotAuthorizedException"):
        target.sign_in("ada@example.com")


def administration_is_signed(target):
    target.register("ada@example.com")
    with expect_refusal("UnrecognizedClientException"):
        target.stranger.admin_get_user(UserPoolId=target.pool_id, Username="ada@example.com")


def a_client_describes_itself(target):
    client = target.admin.describe_user_pool_client(UserPoolId=target.pool_id, ClientId=target.client_id)
    assert client["UserPoolClient"]["ClientSecret"] == target.client.secret
    assert "ALLOW_USER_PASSWORD_AUTH" in client["UserPoolClient"]["ExplicitAuthFlows"]
    with expect_refusal("ResourceNotFoundException"):
        target.admin.describe_user_pool_client(UserPoolId=target.pool_id, ClientId="abcdefghijklmnopqrstuvwxyz")


def what_is_missing_is_an_invalid_parameter(target):
    with expect_refusal("InvalidParameterException"):
        target.initiate({"USERNAME": "ada@example.com"}, secret_hash=target.secret_hash("ada@example.com"))
    with expect_refusal("ResourceNotFoundException"):
        target.anonymous.initiate_auth(
            ClientId="abcdefghijklmnopqrstuvwxyz",
            AuthFlow="USER_PASSWORD_AUTH",
            AuthParameters={"USERNAME": "ada@example.com", "PASSWORD": PASSWORD},
        )


def a_deleted_user_is_gone_with_its_tokens(target):
    sub = target.register("ada@example.com")
    result = target.sign_in("ada@example.com")
    target.admin.admin_delete_user(UserPoolId=target.pool_id, Username=sub)
    with expect_refusal("UserNotFoundException"):
        target.admin.admin_get_user(UserPoolId=target.pool_id, Username=sub)
    with expect_refusal("NotAuthorizedException"):
        target.refresh(result["RefreshToken"], sub)
    target.register("ada@example.com")


def users_are_listed_and_leave_groups(target):
    sub = target.register("ada@example.com")
    target.register("bob@example.com")
    pool = {"UserPoolId": target.pool_id}
    for query in ['email ^= "ada@"', f'sub = "{sub}"']:
        found = target.admin.list_users(Filter=query, **pool)["Users"]
        assert [user["Username"] for user in found] == [sub], query
        assert found[0]["Enabled"]
    page = target.admin.list_users(Limit=1, **pool)
    rest = target.admin.list_users(Limit=1, PaginationToken=page["PaginationToken"], **pool)["Users"]
    assert len(rest) == 1 and rest != page["Users"]
    target.admin.create_group(GroupName="staff", **pool)
    member = {"Username": sub, **pool}
    target.admin.admin_add_user_to_group(GroupName="staff", **member)

    def names(answer):
        return [group["GroupName"] for group in answer["Groups"]]

    assert names(target.admin.list_groups(**pool)) == ["staff"]
    assert names(target.admin.admin_list_groups_for_user(**member)) == ["staff"]
    target.admin.admin_remove_user_from_group(GroupName="staff", **member)
    assert names(target.admin.admin_list_groups_for_user(**member)) == []


def a_proof_answers_the_custom_challenge_once(target):
    sub = target.register("ada@example.com")
    client = target.make_client(ExplicitAuthFlows=["ALLOW_CUSTOM_AUTH", "ALLOW_REFRESH_TOKEN_AUTH"])

    def answer(challenge, nonce):
        # As the triggers of conf/cognito verify it.
        lines = ["postern social proof v1", "sign-in", sub, client.id, nonce, str(int(time.time()))]
        key = base64.b64decode(os.environ["SOCIAL_PROOF_KEY"])
        tag = hmac.new(key, "\n".join(lines).encode(), hashlib.sha256).digest()
        responses = {
            "USERNAME": sub,
            "SECRET_HASH": target.secret_hash(sub, client),
            "ANSWER": f"{lines[-1]}.{base64.urlsafe_b64encode(tag).decode().rstrip('=')}",
        }
        return target.anonymous.respond_to_auth_challenge(
            ClientId=client.id,
            ChallengeName="CUSTOM_CHALLENGE",
            Session=challenge["Session"],
            ChallengeResponses=responses,
        )

    def start(name):
        challenge = target.initiate({"USERNAME": name}, client=client, flow="CUSTOM_AUTH")
        assert challenge["ChallengeName"] == "CUSTOM_CHALLENGE"
        return challenge

    challenge = start("ada@example.com")
    parameters = challenge["ChallengeParameters"]
    assert parameters["USERNAME"] == sub, "the real username"
    tokens = answer(challenge, parameters["nonce"])["AuthenticationResult"]
    assert claims(tokens["AccessToken"])["sub"] == sub
    with expect_refusal("NotAuthorizedException"):
        answer(challenge, parameters["nonce"])
    with expect_refusal("NotAuthorizedException"):
        answer(start(sub), parameters["nonce"])
    assert start("nobody@example.com")["ChallengeParameters"]["USERNAME"] == "nobody@example.com"
    with expect_refusal("InvalidParameterException"):
        target.initiate({"USERNAME": sub}, flow="CUSTOM_AUTH")


CASES = [
    tokens_have_cognitos_shape,
    the_signing_key_is_published,
    secret_hash_is_required_and_over_what_was_typed,
    the_sub_is_a_username,
    wrong_password_and_unknown_user_are_one_answer,
    legacy_errors_tell_an_unknown_user,
    a_flow_that_is_not_enabled_is_refused,
    an_unconfirmed_user_does_not_come_in,
    a_name_registers_once_whatever_its_case,
    a_weak_password_is_refused,
    a_disabled_user_loses_sign_in_and_refresh,
    refresh_hashes_the_real_username,
    a_refresh_token_is_its_clients_alone,
    rotation_gives_a_new_token_and_refuses_the_old_one,
    rotation_forgives_a_repetition_within_its_grace,
    rotation_and_refresh_token_auth_exclude_each_other,
    a_revoked_token_ends_its_sign_in,
    a_given_password_must_be_replaced_under_the_real_username,
    a_wrong_secret_hash_at_the_challenge_is_refused,
    a_proof_answers_the_custom_challenge_once,
    custom_attributes_stand_in_the_id_token_of_clients_that_may_read_them,
    nobody_writes_what_its_client_may_not,
    groups_stand_in_the_tokens,
    a_password_that_an_administrator_set_works_at_once,
    administration_is_signed,
    a_client_describes_itself,
    what_is_missing_is_an_invalid_parameter,
    a_deleted_user_is_gone_with_its_tokens,
    users_are_listed_and_leave_groups,
]
