use postern_core::token::TokenError;

use super::harness::{EMAIL, PASSWORD, claims, error_text, start};

#[tokio::test]
async fn sign_in_returns_cognito_tokens_that_verify() {
    let pool = start().await;
    let sub = pool.register(EMAIL, PASSWORD).await;
    let tokens = pool.sign_in(EMAIL, PASSWORD).await.expect("signed in");
    assert_eq!(
        (tokens.token_type(), tokens.expires_in()),
        (Some("Bearer"), 3600)
    );
    let access = tokens.access_token().expect("access token");
    let caller = pool.verify(access).await.expect("accepted");
    let user = caller.user().expect("a user");
    assert_eq!(
        (&*user.subject, &*user.username),
        (sub.as_str(), sub.as_str())
    );
    let access = claims(access);
    for (name, value) in [
        ("sub", sub.as_str()),
        ("iss", &pool.actor().issuer),
        ("client_id", &pool.actor().client_id),
        ("token_use", "access"),
        ("scope", "aws.cognito.signin.user.admin"),
        ("username", &sub),
    ] {
        assert_eq!(access[name], value, "{name}");
    }
    let id = claims(tokens.id_token().expect("ID token"));
    assert_eq!(id["aud"], pool.actor().client_id.as_str());
    assert_eq!(
        (&id["token_use"], &id["email"]),
        (&"id".into(), &EMAIL.into())
    );
    assert_eq!(
        (&id["cognito:username"], &id["email_verified"]),
        (&sub.as_str().into(), &false.into())
    );
    assert_eq!(id["origin_jti"], access["origin_jti"]);
    assert_eq!(access.get("email"), None);
    let id = pool
        .verify(tokens.id_token().expect("ID token"))
        .await
        .expect_err("an ID token");
    assert_eq!(id, TokenError::TokenUse);
}

#[tokio::test]
async fn service_account_id_token_has_service_id() {
    let pool = start().await;
    let password = pool.account("notify");
    let output = pool
        .initiate(pool.service(), "notify", password.expose())
        .await
        .expect("signed in");
    let tokens = output.authentication_result().expect("tokens");
    let id = tokens.id_token().expect("ID token");
    let caller = pool.verify(id).await.expect("accepted");
    assert_eq!(
        caller.service().expect("a service").service_id.as_ref(),
        "notify"
    );
    assert_eq!(claims(id)["custom:service_id"], "notify");
    let access = claims(tokens.access_token().expect("access token"));
    assert_eq!(access.get("custom:service_id"), None);
    assert_eq!(access["username"], "notify");
}

#[tokio::test]
async fn user_status_is_revealed_only_with_correct_password() {
    let pool = start().await;
    pool.register(EMAIL, PASSWORD).await;
    pool.set_enabled(EMAIL, false).await;
    let wrong = "NotAuthorizedException: Incorrect username or password.";
    assert_eq!(
        pool.sign_in(EMAIL, "Wrong-Horse-9")
            .await
            .expect_err("rejected"),
        wrong
    );
    let right = pool.sign_in(EMAIL, PASSWORD).await.expect_err("rejected");
    assert_eq!(right, "NotAuthorizedException: User is disabled.");
    pool.set_enabled(EMAIL, true).await;
    assert!(pool.sign_in(EMAIL, PASSWORD).await.is_ok());

    let other = "bob@example.com";
    let sign_up = pool
        .anonymous
        .sign_up()
        .client_id(&pool.actor().client_id)
        .username(other);
    let sign_up = sign_up
        .password(PASSWORD)
        .set_secret_hash(pool.actor().secret_hash(other));
    sign_up.send().await.expect("signed up");
    assert_eq!(
        pool.sign_in(other, "Wrong-Horse-9")
            .await
            .expect_err("rejected"),
        wrong
    );
    let right = pool.sign_in(other, PASSWORD).await.expect_err("rejected");
    assert_eq!(right, "UserNotConfirmedException: User is not confirmed.");
}

#[tokio::test]
async fn service_id_cannot_be_set_by_users() {
    let pool = start().await;
    let service = pool.service();
    let call = pool
        .anonymous
        .sign_up()
        .client_id(&service.client_id)
        .username("evil")
        .password(PASSWORD);
    let refused = call
        .set_secret_hash(service.secret_hash("evil"))
        .send()
        .await
        .map_err(error_text);
    assert!(
        refused
            .expect_err("rejected")
            .contains("SignUp is not permitted")
    );
    let create = pool
        .admin
        .admin_create_user()
        .user_pool_id(&service.pool_id);
    let create = create.username("new").temporary_password(PASSWORD);
    create.send().await.expect("created");
    let asked = pool
        .initiate(service, "new", PASSWORD)
        .await
        .expect("asked");
    let call = pool.anonymous.respond_to_auth_challenge();
    let call = call
        .client_id(&service.client_id)
        .set_session(asked.session);
    let call = call.challenge_name("NEW_PASSWORD_REQUIRED".into());
    let answers = [
        ("USERNAME", "new"),
        ("NEW_PASSWORD", "Fresher-Horse-8"),
        (
            "SECRET_HASH",
            &service.secret_hash("new").expect("a secret"),
        ),
    ];
    let call = answers.iter().fold(call, |call, (name, value)| {
        call.challenge_responses(*name, *value)
    });
    for name in ["custom:service_id", "email", "given_name"] {
        let written = format!("userAttributes.{name}");
        let call = call.clone().challenge_responses(written, "auth");
        let refused = call.send().await.map_err(error_text).expect_err("rejected");
        assert!(refused.contains("Cannot modify"), "{refused}");
    }
    call.send().await.expect("the challenge is not used up");
}
