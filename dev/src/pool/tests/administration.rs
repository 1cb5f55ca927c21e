use std::time::Duration;

use aws_sdk_cognitoidentityprovider::types::{
    FeatureType, RefreshTokenRotationType, TimeUnitsType, TokenValidityUnitsType,
};
use postern_common::identity::AwsCredentials;

use super::harness::{EMAIL, PASSWORD, RunningServer, claims, error_text, start};

#[tokio::test]
async fn admin_operation_without_signature_is_rejected() {
    let pool = start().await;
    let id = pool.actor().pool_id.clone();
    let unsigned = pool.raw("ListUsers", r#"{"Limit": 1}"#).await;
    assert_eq!(
        unsigned.headers()["x-amzn-errortype"],
        "MissingAuthenticationTokenException"
    );
    let wrong = AwsCredentials::Static {
        access_key_id: "AKIDSTRANGE".into(),
        secret_access_key: pool.provisioned.secret_access_key.clone(),
        session_token: None,
    };
    let other_key = pool.identity.client(Some(wrong)).await;
    let refused = other_key
        .list_users()
        .user_pool_id(&id)
        .send()
        .await
        .map_err(error_text)
        .expect_err("rejected");
    assert!(
        refused.starts_with("UnrecognizedClientException"),
        "{refused}"
    );
    pool.admin
        .list_users()
        .user_pool_id(&id)
        .send()
        .await
        .expect("signed");
}

#[tokio::test]
async fn users_are_listed_in_pages_and_by_filter() {
    let pool = start().await;
    let id = &pool.actor().pool_id;
    for number in 0..5 {
        pool.create_user(&format!("user{number}@example.com"), None)
            .await;
    }
    let first = pool
        .admin
        .list_users()
        .user_pool_id(id)
        .limit(3)
        .send()
        .await
        .expect("listed");
    assert_eq!(first.users().len(), 3);
    let rest = pool.admin.list_users().user_pool_id(id).limit(3);
    let rest = rest
        .set_pagination_token(first.pagination_token)
        .send()
        .await
        .expect("listed");
    assert_eq!((rest.users().len(), rest.pagination_token()), (2, None));
    let found = pool
        .admin
        .list_users()
        .user_pool_id(id)
        .filter("email = \"USER3@example.com\"");
    assert_eq!(found.send().await.expect("listed").users().len(), 1);
    for (filter, count) in [
        ("email ^= \"user\"", 5),
        ("email ^= \"user4\"", 1),
        ("username ^= \"x\"", 0),
    ] {
        let found = pool
            .admin
            .list_users()
            .user_pool_id(id)
            .filter(filter)
            .send()
            .await
            .expect("listed");
        assert_eq!(found.users().len(), count, "{filter}");
    }
    let odd = pool
        .admin
        .list_users()
        .user_pool_id(id)
        .filter("shoe = \"44\"")
        .send()
        .await;
    assert!(
        odd.map_err(error_text)
            .expect_err("rejected")
            .starts_with("InvalidParameterException")
    );
}

#[tokio::test]
async fn token_groups_are_ordered_by_precedence() {
    let pool = start().await;
    let id = &pool.actor().pool_id;
    pool.register(EMAIL, PASSWORD).await;
    for (name, precedence) in [("staff", 20), ("admin", 10)] {
        let create = pool.admin.create_group().user_pool_id(id).group_name(name);
        create.precedence(precedence).send().await.expect("created");
        let add = pool
            .admin
            .admin_add_user_to_group()
            .user_pool_id(id)
            .username(EMAIL);
        add.group_name(name).send().await.expect("added");
    }
    let again = pool
        .admin
        .create_group()
        .user_pool_id(id)
        .group_name("staff")
        .send()
        .await;
    assert!(
        again
            .map_err(error_text)
            .expect_err("rejected")
            .starts_with("GroupExistsException")
    );
    let tokens = pool.sign_in(EMAIL, PASSWORD).await.expect("signed in");
    let groups = serde_json::json!(["admin", "staff"]);
    assert_eq!(
        claims(tokens.access_token().expect("access token"))["cognito:groups"],
        groups
    );
    assert_eq!(
        claims(tokens.id_token().expect("ID token"))["cognito:groups"],
        groups
    );
}

#[tokio::test]
async fn admin_sets_password_and_deletes_user() {
    let pool = start().await;
    let id = &pool.actor().pool_id;
    pool.register(EMAIL, PASSWORD).await;
    pool.set_password(EMAIL, "Fresher-Horse-8").await;
    assert!(pool.sign_in(EMAIL, "Fresher-Horse-8").await.is_ok());
    let get = || {
        pool.admin
            .admin_get_user()
            .user_pool_id(id)
            .username(EMAIL)
            .send()
    };
    let user = get().await.expect("found");
    assert_eq!(
        (
            user.enabled(),
            user.user_status().map(|status| status.as_str())
        ),
        (true, Some("CONFIRMED"))
    );
    pool.admin
        .admin_delete_user()
        .user_pool_id(id)
        .username(EMAIL)
        .send()
        .await
        .expect("deleted");
    let gone = get().await.map_err(error_text).expect_err("gone");
    assert_eq!(gone, "UserNotFoundException: User does not exist.");
    pool.register(EMAIL, PASSWORD).await;
}

/// Creates an app client with rotation of refresh tokens. Returns its id.
async fn create_rotating_client(pool: &RunningServer, pool_id: &str) -> String {
    let units = TokenValidityUnitsType::builder()
        .access_token(TimeUnitsType::Minutes)
        .build();
    let rotation = RefreshTokenRotationType::builder().feature(FeatureType::Enabled);
    let rotation = rotation
        .retry_grace_period_seconds(10)
        .build()
        .expect("rotation");
    let create = pool
        .admin
        .create_user_pool_client()
        .user_pool_id(pool_id)
        .client_name("app");
    let create = create
        .generate_secret(true)
        .access_token_validity(5)
        .token_validity_units(units);
    let create = create.explicit_auth_flows("ALLOW_USER_PASSWORD_AUTH".into());
    let client = create
        .refresh_token_rotation(rotation)
        .send()
        .await
        .expect("made");
    let client = client.user_pool_client().expect("client");
    assert_eq!(client.access_token_validity(), Some(300));
    client.client_id().expect("id").to_owned()
}

#[tokio::test]
async fn pool_and_client_lifecycle_works() {
    let pool = start().await;
    let made = pool
        .admin
        .create_user_pool()
        .pool_name("other")
        .send()
        .await
        .expect("made");
    let id = made
        .user_pool()
        .and_then(|made| made.id())
        .expect("id")
        .to_owned();
    assert!(id.starts_with("us-west-2_"), "{id}");
    let client_id = create_rotating_client(&pool, &id).await;
    let describe = pool
        .admin
        .describe_user_pool_client()
        .user_pool_id(&id)
        .client_id(&client_id);
    let described = describe.send().await.expect("described");
    let described = described.user_pool_client().expect("client");
    assert!(
        described
            .client_secret()
            .is_some_and(|secret| secret.len() > 40)
    );
    pool.admin
        .delete_user_pool()
        .user_pool_id(&id)
        .send()
        .await
        .expect("deleted");
    let deleted = pool
        .admin
        .list_users()
        .user_pool_id(&id)
        .send()
        .await
        .map_err(error_text);
    assert!(
        deleted
            .expect_err("a deleted pool")
            .starts_with("ResourceNotFoundException")
    );
}

#[tokio::test]
async fn describe_client_returns_settings_that_doctor_checks() {
    let pool = start().await;
    let service = pool.service().clone();
    let described = pool
        .admin
        .describe_user_pool_client()
        .user_pool_id(&service.pool_id);
    let described = described
        .client_id(&service.client_id)
        .send()
        .await
        .expect("described");
    let client = described.user_pool_client().expect("client");
    assert!(
        client
            .read_attributes()
            .iter()
            .any(|name| name == "custom:service_id")
    );
    assert!(
        !client
            .write_attributes()
            .iter()
            .any(|name| name == "custom:service_id")
    );
}

#[tokio::test]
async fn invalid_requests_return_specific_errors() {
    let pool = start().await;
    for (operation, body, kind) in [
        ("InitiateAuth", "{", "SerializationException"),
        (
            "InitiateAuth",
            r#"{"ClientId": 7, "AuthFlow": "X"}"#,
            "SerializationException",
        ),
        (
            "InitiateAuth",
            r#"{"AuthFlow": "USER_PASSWORD_AUTH"}"#,
            "InvalidParameterException",
        ),
        (
            "InitiateAuth",
            r#"{"AuthFlow": "X", "ClientId": "nobody"}"#,
            "ResourceNotFoundException",
        ),
        ("ListUserPools", "{}", "UnknownOperationException"),
        (
            "GetUser",
            r#"{"AccessToken": "a.b.c"}"#,
            "NotAuthorizedException",
        ),
    ] {
        let answer = pool.raw(operation, body).await;
        assert_eq!(answer.status(), 400, "{operation} {body}");
        assert_eq!(
            answer.headers()["x-amzn-errortype"],
            kind,
            "{operation} {body}"
        );
        assert_eq!(
            answer.headers()["content-type"],
            "application/x-amz-json-1.1"
        );
        let body: serde_json::Value = answer.json().await.expect("JSON");
        assert_eq!(body["__type"], kind);
        assert!(body["message"].is_string());
    }
}

#[tokio::test]
async fn access_token_expires_after_one_hour() {
    let pool = start().await;
    pool.register(EMAIL, PASSWORD).await;
    let tokens = pool.sign_in(EMAIL, PASSWORD).await.expect("signed in");
    pool.clock.advance(Duration::from_secs(3600));
    let late = pool.get_user(&tokens).await;
    assert_eq!(
        late.expect_err("late"),
        "NotAuthorizedException: Access Token has expired"
    );
}
