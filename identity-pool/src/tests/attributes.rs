//! Tests of reading and writing user attributes.

use aws_sdk_cognitoidentityprovider::types::AttributeType;

use super::harness::{EMAIL, PASSWORD, RunningServer, claims, error_text, start};

fn attribute(name: &str, value: &str) -> AttributeType {
    AttributeType::builder()
        .name(name)
        .value(value)
        .build()
        .expect("an attribute")
}

/// Writes an attribute of a user of the actor pool as the administrator.
async fn admin_write(
    pool: &RunningServer,
    sub: &str,
    attribute: AttributeType,
) -> Result<(), String> {
    let update = pool.admin.admin_update_user_attributes();
    let update = update.user_pool_id(&pool.actor().pool_id).username(sub);
    let sent = update.user_attributes(attribute).send().await;
    sent.map(drop).map_err(error_text)
}

/// Writes an attribute as the user, through the client of an access token.
async fn client_write(
    pool: &RunningServer,
    access_token: &str,
    attribute: AttributeType,
) -> Result<(), String> {
    let update = pool
        .anonymous
        .update_user_attributes()
        .access_token(access_token);
    let sent = update.user_attributes(attribute).send().await;
    sent.map(drop).map_err(error_text)
}

#[tokio::test]
async fn attribute_access_follows_client_settings() {
    let pool = start().await;
    let sub = pool.register(EMAIL, PASSWORD).await;
    for (name, value) in [("given_name", "Ada"), ("email_verified", "true")] {
        admin_write(&pool, &sub, attribute(name, value))
            .await
            .expect("written");
    }
    let unknown = admin_write(&pool, &sub, attribute("custom:service_id", "auth")).await;
    assert!(
        unknown
            .expect_err("rejected")
            .contains("does not exist in the schema")
    );
    let tokens = pool.sign_in(EMAIL, PASSWORD).await.expect("signed in");
    let id_claims = claims(tokens.id_token().expect("ID token"));
    assert_eq!(
        (&id_claims["given_name"], &id_claims["email_verified"]),
        (&"Ada".into(), &true.into())
    );
    let access = tokens.access_token().expect("access token");
    let verify = client_write(&pool, access, attribute("email_verified", "true")).await;
    assert!(
        verify
            .expect_err("rejected")
            .contains("unauthorized attribute")
    );
    client_write(&pool, access, attribute("email", "ada@new.example"))
        .await
        .expect("written");
    let user = pool
        .anonymous
        .get_user()
        .access_token(access)
        .send()
        .await
        .expect("read");
    let read = |name: &str| {
        let found = user
            .user_attributes()
            .iter()
            .find(|attribute| attribute.name() == name);
        found
            .and_then(|attribute| attribute.value())
            .map(str::to_owned)
    };
    assert_eq!(
        (read("email").as_deref(), read("email_verified").as_deref()),
        (Some("ada@new.example"), Some("false"))
    );
    assert!(pool.sign_in(EMAIL, PASSWORD).await.is_err());
    assert!(pool.sign_in("ada@new.example", PASSWORD).await.is_ok());
}
