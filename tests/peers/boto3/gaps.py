"""Known differences of each server from Amazon Cognito, with the reason. Postern's pool has none.

A listed gap that no longer exists is reported as `closed`; an unlisted gap fails.
"""

MOTO = {
    "tokens_have_cognitos_shape": "the ID token has no email_verified",
    "secret_hash_is_required_and_over_what_was_typed": "a missing SECRET_HASH is let through",
    "wrong_password_and_unknown_user_are_one_answer": "PreventUserExistenceErrors is kept and not applied",
    "a_flow_that_is_not_enabled_is_refused": "ExplicitAuthFlows are kept and not applied",
    "a_name_registers_once_whatever_its_case": "an address is compared with its case",
    "refresh_hashes_the_real_username": "the hash is not checked over the real username alone",
    "rotation_gives_a_new_token_and_refuses_the_old_one": "GetTokensFromRefreshToken is not there",
    "rotation_forgives_a_repetition_within_its_grace": "GetTokensFromRefreshToken is not there",
    "rotation_and_refresh_token_auth_exclude_each_other": "RefreshTokenRotation is kept and not checked",
    "a_revoked_token_ends_its_sign_in": "RevokeToken is not there",
    "a_given_password_must_be_replaced_under_the_real_username": "the challenge has no USER_ID_FOR_SRP",
    "a_wrong_secret_hash_at_the_challenge_is_refused": "the hash may be over the alias",
    "a_proof_answers_the_custom_challenge_once": "CUSTOM_AUTH is not there",
    "custom_attributes_stand_in_the_id_token_of_clients_that_may_read_them": "ReadAttributes are not applied",
    "nobody_writes_what_its_client_may_not": "WriteAttributes are not applied",
    "administration_is_signed": "access keys are not checked",
    "what_is_missing_is_an_invalid_parameter": "the user is looked up before the parameters are checked",
}

COGNITO_LOCAL = {
    "tokens_have_cognitos_shape": "the answer has no TokenType",
    "secret_hash_is_required_and_over_what_was_typed": "SECRET_HASH is not checked",
    "wrong_password_and_unknown_user_are_one_answer": "a wrong password has an exception of its own",
    "legacy_errors_tell_an_unknown_user": "PreventUserExistenceErrors is not applied",
    "a_flow_that_is_not_enabled_is_refused": "ExplicitAuthFlows are not applied",
    "a_name_registers_once_whatever_its_case": "an address is compared with its case",
    "a_weak_password_is_refused": "the password policy is not applied",
    "a_disabled_user_loses_sign_in_and_refresh": "a disabled user may sign in",
    "refresh_hashes_the_real_username": "SECRET_HASH is not checked",
    "a_refresh_token_is_its_clients_alone": "any client may use any refresh token",
    "rotation_gives_a_new_token_and_refuses_the_old_one": "GetTokensFromRefreshToken is not there",
    "rotation_forgives_a_repetition_within_its_grace": "GetTokensFromRefreshToken is not there",
    "rotation_and_refresh_token_auth_exclude_each_other": "RefreshTokenRotation is not checked",
    "a_revoked_token_ends_its_sign_in": "access tokens outlive RevokeToken",
    "a_given_password_must_be_replaced_under_the_real_username": "the password policy is not applied",
    "a_wrong_secret_hash_at_the_challenge_is_refused": "SECRET_HASH is not checked",
    "a_proof_answers_the_custom_challenge_once": "CUSTOM_AUTH is not there",
    "custom_attributes_stand_in_the_id_token_of_clients_that_may_read_them": "ReadAttributes are not applied",
    "nobody_writes_what_its_client_may_not": "WriteAttributes are not applied",
    "groups_stand_in_the_tokens": "a group can be made twice",
    "a_password_that_an_administrator_set_works_at_once": "a wrong password has an exception of its own",
    "administration_is_signed": "access keys are not checked",
    "what_is_missing_is_an_invalid_parameter": "a missing parameter is a wrong password",
    "users_are_listed_and_leave_groups": "ListUsers has no PaginationToken",
}

GAPS = {"postern": {}, "moto": MOTO, "cognito-local": COGNITO_LOCAL}
